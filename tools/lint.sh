#!/usr/bin/env bash
# Formatting, lints, types, include directions. Changes nothing; `make format` does.
set -eu -o pipefail
cd "$(dirname "$0")/.."
source tools/stage.sh

clang_format() { bash tools/sources.sh | xargs -0 clang-format --dry-run --Werror; }

stage "clang-format" clang_format
stage "ruff format" ruff format --check --quiet .
stage "ruff" ruff check --quiet .
stage "include directions" python tools/check_includes.py
stage "mypy" mypy
