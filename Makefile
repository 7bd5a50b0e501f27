# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` do all their set-up themselves; they need make, Python 3.11 and PyPI.

PYTHON ?= $(firstword $(shell command -v python3.11 python3))
VENV   ?= .venv
EXTRAS ?= all
OUT    ?= out/demo

BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test compat e2e lint format specs examples picture judge-bench wheel-check clean

help: ## What there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo: $(READY) ## A real call, offline, recorded and read back (about a minute)
	$(BIN)/voicetrace demo --out $(OUT) --force
	@echo
	@echo "The call is in $(OUT). Open $(OUT)/call.html in a browser, or: $(BIN)/voicetrace inspect $(OUT)"

test: $(READY) ## All tests
	$(PIP) install -c constraints.txt --group judge-heavy
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

compat: $(READY) ## The adapters' tests against the oldest supported frameworks
	$(BIN)/python tests/compat/run.py $(COMPAT)

e2e: $(READY) ## A real LiveKit worker on loopback: its jobs in processes, then in threads
	$(PIP) install -c constraints.txt --group e2e
	$(BIN)/python tests/e2e/worker.py $(EXECUTORS)

lint: $(READY) ## Style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## Put the source into the one style
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

specs: $(READY) ## Write specs/schemas from the models
	$(BIN)/python specs/generate.py

examples: $(READY) ## Write examples/calls anew
	$(BIN)/python examples/calls/build.py

picture: demo ## Draw docs/call.svg from a demo call
	$(BIN)/python docs/draw_call.py $(OUT) docs/call.svg

judge-bench: $(READY) ## The Voice Judge on calls with planted defects (an hour or two)
	$(PIP) install -c constraints.txt -e '.[judge,asr]' --group judge-bench
	$(BIN)/python -m voicetrace.judge.providers.prepare build/judge-bench/weights
	nice $(BIN)/python -m benchmarks.judge_bench --out build/judge-bench --weights build/judge-bench/weights $(JUDGE_BENCH_ARGS)

wheel-check: $(READY) ## Build the wheel and use it alone, without any extra
	rm -rf build/wheel $(VENV)-wheel
	$(PIP) wheel --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt build/wheel/*.whl
	cd build/wheel && $(abspath $(VENV))-wheel/bin/python -W error -c "import voicetrace; print(voicetrace.__version__, 'from', voicetrace.__file__)"
	$(VENV)-wheel/bin/python -m pip --disable-pip-version-check check
	$(VENV)-wheel/bin/voicetrace --help

# the environment, made anew where what it holds may have changed
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "voicetrace needs Python 3.11 or newer, found " + sys.version.split()[0] + "; set PYTHON=/path/to/python3.11")'
	@echo "setting up $(VENV); the first time takes a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt pip
	$(PIP) install -c constraints.txt -e '.[$(EXTRAS)]' --group test --group lint
	@touch $@

clean: ## Remove what make made
	rm -rf $(VENV) $(VENV)-wheel build out .pytest_cache .mypy_cache .ruff_cache .hypothesis
