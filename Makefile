# Everything runs from .venv, which `make install` builds from nothing but a Python >= 3.10.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# More words for pip, e.g. PIP_ARGS='--no-index --find-links wheels' where there is no network.
PIP_ARGS ?=
# A Python to use instead of the first one >= 3.10 found on PATH.
PYTHON ?=

.PHONY: help
help: ## Say what there is to make
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

.PHONY: install
install: $(STAMP) ## Make .venv with every part and every development tool

$(STAMP): pyproject.toml constraints.txt
	@set -eu; \
	python=; \
	for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.10 python; do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "error: no Python >= 3.10 on PATH; install one, or name it: make install PYTHON=/path/to/python3" >&2; exit 2; \
	fi; \
	if ! "$$python" -c 'import venv, ensurepip' 2>/dev/null; then \
		echo "error: $$python has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; \
	fi; \
	echo "$(VENV): $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --constraint constraints.txt --editable '.[all,dev]'
	@touch $@
