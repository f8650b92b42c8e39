#!/usr/bin/env bash
# Every test that this machine can run, fast ones first. `make test` has built build/ and .venv.
set -eu -o pipefail
cd "$(dirname "$0")/.."
source tools/stage.sh

pytest() { python -m pytest --quiet "$@"; }

stage "C++ tests" ctest --preset default --no-tests=error
stage "Installed package" pytest tests/package
stage "Sanitizers" tools/run_sanitizers.sh
stage "Fuzzing" tools/run_fuzz.sh 40
stage "Python tests and examples of the documentation" pytest -n "${JOBS:-$(nproc)}" tests/python
stage_times
