# Every target does all of its own set-up: a machine with Python 3.11 to 3.13 and make is enough.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: demo test test-slow golden lint docs bench bench-large bench-mesh bench-peers clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all]' -c constraints.txt
	touch $(READY)

demo: $(READY)
	$(BIN)/bsgp demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart 0

test-slow: $(READY)
	$(BIN)/python -m pytest -n 2 -m slow

# Are the draws those of the commit before, bit for bit? COMMIT names another one.
golden: $(READY)
	$(BIN)/python tests/golden/compare.py $(COMMIT)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright

docs: $(READY)
	$(BIN)/mkdocs build --strict

bench: $(READY)
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/prediction.py
	$(BIN)/python benchmarks/scaling.py

# Writes and removes 5 GB in the temporary folder.
bench-large: $(READY)
	$(BIN)/python benchmarks/large.py

bench-mesh: $(READY)
	$(BIN)/python benchmarks/mesh.py

# Peers pin each other's dependencies, so each family has an environment of its own. torch 2.13.0 has a CPU build.
.venv-peers-torch/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 gpytorch==1.15.2
	touch $@

.venv-peers-tf/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check 'numpy<2' gpflow==2.11.2 gpflux==0.4.5
	touch $@

.venv-peers-jax/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check gpjax==1.0.0
	touch $@

bench-peers: $(READY) .venv-peers-torch/.ready .venv-peers-tf/.ready .venv-peers-jax/.ready
	$(BIN)/python benchmarks/peers.py

clean:
	rm -rf $(VENV) .venv-peers-* .pytest_cache .ruff_cache .hypothesis
