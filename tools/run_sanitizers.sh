#!/usr/bin/env bash
# C++ tests under ASan and UBSan, the threaded ones under TSan.
set -eu -o pipefail
cd "$(dirname "$0")/.."
source tools/stage.sh

build() { cmake --preset "$1" --log-level=WARNING && cmake --build --preset "$@"; }
export UBSAN_OPTIONS=print_stacktrace=1

stage "Build with address and undefined-behaviour sanitizers" build sanitize
stage "C++ tests under them" ctest --preset sanitize --no-tests=error
stage "Build with the thread sanitizer" build thread --target thread_tests
stage "Threaded C++ tests under it" ctest --preset thread --no-tests=error -L threads
stage_times
