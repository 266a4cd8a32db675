# Two commands for a fresh machine with Python 3.11 and nothing else: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

INTERPRETED := $(wildcard tests/routing/test_triton*.py)

.PHONY: compat demo docs fuzz test test-interpreted test-rest release wheel-test lint setup clean

demo: setup
	$(BIN)/emcaps demo

docs: setup  # tables and pictures of the documents, from the recorded runs
	$(BIN)/python -m emcaps.documents

test: setup lint
	@echo "The tests run in two processes, for about six minutes; each shows its output when it is done."
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target test-interpreted test-rest

test-interpreted: setup  # GPU kernels in Triton's interpreter: one core, more than half of the time
	$(BIN)/python -m pytest $(INTERPRETED)

test-rest: setup
	$(BIN)/python -m pytest $(INTERPRETED:%=--ignore=%)

fuzz: setup  # damaged files of every kind, in minutes; `make test` has a short form
	PYTHONPATH=tests $(BIN)/python -m fuzz

compat:  # the wheel with other versions, each in a fresh environment: ten minutes and up to 10 GB for each
	PYTHONPATH=tests $(PYTHON) -m compat

release: setup  # wheel and sdist of the last commit into dist/, built reproducibly
	.ci/release

wheel-test:  # the built wheel in an empty environment, as a new user installs it
	PYTHON=$(PYTHON) .ci/wheel-test

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "emcaps needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	# Torch for CUDA brings its own Triton; beside torch for CPUs, tests run the GPU kernels in Triton's interpreter.
	$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check triton==3.6.0
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
