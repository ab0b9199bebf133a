# make demo, make test: everything from a fresh clone, with only Python (3.10 or newer) and make.
# Overridable: make test TORCH=2.15.0 VENV=.venvs/t215; PYTHON=python3.12; PIP's own variables (PIP_INDEX_URL, ...) count.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory
# Each test process would compile the sources of this project and the assertions of the tests again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV ?= .venv
# The everyday version. Named, because pip would otherwise take the newest torch; what its build is (CPU, CUDA) is up to
# the index that pip is configured with.
TORCH ?= 2.13.0

ARGS ?=
EXTRAS ?= test,lint
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-torch-$(TORCH)
NOT_OTHER := not slow and not systemd and not versions and not buckets and not container
PYTEST_ARGS ?=

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  \033[1mmake %-21s\033[0m %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# ---------------------------------------------------------------- set-up

.PHONY: venv
venv: $(STAMP) ## The virtual environment that all the others use (made when it is missing or out of date)

$(STAMP): pyproject.toml .ci/prerequisites.py
	@$(PYTHON) .ci/prerequisites.py
	@echo "make: installing torch $(TORCH) and precompiled in $(VENV) (about a minute, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.installed-torch-*
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)'
	@# An environment and a checkout of an earlier commit have the distribution under this name.
	@$(BIN)/python -m pip uninstall -qq --yes precompiled
	@rm -rf precompiled.egg-info
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]' 'torch==$(TORCH)'
	@touch $@

# A real S3 server and its client, for those that need a bucket.
FLEET := $(VENV)/.installed-fleet

$(FLEET): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test-s3]' 'torch==$(TORCH)'
	@touch $@

# A real Ray cluster.
FARM := $(VENV)/.installed-farm

$(FARM): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test-farm]' 'torch==$(TORCH)'
	@touch $@

# ---------------------------------------------------------------- see it

.PHONY: demo
demo: $(STAMP) ## A model trains without waiting for its compile, beside plain torch.compile (under 4 minutes)
	@$(BIN)/python examples/demo/demo.py

.PHONY: demo-fleet
demo-fleet: $(FLEET) ## Three hosts and a bucket on this machine: each graph compiled once (under 4 minutes)
	@$(BIN)/python examples/demo/fleet.py

.PHONY: bench bench-quick bench-full bench-gpu bench-scale bench-fleet bench-farm bench-watch bench-packages
bench: $(STAMP) ## All measures against their goals, side by side with torch.compile (about 40 minutes; ARGS=--help)
	@$(BIN)/python -m benchmarks $(ARGS)
bench-quick: $(STAMP) ## The same with small models and fewer repeats: does it work, not what it is (minutes)
	@$(BIN)/python -m benchmarks --quick $(ARGS)
bench-full: $(STAMP) ## Starts of six models by all contenders, trained or not, static or dynamic (hours; ARGS=--help)
	@$(BIN)/python -m benchmarks.starts $(ARGS)
bench-gpu: $(STAMP) ## On this host's GPU: starts of GPT-2, a Llama of 1B and a ResNet-50, and steps after the swap (half an hour; ARGS=--help)
	@$(BIN)/python -m benchmarks.starts --device cuda --shapes static $(ARGS)
	@$(if $(filter --help,$(ARGS)),true,$(BIN)/python -m benchmarks --device cuda --only c $(filter --quick,$(ARGS)))
bench-scale: $(STAMP) ## How costs grow with artifacts, clients and jobs (about ten minutes; ARGS=--help)
	@$(BIN)/python -m benchmarks.scale $(ARGS)
bench-fleet: $(FLEET) ## 1,000 simulated hosts start cold at once, some are killed: each graph compiled once (an hour; ARGS=--help)
	@$(BIN)/python -m benchmarks.fleet $(ARGS)
bench-farm: $(FARM) ## Twelve graphs on a Ray cluster of one, two and three nodes of one core each (minutes; ARGS=--help)
	@$(BIN)/python -m benchmarks.farm $(ARGS)
bench-watch: $(STAMP) ## Watch mode: from a save to ready, and the next run beside torch.compile's (minutes; ARGS=--help)
	@$(BIN)/python -m benchmarks.watch $(ARGS)
bench-packages: $(STAMP) ## Packages: the first call of a process that traces nothing (minutes; ARGS=--recording: that records)
	@$(BIN)/python -m benchmarks.packages --first-call $(ARGS)

.PHONY: architectures architectures-packages
architectures: $(STAMP) ## A table of 27 architectures: by the daemon, hit the next time, equal to eager (half an hour)
	@$(BIN)/python -m benchmarks.architectures $(ARGS)
architectures-packages: $(STAMP) ## The same with packages: no frame is traced in the second process (half an hour)
	@$(BIN)/python -m benchmarks.packages $(ARGS)

.PHONY: programs
programs: ## Programs of 44 libraries' users, three runs each: served, traced, equal (installs the libraries; ARGS=--help)
	@$(MAKE) venv VENV=.venvs/programs EXTRAS=test,programs
	@.venvs/programs/bin/python -m benchmarks.programs $(ARGS)

.PHONY: ranks
ranks: $(STAMP) ## Distributed programs by torchrun and gloo: each rank right, served, compiled once (half an hour; ARGS=--help)
	@$(BIN)/python -m benchmarks.ranks $(ARGS)

.PHONY: bench-ranks
bench-ranks: $(STAMP) ## A job's second start beside plain's warm one; 64 ranks' compiles beside one's (half an hour)
	@$(BIN)/python -m benchmarks.ranks.starts $(ARGS)
	@$(BIN)/python -m benchmarks.ranks.many

.PHONY: edits
edits: $(STAMP) ## Starts after an edit: what is traced, beside torch.compile's warm start (half an hour; ARGS=--help)
	@$(BIN)/python -m benchmarks.edits $(ARGS)

.PHONY: operators
operators: $(STAMP) ## Every operator that torch has samples for: by the daemon, equal to eager (an hour; ARGS=--help)
	@$(BIN)/python -m benchmarks.operators $(ARGS)

.PHONY: interpreter
interpreter: $(STAMP) ## What artifacts for CUDA compute, by Triton's interpreter, without a GPU (an hour; ARGS=--help)
	@$(BIN)/python -m benchmarks.interpreter $(ARGS)

.PHONY: torch-tests
torch-tests: $(STAMP) ## torch's own tests of torch.compile, beside plain (ARGS=FOLDER, of a checkout of pytorch)
	@$(BIN)/python -m benchmarks.torch_tests $(ARGS)

# ---------------------------------------------------------------- check it

.PHONY: test
test: lint ## Lint, then the tests for each commit: of every part, and one program per promise (CPU; no root)
# One run, so that its closing line counts everything; two processes, each with a daemon and a warm worker.
	@$(BIN)/python -m pytest -p tests.lanes -n 2 -m 'not integration and $(NOT_OTHER)' --durations=20 $(PYTEST_ARGS)

.PHONY: test-integration
test-integration: $(STAMP) ## Whole programs with a daemon, its workers and watches (CPU; no root; 15 minutes)
	@$(BIN)/python -m pytest -p tests.lanes -n 2 -m 'integration and $(NOT_OTHER)' --durations=20 $(PYTEST_ARGS)

.PHONY: test-all
test-all: $(STAMP) ## Every suite that this machine can run, with the time of each (ARGS=--without SUITE)
	@$(BIN)/python tools/test_all.py $(ARGS)

.PHONY: test-slow
test-slow: $(STAMP) ## The tests that take minutes each
	@$(BIN)/python -m pytest -p tests.lanes -n 2 -m slow $(PYTEST_ARGS)

# In the environments of test-buckets and test-versions, if they are installed. The run says what it could not try.
.PHONY: test-faults
test-faults: $(STAMP) ## Faults of processes, files, disks, clocks and peers, many times each (an hour; ARGS='--fault KIND', --docs, --short, --nightly)
	@test -x .venvs/buckets/bin/python && python=.venvs/buckets/bin/python || python=$(BIN)/python
	@PRECOMPILED_VERSION_TESTS=installed $$python -m pytest -p tests.lanes \
	    -p tests.faults.plugin -n 2 -m 'not systemd and not container and not gpu' $(ARGS) $(PYTEST_ARGS)

.PHONY: test-ranks
test-ranks: $(STAMP) ## Ranks that do not start alike: late, killed, evicted, cold (STARTS=200 of them; 20 minutes)
	@PRECOMPILED_STARTS=$(or $(STARTS),200) $(BIN)/python -m pytest -m slow tests/chaos/test_uneven_ranks.py $(PYTEST_ARGS)

.PHONY: test-farm
test-farm: $(FARM) ## The tests of a farm that need Ray: a cluster of five nodes on this machine (installs it; minutes)
	@$(BIN)/python -m pytest tests/farm/test_farm_programs.py $(PYTEST_ARGS)

.PHONY: test-buckets
test-buckets: ## A remote in S3's, Google's and Azure's storage, by real servers here (installs them, Azure's by npm; minutes)
	@$(MAKE) venv VENV=.venvs/buckets EXTRAS=test,test-buckets
	@if command -v npm > /dev/null; then npm install --silent --no-audit --no-fund --prefix .venvs/buckets azurite@3.37.0; fi
	@.venvs/buckets/bin/python -m pytest -p tests.lanes -n 2 -m buckets $(PYTEST_ARGS)

.PHONY: test-container
test-container: $(STAMP) ## An image with a base store, built and run (root; Debian: podman runc debootstrap; minutes)
	@$(BIN)/python -m pytest -m container $(PYTEST_ARGS)

.PHONY: test-systemd
test-systemd: $(STAMP) ## A real systemd, booted in a container (root; Debian: systemd-container)
	@$(BIN)/python -m pytest -m systemd $(PYTEST_ARGS)

.PHONY: ablation
ablation: $(STAMP) ## Packages' soundness cases, without each kind of fact in turn (minutes per kind; ARGS=KIND ...)
	@$(BIN)/python tests/package_ablation.py $(ARGS)

.PHONY: fuzz
fuzz: $(STAMP) ## Random programs with swaps at random points, beside plain torch.compile (ARGS=--help)
	@$(BIN)/python -m tests.fuzz $(ARGS)

.PHONY: fuzz-frames
fuzz-frames: $(STAMP) ## A million fuzzed messages to a real daemon: it lives, replies and does not grow (8 minutes; ARGS=--help)
	@$(BIN)/python -m tests.fuzz.frames $(ARGS)

.PHONY: fuzz-packages
fuzz-packages: $(STAMP) ## 2,000 random programs in which an input decides a value, in both modes of packages: as eager (an hour or more; ARGS=--help)
	@$(BIN)/python -m tests.fuzz.packages $(ARGS)

.PHONY: test-versions
test-versions: $(STAMP) ## One daemon for virtual environments with different torch versions (installs them)
	@$(BIN)/python -m pytest -p tests.lanes -n 2 -m versions $(PYTEST_ARGS)

.PHONY: test-gpu
test-gpu: $(STAMP) ## CUDA: on a GPU, or on a made-up one with torch 2.11 and 2.15 (installs them; ARGS=--help)
	@$(BIN)/python tools/test_gpu.py $(ARGS) $(PYTEST_ARGS)

.PHONY: gpu-check gpu-check-wheels
gpu-check: $(STAMP) ## Nine minutes that prove the GPU's path: tests, starts, artifacts (without a GPU: a dry run; ARGS=--help)
	@$(BIN)/python -m benchmarks.gpu_check $(ARGS)
gpu-check-wheels: $(STAMP) ## What .ci/gpu-check needs on a machine with torch but no package index (ARGS="--python-version 3.12")
	@$(BIN)/python -m pip download --quiet --dest .gpu-check --only-binary :all: --no-deps $(ARGS) msgspec watchdog setuptools wheel

.PHONY: lint
lint: $(STAMP) ## ruff, mypy, import directions, prose, and the links of the docs
	@$(BIN)/python tools/lint

.PHONY: docs
docs: $(STAMP) ## Build the documentation as a site with search (build/site/index.html); a broken link is an error
	@$(BIN)/zensical build --clean --strict

# ---------------------------------------------------------------- install it

.PHONY: install-systemd
install-systemd: $(STAMP) ## The systemd units, of this checkout (ARGS=--help)
	@$(BIN)/python -m precompiled.systemd.install $(ARGS)

.PHONY: dist
dist: $(STAMP) ## The sdist and the wheel of the last commit, built twice to the same bytes (dist/)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[dist]'
	@$(BIN)/python tools/dist.py --check $(ARGS)

.PHONY: clean
clean: ## Remove what was made here, the virtual environment too
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .cache .hypothesis benchmarks/results
	@find . -name __pycache__ -not -path './.venvs/*' -prune -exec rm -rf {} +
