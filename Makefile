# Every target does its own set-up: a virtual environment in $(VENV), made once and again when the dependencies change.
#   make demo PYTHON=python3.12       choose the interpreter (3.10 to 3.13)
#   make test VENV=.venv-3.12         and another environment beside the first

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
# One thread for each process: on a busy machine, threads that wait for each other cost more than they bring.
export OMP_NUM_THREADS ?= 1

BIN := $(VENV)/bin
BASE := $(VENV)/.base
INSTALLED := $(VENV)/.installed
BARE := $(VENV)-base
SOURCES := src benchmarks tests recipes docs notebooks

.DEFAULT_GOAL := help
.PHONY: help install demo test test-base test-full soak lint format kernels figures docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## create the virtual environment and install bestfirst into it

$(BIN)/python:
	@command -v "$(PYTHON)" > /dev/null || { echo "no '$(PYTHON)' on PATH; choose an interpreter: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v <= (3, 13) else \
	  "bestfirst needs Python 3.10 to 3.13, $(PYTHON) is %d.%d; choose another: make PYTHON=python3.12" % v)'
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed (see above); on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(BASE): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing bestfirst into $(VENV), without torch and transformers (half a minute)"
	@$(BIN)/python -m pip install -qq -c constraints.txt -e .
	@touch $@

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing bestfirst and all that its tests need into $(VENV) (the first time takes a few minutes: torch is large)"
	@$(BIN)/python -m pip install -qq -c constraints.txt -e '.[dev,docs,bench,serve,cluster,parquet]'
	@touch $@ $(BASE)

demo: $(BASE) ## translate German with the embedded model, and see what best-first saves
	@mkdir -p build
	@echo; echo "The embedded German-English model:"
	printf 'Guten Morgen!\nWo ist der Bahnhof?\nDas habe ich nicht gesagt.\n' | $(BIN)/bestfirst translate
	@echo; echo "Every strategy on one sentence:"
	$(BIN)/bestfirst compare --beam 10 'Wie melkt man eine Kuh?'
	@echo; echo "200 sentences, first with beam search, then with best-first beam search:"
	$(BIN)/bestfirst translate tests/data/tatoeba-200.de --beam 10 --strategy beam --stats --overwrite -o build/demo-beam.en
	@echo
	$(BIN)/bestfirst translate tests/data/tatoeba-200.de --beam 10 --stats --overwrite -o build/demo-best-first.en
	@awk 'NR == FNR { beam[FNR] = $$0; next } { same += beam[FNR] == $$0 } END { print "\n" same " of " FNR " translations are the same" }' \
	  build/demo-beam.en build/demo-best-first.en
	@echo; echo "Next: see a search replayed in your browser, decode a model of your own (docs/own-model.md), ask for the other commands:"
	@echo "  $(BIN)/bestfirst view 'Wie melkt man eine Kuh?' -o search.html"; echo "  $(BIN)/bestfirst --help"

test: lint test-base ## check style and types, run all tests
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup

test-base: $(BARE)/.installed ## what must work without torch and transformers, in an environment that has neither
	$(BARE)/bin/python -m pytest -p no:cacheprovider tests/base

$(BARE)/.installed: pyproject.toml constraints.txt
	@command -v "$(PYTHON)" > /dev/null || { echo "no '$(PYTHON)' on PATH; choose an interpreter: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BARE)/bin/python || "$(PYTHON)" -m venv $(BARE)
	@echo "Installing bestfirst into $(BARE), without torch and transformers"
	@$(BARE)/bin/python -m pip install -qq -c constraints.txt -e . pytest
	@touch $@

test-full: export BESTFIRST_TEST_SCALE = full
test-full: test ## the same, at the full counts (hours, not minutes)

soak: $(INSTALLED) ## kills, damaged files, hostile requests: minutes, or as long as SOAK says ("--help")
	PYTHONPATH=tests $(BIN)/python -m soak $(SOAK)

lint: $(INSTALLED) ## check style and types
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

format: $(INSTALLED) ## rewrite the sources in house style
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

kernels: $(INSTALLED) ## compile the kernels ahead of time, after a change of theirs
	$(BIN)/python -m bestfirst.engine.steps.native.compiling

figures: $(INSTALLED) ## measure again and redraw the figures of README and docs
	$(BIN)/python docs/figures/calls.py
	$(BIN)/python docs/figures/view.py
	$(BIN)/python docs/figures/architecture.py

docs: $(INSTALLED) ## build the documentation's site and serve it on http://127.0.0.1:8001
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8001

clean: ## remove the virtual environment, caches and build outputs
	rm -rf $(VENV) $(BARE) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info src/*.egg-info
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
