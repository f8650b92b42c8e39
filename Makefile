# `make help` lists the targets. They write .venv and build*/; besides, `demo` writes demo/loss.png and
# demo/sample.txt, `wheel` dist/, `docs` site/, and `format` the sources.
PYTHON ?= python3
JOBS ?= $(shell nproc)

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.SUFFIXES:

venv := .venv
export PATH := $(CURDIR)/$(venv)/bin:$(PATH)
# Development runs use the sources and the library of build/, so nothing is installed twice.
export PYTHONPATH := $(CURDIR)/python
export LINATTN_LIBRARY := $(CURDIR)/build/liblinattn.so
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
python := $(CURDIR)/$(venv)/bin/python

# A stamp per dependency group of pyproject.toml: edited dependencies are installed again.
$(venv)/bin/python:
	$(PYTHON) -m venv $(venv)
	$(python) -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'

$(venv)/stamp-%: pyproject.toml | $(venv)/bin/python
	@echo "Installing the dependency group '$*' into .venv"
	$(python) -m pip install --quiet --disable-pip-version-check --group $*
	@touch $@

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: configure
configure: $(venv)/stamp-build
	@command -v nvcc >/dev/null || echo "nvcc not found: building the CPU library"
	cmake --preset default --log-level=WARNING $(if $(LINATTN_CUDA),-DLINATTN_CUDA=$(LINATTN_CUDA))

.PHONY: library
library: configure ## The library in build/
	cmake --build --preset default --target linattn

.PHONY: build
build: configure ## The library and its C++ tests in build/
	cmake --build --preset default

.PHONY: demo
demo: $(venv)/stamp-demo library ## Trains a small hybrid language model, then writes with it
	$(python) demo/run.py

.PHONY: test
test: $(venv)/stamp-test build ## Every test this machine can run, fast ones first
	tools/run_tests.sh

.PHONY: bench
bench: $(venv)/stamp-test library ## Times every operator of this machine against plain torch
	$(python) -m linattn bench --against torch

.PHONY: docs
docs: $(venv)/stamp-docs ## The pages of docs/ as a site in site/
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet

.PHONY: wheel
DIST ?= dist
wheel: library ## dist/linattn-*.whl, from the library as it lies in build/
	$(python) -m pip wheel . --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --wheel-dir $(DIST) --config-settings=build-dir=build

.PHONY: sanitize
sanitize: $(venv)/stamp-build ## C++ tests under the address, undefined-behaviour and thread sanitizers
	tools/run_sanitizers.sh

.PHONY: fuzz
fuzz: $(venv)/stamp-build ## A long run of random problems through the C interface (FUZZ_SECONDS=600)
	tools/run_fuzz.sh $(or $(FUZZ_SECONDS),600)

.PHONY: lint
lint: $(venv)/stamp-lint $(venv)/stamp-test ## Formatting, ruff, mypy, include directions
	tools/lint.sh

.PHONY: format
format: $(venv)/stamp-lint ## Rewrites the sources in the checked-in style
	tools/format.sh

.PHONY: clean
clean: ## Removes the build folders, keeps .venv
	rm -rf build build-* dist site
