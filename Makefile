# Development targets. Requires python3 (3.11 or newer) and make; a C compiler is optional and makes sawlog fast.
# Everything is installed into .venv in this directory and nowhere else.

PYTHON ?= python3
ARGS ?=
PYTHONS ?=
BIN := .venv/bin
# Stamp files are in .venv, so that removing .venv removes them too.
READY := .venv/.ready
READY_BENCH := .venv/.ready-bench
READY_DIST := .venv/.ready-dist
READY_SERVERS := .venv/.ready-servers

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Pinned versions, for building too: those that the tests last ran with. `make upgrade` renews them.
KNOWN := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt
INSTALL := $(KNOWN) $(BIN)/python tools/install.py
# Override the environment: hundreds of tests start programs, each of which would compile every module again.
export PYTHONDONTWRITEBYTECODE :=
.DEFAULT_GOAL := help
.PHONY: help setup say-demo say-test demo tour check test test-all durations lint format types layers kernel docs dist bench-engine bench-topics bench-spark bench-sql bench-interop bench-objects bench-broker faults mutants asan fuzz-grow kafka-jars suites upgrade clean distclean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: kernel ## create .venv with all development tools; quick the second time (PYTHON=python3.12 to choose one)

demo: say-demo kernel ## main demo: Kafka clients to Spark, exactly once, killed in the middle; and a topic as a table
	@$(BIN)/python examples/demo.py $(ARGS)

tour: kernel ## demo of the log alone: a million records written, read, killed and damaged
	@$(BIN)/python examples/tour.py $(ARGS)

check: $(READY) ## lint, types and layers; under 15 seconds when the caches are warm
	@$(MAKE) --no-print-directory -j 2 types lint layers

# Six workers for two cores: tests often wait for other processes.
test: say-test check kernel ## required to pass: make check and the quick tests
	@$(BIN)/python -m pytest --workers 6 $(ARGS)

test-all: check kernel $(READY_SERVERS) ## include the slow tests, all files on disk, fresh random Hypothesis examples
	@SAWLOG_TESTS_ON_DISK=1 $(BIN)/python -m pytest --workers 4 -m "slow or not slow" --hypothesis-profile=explore $(ARGS)

durations: kernel ## run the quick tests and record their cost in tests/durations.txt
	@$(BIN)/python -m pytest -q --workers 6 --durations-file=tests/durations.txt $(ARGS)

lint: $(READY) ## ruff: mistakes and formatting
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --diff . || { echo "the diff above shows unformatted code: run make format"; exit 1; }

format: $(READY) ## fix formatting with ruff
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

types: $(READY) ## mypy, strict
	@$(BIN)/mypy --no-error-summary

layers: $(READY) ## import-linter: check that imports follow the layers
	@said=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$said"; exit 1; }

kernel: $(READY) ## compile the kernel in place if its source changed (SAWLOG_PURE=1: use plain Python)
	@$(BIN)/python tools/build_kernel.py

docs: kernel ## build the documentation site with API reference and search in build/site; needs no network
	@$(BIN)/python docs/site/make_site.py $(ARGS)

dist: $(READY_DIST) ## build wheel and source archive in dist/ and test them in a new environment (PYTHONS="python3.12 python3.13" for more)
	@$(KNOWN) $(BIN)/python tools/make_dist.py dist $(PYTHONS)

bench-engine: kernel $(READY_BENCH) ## compare the log with alternatives such as LMDB and RocksDB
	@$(BIN)/python benchmarks/engine.py $(ARGS)

bench-topics: kernel $(READY_BENCH) ## compare topics, groups and compaction with a bare log
	@$(BIN)/python benchmarks/topics.py $(ARGS)

bench-spark: kernel $(READY_BENCH) ## compare Spark over sawlog with Spark over Parquet and JSON lines
	@$(BIN)/python benchmarks/spark.py $(ARGS)

bench-sql: kernel $(READY_BENCH) ## compare SQL over topics with DuckDB over Parquet and with jq
	@$(BIN)/python benchmarks/sql.py $(ARGS)

bench-interop: kernel $(READY_BENCH) ## compare importing other systems' logs with copying their files
	@$(BIN)/python benchmarks/interop.py $(ARGS)

bench-objects: kernel $(READY_BENCH) ## measure a store on object storage with 50 ms of added latency per request
	@$(BIN)/python benchmarks/objects.py $(ARGS)

bench-broker: kernel $(READY_BENCH) ## compare the broker with Apache Kafka (make kafka-jars), using the same client
	@$(BIN)/python benchmarks/broker.py $(ARGS)

faults: kernel ## the fault laboratory, long form: crashes, power cuts over recorded calls, errors, every bit, kills, ten million bad inputs (over an hour)
	@$(BIN)/python -m tests.faults crashes --scenarios 100000
	@$(BIN)/python -m tests.faults recorded --scenarios 20000
	@$(BIN)/python -m tests.faults errors
	@$(BIN)/python -m tests.faults threads
	@$(BIN)/python -m tests.faults missing
	@$(BIN)/python -m tests.faults kills --kills 1000
	@$(BIN)/python -m tests.objects.scenario --scenarios 300
	@$(BIN)/python -m tests.objects.torture --seconds 3600 --changes 300
	@$(BIN)/python -m tests.objects.torture --seconds 3600 --changes 300 --server moto
	@$(BIN)/python -m tests.objects.brokerage --rounds 100 --minutes 60
	@$(BIN)/python -m tests.objects.together --minutes 60 --changes 300
	@$(BIN)/python -m tests.faults bits
	@$(BIN)/python -m tests.faults fuzz --executions 10000000 --processes 2

mutants: kernel ## plant known bugs, check that the fault tests find each, update docs/internals/testing.md
	@$(BIN)/python -m tests.faults mutants --first --write $(ARGS)

asan: kernel ## run the kernel under AddressSanitizer and UBSan
	@$(BIN)/python -m tests.faults asan $(ARGS)

fuzz-grow: kernel ## fuzz with atheris and keep inputs that reach new code
	@$(INSTALL) --group fuzz
	@$(BIN)/python -m tests.faults fuzz --coverage --grow --executions 1000000 --seconds 60

kafka-jars: kernel ## download Kafka's jars and Spark's Kafka source (Maven) for tests against Kafka itself
	@$(BIN)/python tools/fetch_kafka.py --connector

suites: kernel ## run other projects' test suites (librdkafka, aiokafka, kafka-python, franz-go) against sawlog and Apache Kafka; ARGS=--help first
	@$(BIN)/python tools/run_suites.py $(ARGS)

upgrade: $(READY) ## upgrade all tools and libraries and record the versions in constraints.txt (then make test)
	@$(BIN)/python tools/install.py --upgrade --upgrade-strategy eager --group dev --group bench --group dist --group servers
	@$(BIN)/python tools/write_constraints.py

say-demo: # before anything takes long
	@echo "the demo takes one to two minutes on two cores, after the installation"

say-test:
	@echo "two to five minutes on two cores, after the installation"

clean: ## remove build and test output; keep .venv
	@rm -rf build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@rm -f src/sawlog/batch/kernel/__init__.*.so src/sawlog/batch/kernel/__init__.*.pyd src/sawlog/batch/kernel.*.so src/sawlog/batch/kernel.*.pyd
	@find src tests tools examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## remove .venv as well
	@rm -rf .venv

$(BIN)/python:
	@command -v $(PYTHON) > /dev/null || { echo "$(PYTHON) not found: name a Python 3.11 or newer, for example make setup PYTHON=python3.12"; exit 1; }
	@$(PYTHON) tools/check_python.py
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "$(PYTHON) -m venv .venv failed: see the output above"; exit 1; }

$(READY): pyproject.toml setup.py constraints.txt | $(BIN)/python
	@echo "installing sawlog and its development tools into .venv: about 125 packages, an 820 MB download the first time"
	@echo "(pyspark alone is 450 MB), 1.8 GB on disk, three to six minutes with a fast connection"
	@$(INSTALL) --group dev
	@touch $@

$(READY_BENCH): $(READY)
	@echo "installing the libraries that the benchmarks compare with: 4 packages, about 20 MB"
	@$(INSTALL) --group bench
	@touch $@

$(READY_DIST): $(READY)
	@echo "installing what builds and checks a release (auditwheel, cibuildwheel, twine): about 35 packages, 25 MB"
	@$(INSTALL) --group dist || { echo "see the output above"; exit 1; }
	@touch $@

$(READY_SERVERS): $(READY)
	@echo "installing object storage servers: 2 packages, 77 MB, 240 MB on disk"
	@$(INSTALL) --group servers || echo "continuing without them: tests that need them are skipped"
	@touch $@
