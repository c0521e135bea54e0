# make run   sets up .venv if needed and runs the default study (experiments.yaml)
# make test  the same set-up, then the test suite
# Needs Python 3.11 or newer, make and a C++ compiler. Override PYTHON=... or TORCH=... (a pip requirement) if you must:
#   make run PYTHON=python3.12 TORCH=torch==2.11.0

PYTHON ?= python3
TORCH ?= torch==2.13.0
STUDY ?= experiments.yaml
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test lint types setup clean

run: setup
	$(BIN)/python -m workload.run $(STUDY)

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Latency Lab needs Python 3.11 or newer, found %d.%d: make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@echo "set-up 1 of 3: virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "set-up 2 of 3: downloading and installing $(TORCH), the largest package (a minute or more, nothing is printed meanwhile)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)' -c constraints.txt
	@echo "set-up 3 of 3: the packages of pyproject.toml as pinned in constraints.txt (a minute or more)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
	@echo "set-up: done"

clean:
	rm -rf $(VENV) results
