#!/usr/bin/env bash
# run_fuzz.sh SECONDS: random problems through the C interface, under ASan and UBSan. Coverage-guided
# where clang and its fuzzing runtime are installed, from numbered seeds otherwise.
set -eu -o pipefail
cd "$(dirname "$0")/.."
seconds=${1:-40}
export ASAN_OPTIONS=abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:abort_on_error=1

if [ "$seconds" -gt 120 ] && command -v clang++ >/dev/null &&
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
  clang++ -x c++ - -fsanitize=fuzzer -o /dev/null 2>/dev/null; then
  cmake --preset fuzz --log-level=WARNING
  cmake --build --preset fuzz --target fuzz_c_api
  mkdir -p build-fuzz/corpus
  exec build-fuzz/tests/fuzz/fuzz_c_api build-fuzz/corpus -max_total_time="$seconds" -max_len=2048
fi
cmake --preset sanitize --log-level=WARNING
cmake --build --preset sanitize --target fuzz_c_api
build-sanitize/tests/fuzz/fuzz_c_api --seconds "$seconds" --seed "${FUZZ_SEED:-1}"
