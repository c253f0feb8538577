# Two commands on a fresh machine with Python 3.11 or newer:
#   make demo    set up .venv and run the demonstration
#   make test    set up .venv with the development tools; run lint, types and tests
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test lint types tests mutation clean
.NOTPARALLEL:

demo: .venv/.installed
	$(BIN)/gnn-repair demo

test: lint types tests

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed-dev
	$(BIN)/mypy

tests: .venv/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 $(ARGS)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gnn-repair needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) torch && $(PIP) --editable .
	@touch $@

.venv/.installed-dev: .venv/.installed
	$(PIP) --editable '.[dev]'
	@touch $@

mutation: .venv/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutation $(ARGS)

clean:
	rm -rf .venv dist build *.egg-info
