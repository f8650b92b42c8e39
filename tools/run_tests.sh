#!/usr/bin/env bash
# Every test that this machine can run, fast ones first. `make test` has built build/ and .venv.
set -eu -o pipefail
cd "$(dirname "$0")/.."
source tools/stage.sh

pytest() { python -m pytest --quiet "$@"; }

stage "C++ tests" ctest --preset default --no-tests=error --parallel "${JOBS:-$(nproc)}"
# compat/fla.py registers with FLA's dispatcher when imported, and that needs triton.
stage "Examples of the documentation and docstrings" \
  pytest --doctest-modules --doctest-glob='*.md' --ignore=python/linattn/compat/fla.py \
  README.md docs python/linattn
stage "Installed package" pytest tests/package
stage "Sanitizers" tools/run_sanitizers.sh
stage "Fuzzing" tools/run_fuzz.sh 30
stage "Python tests" pytest --numprocesses "${JOBS:-$(nproc)}" tests/python
stage_times
