#!/usr/bin/env bash
# Rewrites every source in the checked-in style.
set -eu -o pipefail
cd "$(dirname "$0")/.."
bash tools/sources.sh | xargs -0 clang-format -i
ruff format --quiet .
ruff check --quiet --fix .
