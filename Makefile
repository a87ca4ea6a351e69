# `make book` builds both sites, `make test` checks everything. Each sets itself up in .venv.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
PYTHON ?= python3
VENV := .venv
RUN := PYTHONPATH=. $(VENV)/bin/python
READY := $(VENV)/.ready
WORKERS ?= 2
PORT ?= 8000
# More options for pip, such as an index that offers the CPU build of torch: see README.md
PIP_FLAGS ?=

.PHONY: help setup book serve test test-gpu notebooks translated export bench lint format clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

$(READY): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is not Python 3.11 or newer; name one that is: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "setting up $(VENV) from requirements.txt (once; some minutes)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "error: $(PYTHON) -m venv failed; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@$(VENV)/bin/python book/install.py $(PIP_FLAGS)
	@touch $(READY)

setup: $(READY) ## Install requirements.txt into .venv (the other commands do it by themselves)

book: $(READY) ## Build both sites and the notebooks for Colab into _build
	@$(RUN) -m book.site

serve: $(READY) ## Serve the built site on http://127.0.0.1:8000 (PORT=8001 for another port)
	@$(RUN) -m book.serve --port $(PORT)

test: lint book ## Check everything: lint, lib, both languages, stored outputs, the site in a browser
	@$(RUN) -m pytest -n $(WORKERS) --dist loadscope -q tests

test-gpu: $(READY) ## The stored outputs and the gpu tests on CUDA (skipped, with a message, where there is none)
	@$(RUN) -m pytest --gpu -rs tests

notebooks: $(READY) ## Run the chapters whose code or lib changed and store their outputs (ALL=1: every one)
	@$(RUN) -m book.stored $(if $(ALL),--all) $(TOPIC)

translated: $(READY) ## Record that the Chinese says what the English says (PAGE=rope; all pages without it)
	@$(RUN) -m book.parity --accept $(PAGE)

bench: $(READY) ## Time lib beside what a user would take instead (TOPIC=rope for one topic)
	@$(RUN) -m benchmarks $(TOPIC)

lint: $(READY) ## Check the code's style, the workflows and what pre-commit runs
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/ruff format --check --quiet . || { echo "error: files are not formatted: run make format"; exit 1; }
	@$(VENV)/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(VENV)/bin/zizmor --offline --quiet --no-progress .github/workflows

format: $(READY) ## Format the Python files
	@$(VENV)/bin/ruff check --quiet --fix .
	@$(VENV)/bin/ruff format --quiet .

clean: ## Remove what the commands built (.venv stays)
	@rm -rf _build .pytest_cache .ruff_cache .hypothesis
