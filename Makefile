# `make demo` and `make test` need Python 3.11 or newer, pip and make; they do their own set-up in .venv.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python -m
# The second name is what newer versions of pip read for the build backend.
PIP    := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(RUN) pip --disable-pip-version-check install -q

.DEFAULT_GOAL := help
.PHONY: help demo paper test quick check coverage dist bench-simulate bench-engines bench-flower docs format venv clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.demo ## digits, one straggler among four workers: waiting for it and not, about a minute
	@$(RUN) asyncsgd demo

paper: $(VENV)/.report ## check ten claims of the paper, in about three minutes: see paper/index.html, docs/measured.md
	@$(RUN) asyncsgd paper --docs docs

# Groups of tests (tests/markers.py) stay in one process, in the order given there. One process more than processors, as
# tests of Ray and Flower mostly wait.
PROCESSES := $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1)))
PYTEST := $(RUN) pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder --durations=10

test: $(VENV)/.dev ## run all tests, on every processor
	@[ ! -x .ci/packages ] || .ci/packages
	$(PYTEST) --budgets

quick: $(VENV)/.quick ## run the tests that need no browser, Ray, Flower or docs build, in about two minutes: before each commit
	HYPOTHESIS_PROFILE=quick $(PYTEST) -n auto tests -m "not (ray or flower or browser or docs or slow)"

coverage: $(VENV)/.dev ## run all tests and say which lines of core, run and engines they reach: see htmlcov/index.html
	@[ ! -x .ci/packages ] || .ci/packages
	$(PYTEST) --cov --cov-report=html
	@for room in core run engines; do \
	  printf '%-8s %s %%\n' $$room "$$($(RUN) coverage report --format=total --include="src/asyncsgd/$$room/*")"; done

dist: $(VENV)/pyvenv.cfg ## build sdist and wheel, and try the wheel in a clean environment without extras
	$(VENV)/bin/python .ci/dist.py

check: $(VENV)/.dev ## lint, formatting, types, import contracts, doctests
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy
	$(VENV)/bin/lint-imports --no-logo
	$(RUN) pytest -q src

bench-simulate: $(VENV)/.dev ## the simulator against C, NumPy, SimPy and torch loops, in one run
	$(VENV)/bin/python benchmarks/simulate

bench-engines: $(VENV)/.dev ## worker processes against queues, threads, torch RPC and Ray, in one run of half an hour
	$(VENV)/bin/python benchmarks/engines

bench-flower: $(VENV)/.dev ## a server's time per update against Flower's own FedAvg, with the same clients, in one run
	$(VENV)/bin/python benchmarks/flower

docs: $(VENV)/.docs ## build the documentation: see site/index.html; broken links and undocumented names fail
	@NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict && echo "Read site/index.html in a browser."

format: $(VENV)/.dev ## format the code and fix what can be fixed by rule
	$(RUN) ruff check --fix-only
	$(RUN) ruff format

venv: $(VENV)/.dev ## only set up .venv, with the tools

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
	@echo "Installing asyncsgd, PyTorch, scikit-learn and what draws figures"
	@$(PIP) -c constraints.txt -e '.[demo,report]'
	@touch $(VENV)/.core $(VENV)/.report $@

$(VENV)/.report: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing asyncsgd and what draws figures"
	@$(PIP) -c constraints.txt -e '.[report]'
	@touch $(VENV)/.core $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing asyncsgd and what builds its documentation"
	@$(PIP) -c constraints.txt -e '.[docs]'
	@touch $(VENV)/.core $@

$(VENV)/.quick: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing asyncsgd and the development tools"
	@$(PIP) -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.core $@

$(VENV)/.dev: pyproject.toml constraints.txt Makefile | $(VENV)/pyvenv.cfg
	@echo "Installing asyncsgd, all its extras and the development tools"
	@$(PIP) -c constraints.txt -e '.[dev,torch,ray,flower,report,docs,tensorboard,mlflow,wandb]'
	@touch $(VENV)/.core $(VENV)/.demo $(VENV)/.report $(VENV)/.docs $(VENV)/.quick $@
