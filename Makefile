# Everything a contributor runs. Each target first builds the environment it needs.

VENV := .venv
BENCH_VENV := .venv-bench
LOCK := requirements/lock.txt
SECONDS ?= 600
JOBS ?= 3
MODEL ?= checksum

# The first of these that runs, is new enough and can make environments; or `make PYTHON=...`.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	"$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	>/dev/null 2>&1 && { echo "$$python"; break; }; done)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP_INSTALL := -m pip install -qq

# Tests start hundreds of processes, and each would compile Penstock anew.
unexport PYTHONDONTWRITEBYTECODE

# $(call make_venv,DIRECTORY): an environment, kept if there is one that runs.
define make_venv
	@"$(1)/bin/python" -c '' 2>/dev/null || { \
		python='$(PYTHON)'; \
		test -n "$$python" || { echo >&2 \
			"Penstock needs Python 3.11 or newer with its venv module, and found none." \
			"Install one (on Debian also python3-venv), or name it: make PYTHON=/path/to/python"; \
			exit 1; }; \
		echo "Making $(1) with $$("$$python" --version)"; \
		"$$python" -m venv --clear "$(1)"; }
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: demo
demo: venv  ## see Penstock at work
	@$(VENV)/bin/penstock demo

# Files of tests are dealt out to so many processes. Real processes and signals on a busy machine:
# what failed is run once more, alone, and must pass then. Where pytest ended with another code than
# 1, it has not run all tests, and does not know what failed.
PYTEST := $(VENV)/bin/python -m pytest
IN_PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: test
test: venv  ## run the tests (JOBS=3 of their files at a time)
	$(PYTEST) $(IN_PARALLEL) || { \
		test $$? -eq 1 && $(PYTEST) --last-failed --last-failed-no-failures=none; }

.PHONY: check
check: venv  ## the gate: format, lint, types, layers, tests
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(PYTEST) $(IN_PARALLEL)

.PHONY: format
format: venv  ## format the code and fix what lint can fix
	$(VENV)/bin/ruff check --fix-only
	$(VENV)/bin/ruff format

.PHONY: bench
bench: $(BENCH_VENV)/.stamp  ## measure Penstock beside what people use today
	$(BENCH_VENV)/bin/python -m benchmarks.core
	$(BENCH_VENV)/bin/python -m benchmarks.models

# With the machine's own Python, which has TensorFlow for its GPU. `make bench-gpu ARGS=--quick`.
.PHONY: bench-gpu
bench-gpu:  ## measure ResNet-50 on a GPU, with the machine's own python3
	PYTHONPATH=src python3 -m benchmarks.gpu $(ARGS)

# All that needs a GPU, as far as SECONDS go; the next command goes on with the rest, in the same
# folder. `make gpu-visit SECONDS=580 ARGS="--only limit,loads"`; ARGS=--rehearse without a GPU.
VISIT ?= build/gpu-visit
.PHONY: gpu-visit
gpu-visit:  ## tests and benchmarks on a GPU, in order, within SECONDS=600 (VISIT=build/gpu-visit)
	PYTHONPATH=src python3 -m benchmarks.visit --out $(VISIT) --seconds $(SECONDS) $(ARGS)

.PHONY: soak
soak: venv  ## run it for long and look for leaks (SECONDS=600 MODEL=checksum|digits)
	$(VENV)/bin/python -m benchmarks.soak --model $(MODEL) --seconds $(SECONDS)

.PHONY: fuzz
fuzz: venv  ## hostile clients say random things to an engine for long (SECONDS=600)
	PENSTOCK_FUZZ_SECONDS=$(SECONDS) $(PYTEST) -o faulthandler_timeout=0 \
		tests/engine/test_hostile.py -k for_long

.PHONY: kills
kills: venv  ## kill offline jobs 30 times each, at any moment, and compare what they write
	PENSTOCK_KILLS=30 $(VENV)/bin/python -m pytest -o faulthandler_timeout=600 \
		tests/offline/test_resume.py -k killed

# With the machine's own Python, which has TensorFlow for its GPU, and perhaps an older pytest
# without plugins: so neither our options nor warnings as errors.
.PHONY: test-gpu
test-gpu:  ## run the tests that need a GPU, with the machine's own python3
	PYTHONPATH=src python3 -m pytest -o addopts= -o filterwarnings=default \
		--import-mode=importlib -ra -m gpu tests/gpu

.PHONY: venv
venv: $(VENV)/.stamp  ## only make the environment

.PHONY: lock
lock:  ## resolve requirements/lock.txt anew, on the oldest Python we support
	python3.11 -m venv --clear .venv-lock
	.venv-lock/bin/python $(PIP_INSTALL) hatchling editables -e '.[dev]'
	{ echo '# All that `make check` installs, for Python 3.11 and newer. Made by `make lock`.'; \
		.venv-lock/bin/python -m pip freeze --exclude-editable; } > $(LOCK)
	rm -rf .venv-lock

.PHONY: clean
clean:  ## remove all that make has made, environments too
	rm -rf $(VENV) $(BENCH_VENV) .venv-lock build dist src/*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.stamp: pyproject.toml $(LOCK) requirements/without-dependencies.txt
	$(call make_venv,$(VENV))
	@echo "Installing Penstock and its tools into $(VENV)"
	@$(VENV)/bin/python -m pip uninstall -qq -y tf_keras  # else the check below finds it incomplete
	@$(VENV)/bin/python $(PIP_INSTALL) -r $(LOCK)
	@$(VENV)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@$(VENV)/bin/python -m pip check >/dev/null || { $(VENV)/bin/python -m pip check; exit 1; }
	@$(VENV)/bin/python $(PIP_INSTALL) --no-deps -r requirements/without-dependencies.txt
	@touch $@

$(BENCH_VENV)/.stamp: pyproject.toml benchmarks/requirements.txt
	$(call make_venv,$(BENCH_VENV))
	@echo "Installing Penstock and what it is measured against into $(BENCH_VENV)"
	@$(BENCH_VENV)/bin/python $(PIP_INSTALL) -e . -r benchmarks/requirements.txt
	@touch $@
