# Two targets do everything on a bare machine with Python and make:
#   make analyze   set up .venv and run the main job on its embedded default
#   make test      set up .venv and run the whole test suite
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ioprobe-installed

.PHONY: analyze test lint clean

analyze: $(STAMP)
	$(BIN)/ioprobe analyze

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Editable install, so that the sources in this folder are what runs.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV)
