# make run   set up the environment, run the whole default job on real text, print its card
# make test  lint, types, tests
# make slow  the tests that take minutes: mutations, many kills
# make soak  runs of a growing corpus, killed and troubled for half an hour (SECONDS=1800), at least 200 times (KILLS=200)
# make busy  the tests that depend on time, 20 times (N=20) while two loops keep the cores busy

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# pip compiles with one core, and not at all what is ours; where Python may not write, each start would compile again
COMPILE := $(BIN)/python -m compileall -qq -j 0
# pytest has a compiler of its own, for asserts: it may write what it compiled
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile

export DO_NOT_TRACK := 1
export MLFLOW_DISABLE_TELEMETRY := true

.PHONY: run test unit slow soak busy lint lock clean

run: $(VENV)/installed
	$(BIN)/kedro run
	@$(BIN)/everytoken report

# The types are checked beside the tests, which leave a part of two cores idle.
test: $(VENV)/installed-test
	@$(MAKE) --no-print-directory -j 2 lint unit

unit: $(VENV)/installed-test
	@$(COMPILE) src tests
	$(PYTEST)

slow: $(VENV)/installed-test
	@$(COMPILE) src tests
	$(PYTEST) -m slow

# A seed repeats what is drawn: make soak SEED=7
SECONDS ?= 1800
KILLS ?= 200
soak: $(VENV)/installed-test
	@$(COMPILE) src tests
	$(BIN)/python -u -m tests.soak.soak --seconds $(SECONDS) --kills $(KILLS) $(if $(SEED),--seed $(SEED))

N ?= 20
busy: $(VENV)/installed-test
	@$(COMPILE) src tests
	@trap 'kill $$loops' EXIT; trap 'exit 130' INT TERM; passed=0; \
	for loop in 1 2; do sh -c 'while :; do :; done' & loops="$$loops $$!"; done; \
	for round in $$(seq $(N)); do \
	  $(PYTEST) -m 'sensitive and not slow' && passed=$$((passed + 1)); \
	  echo "round $$round of $(N): $$passed passed"; \
	done; \
	test $$passed = $(N)

lint: $(VENV)/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "everytoken needs Python 3.11 or newer; say which: make run PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: requirements.lock pyproject.toml | $(VENV)/bin/python
	$(PIP) install --quiet --no-compile -r requirements.lock
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@$(COMPILE) $(VENV)/lib src || true  # packages have templates that are no Python
	touch $@

$(VENV)/installed-test: requirements-test.lock $(VENV)/installed
	$(PIP) install --quiet --no-compile -r requirements-test.lock
	@$(COMPILE) $(VENV)/lib || true
	touch $@

# Writes the lock files from the ranges of pyproject.toml, in a fresh environment.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet setuptools torch==2.13.0 .
	build/lock/bin/python -m pip freeze --all --exclude everytoken --exclude pip | sed 's/+cpu$$//' > requirements.lock
	build/lock/bin/python -m pip install --quiet '.[test]'
	build/lock/bin/python -m pip freeze --all --exclude everytoken --exclude pip | sed 's/+cpu$$//' > requirements-test.lock
	rm -rf build/lock

clean:
	rm -rf $(VENV) build
