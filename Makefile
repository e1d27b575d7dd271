# Every target does all of its own set-up: a machine with Python 3.11 to 3.13 and make is enough.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: demo test test-slow lint bench clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $(READY)

demo: $(READY)
	$(BIN)/python -m bsgp.demo

test: $(READY)
	$(BIN)/python -m pytest -n 2

test-slow: $(READY)
	$(BIN)/python -m pytest -n 2 -m slow

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright

bench: $(READY)
	$(BIN)/python benchmarks/step.py

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
