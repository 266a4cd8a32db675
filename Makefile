# Two commands for a fresh machine with Python 3.11 and nothing else: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

# The tests run in two processes, each for about as long: GPU kernels in Triton's interpreter, the benchmark, data, layers
# and pages; the rest.
ONE_HALF := $(wildcard tests/routing/test_triton*.py) tests/bench tests/data tests/documents tests/examples tests/explorer tests/faults tests/fuzz tests/nn tests/report tests/test_export.py

.PHONY: compat demo docs faults fuzz gpu-test site test test-one-half test-other-half release wheel-test lint setup clean

demo: setup
	$(BIN)/emcaps demo

docs: setup  # tables and pictures of the documents, from the recorded runs
	$(BIN)/python -m emcaps.documents

site: setup  # the documentation as pages that open from disk: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Open site/index.html; it needs no server and no network."

test: setup lint
	@echo "The tests run in two processes, for about eight minutes; each shows its output when it is done."
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target test-one-half test-other-half

test-one-half: setup
	$(BIN)/python -m pytest $(ONE_HALF)

test-other-half: setup
	$(BIN)/python -m pytest $(ONE_HALF:%=--ignore=%)

fuzz: setup  # damaged files of every kind, in minutes; `make test` has a short form
	PYTHONPATH=tests $(BIN)/python -m fuzz

faults: setup  # commands that are killed or refused by the system at every moment, in minutes; `make test` has a short form
	PYTHONPATH=tests $(BIN)/python -m faults

gpu-test:  # on a machine with a GPU: its tests, and their record; from the source alone, since such a machine may install nothing
	PYTHONPATH=src:tests $(PYTHON) -m gpu_tests

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
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis
