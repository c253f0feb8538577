# Two commands on a fresh machine with Python 3.11 or newer:
#   make demo    set up .venv and run the demonstration
#   make test    set up .venv with the development tools; run lint, types and tests
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# PyTorch's usual build for Linux brings gigabytes of CUDA, so a machine without a GPU asks for the
# build for CPUs first. Where that index cannot be reached, pip's own settings decide. CPU= and
# CPU=1 choose by hand.
CPU ?= $(if $(shell command -v nvidia-smi),,1)
CPU_BUILD := install --quiet --no-deps --retries 0 --timeout 5 --index-url https://download.pytorch.org/whl/cpu
USUAL := echo "No PyTorch build for CPUs can be had here; pip takes its usual one."

.PHONY: demo test lint types tests docs notebooks wheel golden test-minimum test-latest test-extensions audit mutation campaign bench beyond chance clean
.NOTPARALLEL:

demo: .venv/.installed
	$(BIN)/gnn-repair demo

test: lint types tests

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.lint_page

types: .venv/.installed-dev
	$(BIN)/mypy

tests: .venv/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile $(ARGS)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gnn-repair needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(if $(CPU),$(BIN)/python -m pip $(CPU_BUILD) $(shell grep '^torch==' constraints.txt) 2>/dev/null || $(USUAL))
	$(PIP) torch && $(PIP) --editable .
	@touch $@

.venv/.installed-dev: .venv/.installed
	$(PIP) --editable '.[dev]'
	@touch $@

# The documentation site, in site/: open site/index.html.
docs: .venv/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

.venv/.installed-docs: .venv/.installed
	$(PIP) --editable '.[docs]'
	@touch $@

# The tutorials' outputs, made anew: all of docs/tutorials, or ARGS="1-gat-on-cora".
notebooks: .venv/.installed-dev
	$(BIN)/python -m tools.docs.notebooks $(ARGS)

# What a release uploads, in dist/, checked as a package index would.
wheel: .venv/.installed-dev
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*

# What the package gives, compared with the committed record: all of it, or ARGS="heads lps".
# ARGS="--update heads" rewrites a part; say why in tests/golden/CHANGES.md.
golden: .venv/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.golden.golden $(ARGS)

mutation: .venv/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutation $(ARGS)

# Hostile inputs for a while: ARGS="--minutes 30". Measurements: ARGS="oracle --repeats 5".
campaign: .venv/.installed
	$(BIN)/python -m tests.campaigns $(ARGS)

bench: .venv/.installed
	$(BIN)/python -m benchmarks $(ARGS)

# Chance reach, a table of docs/results/reproduction.md: ARGS="gcn cora actor".
chance: .venv/.installed
	$(BIN)/python -m tools.chance $(ARGS)

# The tables of docs/results/beyond.md, from the packed records in results/.
beyond: .venv/.installed
	$(BIN)/python -m tools.beyond

# The tests on the lowest versions that pyproject.toml allows, and on the newest there are. Only a
# build for CPUs of the lowest PyTorch is asked for; elsewhere the one of constraints.txt stands in.
# TORCH names the newest, such as torch==2.13.0 where a later one has no build for CPUs.
TORCH ?= torch
test-minimum: .venv-minimum/.installed
	OMP_NUM_THREADS=1 .venv-minimum/bin/pytest -n 2 $(ARGS)

test-latest: .venv-latest/.installed
	OMP_NUM_THREADS=1 .venv-latest/bin/pytest -n 2 $(ARGS)

# Models written with torch_scatter, torch_sparse and pyg-lib: what can be built or had is installed (some
# minutes), and tests of what is missing skip and say so.
test-extensions: .venv-extensions/.installed
	OMP_NUM_THREADS=1 .venv-extensions/bin/pytest -rs tests/exposure/test_extensions.py tests/exposure/test_sampled.py $(ARGS)

.venv-extensions/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-extensions
	.venv-extensions/bin/pip $(CPU_BUILD) $$(grep -E '^torch==' constraints.txt) 2>/dev/null || $(USUAL)
	.venv-extensions/bin/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	.venv-extensions/bin/pip install --quiet 'setuptools<81' wheel
	for name in torch-scatter torch-sparse pyg-lib; do \
	  .venv-extensions/bin/pip install --quiet --no-build-isolation $$name || echo "$$name cannot be had here."; \
	done
	@touch $@

.venv-minimum/.installed: pyproject.toml constraints.txt .ci/minimum.py
	$(PYTHON) -m venv .venv-minimum
	.venv-minimum/bin/pip $(CPU_BUILD) $$(.venv-minimum/bin/python .ci/minimum.py torch) 2>/dev/null || \
	  .venv-minimum/bin/pip install --quiet --constraint constraints.txt torch
	.venv-minimum/bin/python .ci/minimum.py > .venv-minimum/constraints.txt
	.venv-minimum/bin/pip install --quiet --constraint .venv-minimum/constraints.txt --editable '.[dev]'
	@touch $@

.venv-latest/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-latest
	$(if $(CPU),.venv-latest/bin/pip $(CPU_BUILD) '$(TORCH)' 2>/dev/null || $(USUAL))
	.venv-latest/bin/pip install --quiet '$(TORCH)'
	.venv-latest/bin/pip install --quiet --upgrade --editable '.[dev]'
	@touch $@

# Known vulnerabilities of the pinned versions; needs the network.
audit:
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/pip install --quiet pip-audit
	.venv-audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

clean:
	rm -rf .venv .venv-minimum .venv-latest .venv-audit dist build site *.egg-info
