#!/usr/bin/env bash
# What only a GPU machine can show, in stages of at most eight minutes each. The build folder is
# configured with -DLINATTN_TESTS=ON -DLINATTN_BENCH=ON, here or on another machine.
#
#   tools/gpu.sh [--build DIR] [--out DIR] STAGE...
#
#   numerics   every CUDA entry against the oracle (CTest's GPU programs, then the Python tests)
#   timing     the tables of docs/kernels, as CSV
#   tune       the candidate rows of the kernels' tables, as CSV
#   sanitize   compute-sanitizer over a small grid, where the machine's runtime lets it run
#   profile    Nsight Compute's memory tables of one decode step, likewise
#
# Logs and CSVs land in --out (default bench/results/gpu); a short table comes last.
set -uo pipefail
cd "$(dirname "$0")/.."

build=build out=bench/results/gpu stages=()
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) stages+=("$1"); shift ;;
  esac
done
[ ${#stages[@]} -gt 0 ] || { echo "no stage named; --help lists them" >&2; exit 2; }
mkdir -p "$out"
export LD_LIBRARY_PATH="$PWD/$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LINATTN_LIBRARY="$PWD/$build/liblinattn.so" PYTHONPATH="$PWD/python${PYTHONPATH:+:$PYTHONPATH}"
limit=480 failed=0 summary=()

# step NAME LOG COMMAND...: runs under the limit, keeps the log, notes how it ended.
step() {
  local name=$1 log=$out/$2 begin=$SECONDS status
  shift 2
  timeout "$limit" "$@" >"$log" 2>&1
  status=$?
  local took=$((SECONDS - begin)) last
  last=$(tail -n 1 "$log" | cut -c1-90)
  case $status in
    0) summary+=("$(printf '%-22s ok       %4ds  %s' "$name" "$took" "$last")") ;;
    77) summary+=("$(printf '%-22s skipped  %4ds  %s' "$name" "$took" "$last")") ;;
    *) summary+=("$(printf '%-22s FAILED %s %4ds  %s' "$name" "$status" "$took" "$last")"); failed=1 ;;
  esac
}

# A tool that is missing or that this machine's runtime refuses is no failure of the library.
have() {
  command -v "$1" >/dev/null && return 0
  summary+=("$(printf '%-22s skipped        %s is not installed' "$2" "$1")")
  return 1
}

for stage in "${stages[@]}"; do
  case $stage in
    numerics)
      step "decode, C++" decode_check.log "$build/tests/cuda/cuda_decode_test"
      if python3 -c 'import torch, pytest' 2>/dev/null && ls tests/python/test_cuda_*.py >/dev/null 2>&1; then
        step "Python" python_check.log python3 -m pytest -q -p no:cacheprovider tests/python/test_cuda_*.py
      else
        summary+=("Python                 skipped        torch or pytest is not installed")
      fi
      ;;
    timing) step "decode timing" decode.csv "$build/bench/cuda/decode_bench" ;;
    tune) step "decode rows" decode_tune.csv "$build/bench/cuda/decode_tune" ;;
    sanitize)
      have compute-sanitizer "sanitizers" || continue
      for tool in memcheck racecheck initcheck; do
        step "$tool" "$tool.log" compute-sanitizer --tool "$tool" --error-exitcode 1 \
          "$build/tests/cuda/cuda_decode_test" quick
        grep -qE 'Device not supported' "$out/$tool.log" &&
          summary+=("                       this runtime refuses compute-sanitizer")
      done
      ;;
    profile)
      have ncu "profile" || continue
      step "profile" profile.log ncu --clock-control none --section SpeedOfLight \
        --section MemoryWorkloadAnalysis --section Occupancy --section WarpStateStats \
        --kernel-name regex:recurrent_forward --launch-skip 60 --launch-count 1 \
        "$build/bench/cuda/decode_bench"
      ;;
    *) echo "unknown stage: $stage" >&2; exit 2 ;;
  esac
done

if [ -s "$out/decode.csv" ]; then
  echo "decode: family N HV K V T state layout shuffled best_ms median_ms floor_ms share call_us"
  grep -vE '^(#|family)' "$out/decode.csv" |
    awk -F, '{printf "%-10s %4s %4s %4s %4s %2s %-4s %s %s %8s %8s %8s %6s %6s\n", $1,$2,$3,$4,$5,$6,$7,$8,$9,$11,$12,$13,$14,$16}'
fi
printf '%s\n' "${summary[@]}"
exit $failed
