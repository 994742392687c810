# `make study` on a fresh machine with Python 3.11 or newer installs everything into .venv and runs the default study.
PYTHON ?= python3
CORES ?= $(shell nproc)
BIN := .venv/bin
READY := .venv/.ready
BASE ?= main
SNAKEMAKE := $(BIN)/snakemake --cores $(CORES)

.DEFAULT_GOAL := help
.PHONY: help setup study quick wheel test runtimes docs benchmark ratios accuracy fit check lint format lock clean

help: ## Say what can be made
	@awk -F ': .*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Install the locked dependencies into .venv, and compile what commands and studies need
	@echo "compiling what commands and studies need (a few minutes, once)"
	@.ci/compile $(CORES)

$(READY): requirements.lock pyproject.toml
	@.ci/environment "$(PYTHON)" .venv
	@touch $@

study: $(READY) ## Run the default study; the report is results/report/report.html (CORES=4 to use four)
	$(SNAKEMAKE)

quick: $(READY) ## Run one model on three designs, with its report, in minutes
	$(SNAKEMAKE) --configfile config/studies/quick.yaml

wheel: $(READY) ## Build the wheel, install it elsewhere, and ask it there
	@.ci/wheel

test: $(READY) ## Install the programs that tests need, where that is permitted, and run every test
	@.ci/system-packages
	@.ci/axe
	$(BIN)/pytest -n $(CORES) --dist worksteal

runtimes: ## Install Megatron-Core, torchtitan and DeepSpeed into .venv-runtimes, and run the tests that ask them
	@.ci/runtimes "$(PYTHON)" .venv-runtimes

docs: ## Build the site of the documents into site/
	.ci/docs "$(PYTHON)" .venv-docs

benchmark: $(READY) ## Time every stage, and draw its cost against size into .benchmarks/
	$(BIN)/pytest tests/benchmarks --benchmark-enable

ratios: $(READY) ## Time the benchmarks of this tree against those of a commit (BASE=main)
	@$(BIN)/python .ci/ratios $(BASE)

accuracy: $(READY) ## Compare errors of predictions by source, part and interval with those of a commit (BASE=main)
	@$(BIN)/python .ci/accuracy $(BASE)

fit: $(READY) ## Fit the constants of config/measured.yaml together to the published runs, and without each source
	@$(BIN)/python .ci/fit

check: $(READY) ## Lint, and run all tests that take no seconds, in four minutes on two cores; `make test` runs every test
	@.ci/lint
	$(BIN)/pytest -n $(CORES) --dist worksteal -m "not (slow or long or workflow or browser)"

lint: $(READY) ## Check style, types, layers, spelling and the workflow
	@.ci/lint

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile rules

lock: $(READY) ## Resolve the newest versions that pyproject.toml allows into requirements.lock
	.ci/lock --upgrade

clean: ## Remove environment and caches; results stay
	rm -rf .venv .venv-runtimes .venv-docs site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks .axe
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
