#!/usr/bin/env bash
# What only a GPU machine can show, in stages of at most eight minutes each. The build folder is
# configured with -DLINATTN_TESTS=ON -DLINATTN_BENCH=ON, here or on another machine.
#
#   tools/gpu.sh [--build DIR] [--out DIR] [--quick] STAGE...
#
#   check      every CUDA entry against the oracle: CTest's GPU programs, `linattn check`, and the
#              Python tests; --quick takes the smaller grids
#   bench      `linattn bench --device cuda`, and what a call costs through C: CSVs and rooflines
#   tune       the candidate rows of the kernels' tables, as CSV
#   sanitize   compute-sanitizer over small grids, where the machine's runtime lets it run
#   profile    Nsight Compute's memory tables of one decode step, likewise
#
# Logs and CSVs land in --out (default bench/results/gpu); a short table comes last.
set -uo pipefail
cd "$(dirname "$0")/.."

build=build out=bench/results/gpu quick="" stages=()
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --quick) quick=yes; shift ;;
    -h | --help) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) stages+=("$1"); shift ;;
  esac
done
[ ${#stages[@]} -gt 0 ] || { echo "no stage named; --help lists them" >&2; exit 2; }
mkdir -p "$out"
export LD_LIBRARY_PATH="$PWD/$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LINATTN_LIBRARY="$PWD/$build/liblinattn.so" PYTHONPATH="$PWD/python${PYTHONPATH:+:$PYTHONPATH}"
limit=480 failed=0 summary=() stage_end=0

note() { summary+=("$(printf '%-22s %-8s %5s  %s' "$1" "$2" "$3" "$4")"); }

# step NAME LOG COMMAND...: runs in what is left of the stage's time, keeps the log, notes the end.
step() {
  local name=$1 log=$out/$2 begin=$SECONDS status left
  shift 2
  left=$((stage_end - SECONDS))
  [ $left -gt 0 ] || { note "$name" skipped "" "the stage's $limit s are over"; failed=1; return 1; }
  timeout "$left" "$@" >"$log" 2>&1
  status=$?
  local last
  last=$(grep -v '^ *$' "$log" | tail -n 1 | cut -c1-90)
  case $status in
    0) note "$name" ok "$((SECONDS - begin))s" "$last" ;;
    77) note "$name" skipped "$((SECONDS - begin))s" "$last" ;;
    *) note "$name" "FAILED $status" "$((SECONDS - begin))s" "$last"; failed=1 ;;
  esac
}

# A tool that is missing or that this machine's runtime refuses is no failure of the library.
have() {
  command -v "$1" >/dev/null && return 0
  note "$2" skipped "" "$1 is not installed"
  return 1
}

have_module() {
  python3 -c "import $1" 2>/dev/null && return 0
  note "$2" skipped "" "the Python module $1 is not installed"
  return 1
}

# sanitized PROGRAM: a test program's small grid under each tool.
sanitized() {
  local tool name=${1##*/}
  for tool in memcheck racecheck initcheck; do
    step "$tool ${name%_test}" "$tool-$name.log" \
      compute-sanitizer --tool "$tool" --error-exitcode 1 "$1" quick
    grep -qE 'Device not supported' "$out/$tool-$name.log" &&
      note "" "" "" "this runtime refuses compute-sanitizer"
  done
}

for stage in "${stages[@]}"; do
  stage_end=$((SECONDS + limit))
  case $stage in
    check)
      for program in "$build"/tests/cuda/cuda_{decode,chunk}_test; do
        name=${program##*/}
        step "$name" "$name.log" "$program" ${quick:+quick}
      done
      if have_module torch "linattn check"; then
        step "linattn check" check.log python3 -m linattn check --device cuda ${quick:+--quick}
        have_module pytest "Python tests" &&
          step "Python tests" pytest.log python3 -m pytest -q -p no:cacheprovider \
            tests/python/test_cuda_*.py tests/python/test_devices.py
      fi
      ;;
    bench)
      step "a call through C" decode_call.csv "$build/bench/cuda/decode_call"
      if have_module torch "linattn bench"; then
        python3 -c "import matplotlib" 2>/dev/null && plot=yes || plot=""
        for kind in chunk backward decode call; do
          kinds=(--kind "$kind")
          [ $kind = decode ] && kinds+=(--kind speculative)
          step "bench $kind" "bench_$kind.log" python3 -m linattn bench --device cuda "${kinds[@]}" \
            --kernels --csv "$out/bench_$kind.csv" ${plot:+--plot "$out/bench_$kind.png"}
        done
      fi
      ;;
    tune) step "decode rows" decode_tune.csv "$build/bench/cuda/decode_tune" ;;
    sanitize)
      have compute-sanitizer "sanitizers" || continue
      sanitized "$build/tests/cuda/cuda_chunk_test"
      sanitized "$build/tests/cuda/cuda_decode_test"
      ;;
    profile)
      have ncu "profile" || continue
      step "profile" profile.log ncu --clock-control none --section SpeedOfLight \
        --section MemoryWorkloadAnalysis --section Occupancy --section WarpStateStats \
        --kernel-name regex:recurrent_forward --launch-skip 60 --launch-count 1 \
        "$build/bench/cuda/decode_call"
      ;;
    *) echo "unknown stage: $stage" >&2; exit 2 ;;
  esac
done

for log in "$out"/decode_call.csv "$out"/bench_*.log; do
  [ -s "$log" ] && grep -vE '^$' "$log"
done
printf '%s\n' "${summary[@]}"
exit $failed
