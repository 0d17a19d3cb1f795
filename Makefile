# Every target needs Python 3.11 or newer, pip and make, and installs what it uses into .venv.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python -m
# Tests start hundreds of interpreters: each would compile every module again where a shell forbids to keep bytecode.
export PYTHONDONTWRITEBYTECODE :=
# Newer versions of pip read the second name for the build backend.
PIP    := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(RUN) pip --disable-pip-version-check install -q

.DEFAULT_GOAL := help
.PHONY: help demo paper test quick check coverage dist bench-simulate bench-engines bench-flower bench-trainer bench-far-apart bench-federated docs format venv clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.demo ## train on digits with one slow worker of four, with and without waiting for it (about a minute)
	@$(RUN) asyncsgd demo

paper: $(VENV)/.report ## measure ten claims of the paper (three minutes); writes paper/index.html and docs/measured.md
	@$(RUN) asyncsgd paper --docs docs

# Groups of tests (tests/markers.py) stay in one process, in the order given there. We start one process more than there
# are CPUs, because tests of Ray and Flower mostly wait.
PROCESSES := $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1)))
PYTEST := $(RUN) pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder --durations=10

test: $(VENV)/.dev ## run all tests, on every CPU
	@[ ! -x .ci/packages ] || .ci/packages
	$(PYTEST) --budgets

quick: $(VENV)/.quick ## run the tests for before each commit: no browser, Ray, Flower or docs build (about two minutes)
	HYPOTHESIS_PROFILE=quick $(PYTEST) -n auto tests --ignore=tests/flower -m "not (ray or flower or browser or docs or slow)"

coverage: $(VENV)/.dev ## run all tests and report the coverage of core, run and engines; writes htmlcov/index.html
	@[ ! -x .ci/packages ] || .ci/packages
	$(PYTEST) --cov --cov-report=html
	@for room in core run engines; do \
	  printf '%-8s %s %%\n' $$room "$$($(RUN) coverage report --format=total --include="src/asyncsgd/$$room/*")"; done

dist: $(VENV)/pyvenv.cfg ## build sdist and wheel, and try the wheel in a clean environment without extras
	$(VENV)/bin/python .ci/dist.py

check: $(VENV)/.dev ## run the linter, format check, mypy, import contracts and doctests
	$(RUN) ruff check
	$(RUN) ruff check --preview --select PLW1514 # a file is opened with its encoding
	$(RUN) ruff format --check
	$(RUN) mypy
	$(VENV)/bin/lint-imports --no-logo
	$(RUN) pytest -q src

bench-simulate: $(VENV)/.dev ## compare the simulator with C, NumPy, SimPy and torch loops
	$(VENV)/bin/python benchmarks/simulate

bench-engines: $(VENV)/.dev ## compare worker processes with queues, threads, torch RPC and Ray (half an hour)
	$(VENV)/bin/python benchmarks/engines

bench-flower: $(VENV)/.dev ## compare the server's time per update with Flower's own FedAvg (ten minutes)
	$(VENV)/bin/python benchmarks/flower

bench-trainer: $(VENV)/.dev ## measure the trainer beside torch's optimizers, DDP and a plain loop
	$(VENV)/bin/python benchmarks/trainer

bench-far-apart: $(VENV)/.dev ## compare DiLoCo, asynchronous DiLoCo and DDP with unequal workers (twenty minutes)
	$(VENV)/bin/python benchmarks/far_apart

bench-federated: $(VENV)/.dev ## compare federated methods beside slow clients, also in Flower's simulation (half an hour)
	$(VENV)/bin/python benchmarks/federated

docs: $(VENV)/.docs ## build the documentation, site/index.html; fails on broken links and undocumented names
	@NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict && echo "Open site/index.html in a browser."

format: $(VENV)/.dev ## format the code and apply the linter's automatic fixes
	$(RUN) ruff check --fix-only
	$(RUN) ruff format

venv: $(VENV)/.dev ## set up .venv with all extras and development tools

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests examples benchmarks experiments -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/pyvenv.cfg:
	@command -v "$(PYTHON)" >/dev/null || \
	  { echo "asyncsgd needs Python 3.11 or newer; '$(PYTHON)' was not found. Try: make PYTHON=python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "asyncsgd needs Python 3.11 or newer; '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1). Try: make PYTHON=python3.11" >&2; exit 1; }
	@echo "Setting up $(VENV) (once)"
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing asyncsgd"
	@$(PIP) -c constraints.txt -e .
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing asyncsgd, PyTorch, scikit-learn and the plotting libraries"
	@$(PIP) -c constraints.txt -e '.[demo,report]'
	@touch $(VENV)/.core $(VENV)/.report $@

$(VENV)/.report: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing asyncsgd and the plotting libraries"
	@$(PIP) -c constraints.txt -e '.[report]'
	@touch $(VENV)/.core $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing asyncsgd and the documentation tools"
	@$(PIP) -c constraints.txt -e '.[docs]'
	@touch $(VENV)/.core $@

$(VENV)/.quick: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing asyncsgd, PyTorch, the plotting libraries and the development tools"
	@$(PIP) -c constraints.txt -e '.[dev,torch,report]'
	@touch $(VENV)/.core $(VENV)/.report $@

$(VENV)/.dev: pyproject.toml constraints.txt Makefile | $(VENV)/pyvenv.cfg
	@echo "Installing asyncsgd, all its extras and the development tools"
	@$(PIP) -c constraints.txt -e '.[dev,torch,ray,flower,report,docs,tensorboard,mlflow,wandb]'
	@touch $(VENV)/.core $(VENV)/.demo $(VENV)/.report $(VENV)/.docs $(VENV)/.quick $@
