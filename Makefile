# Everything runs from .venv, which the first target that needs it sets up from hash-pinned packages.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
# `make test PYTHON=python3.13` beside a .venv of another version leaves that as it is, and uses .venv-3.13.
ifneq ($(origin PYTHON),file)
VERSION := $(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
$(if $(VERSION),,$(error PYTHON=$(PYTHON): expected Python 3.11 or later (make PYTHON=/path/to/python3)))
ifeq ($(wildcard .venv/lib/python$(VERSION)),)
VENV := $(if $(wildcard .venv/bin/python),.venv-$(VERSION),.venv)
endif
endif
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
# Keeps the order of the files. By default files with few tests run last, and the longest tests are among them.
PYTEST := $(PY) -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder
# Some images set it, but a process of the driver starts in half the time from compiled modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test types suite test-faults e2e bench image manifests protos lock clean

demo: $(VENV)/demo.stamp  ## Run a whole node on this machine, without GPU or cluster.
	@$(PY) -m tensorfusion_dra simulate $(ARGS)

test: $(VENV)/dev.stamp  ## Check style, types and import directions, and run all tests.
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports
	@$(MAKE) --no-print-directory --jobs=2 types suite

# Runs in parallel with the tests, which wait about half of their time.
types:
	$(PY) -m mypy

suite: $(VENV)/collected.stamp
	$(PYTEST) $(ARGS)

# Compiles all modules once. Otherwise each test process would compile them in a new environment.
$(VENV)/collected.stamp: $(VENV)/dev.stamp
	@$(PY) -m pytest --collect-only --quiet >/dev/null || true # a failed collection fails again in `suite`, which shows it
	@touch $@

test-faults: export FAULT_EFFORT ?= 1
test-faults: $(VENV)/dev.stamp  ## Run all fault tests (kills, damaged files, odd inputs); `make test` runs a fixed sample.
	$(PYTEST) tests/faults $(ARGS)
	$(PYTEST) -m hypothesis --ignore tests/faults $(ARGS)

e2e: $(VENV)/dev.stamp  ## Run the tests on the real cluster that KUBECONFIG names; ARGS="--driver host" runs without a DaemonSet.
	$(PY) -m pytest tests/e2e $(ARGS)

bench: $(VENV)/demo.stamp  ## Measure start time, memory, latencies and API writes of the node plugin.
	@$(PY) hack/bench $(ARGS)

image:  ## Build the image without a registry or a daemon (needs root, buildah, debootstrap) as dist/image.tar.
	@hack/image --check
	@$(MAKE) --no-print-directory $(VENV)/demo.stamp
	hack/image $(ARGS)

manifests: $(VENV)/dev.stamp  ## Render daemonset/install from the chart, after a change in daemonset/chart.
	@$(PY) hack/manifests

protos: $(VENV)/dev.stamp  ## Regenerate the gRPC messages after a change in proto/.
	PYTHON=$(PY) hack/generate-protos

lock: $(VENV)/dev.stamp  ## Pin the packages again after a change in pyproject.toml.
	hack/lock

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON): expected Python 3.11 or later (make PYTHON=/path/to/python3)" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV)
	@$(PIP) install --no-compile --require-hashes -r hack/requirements/pip.txt

# --no-compile: most modules of these packages are never imported; the others are compiled when they are.
$(VENV)/%.stamp: hack/requirements/%.txt | $(VENV)/bin/python
	@echo "installing $< into $(VENV)" >&2
	@$(PIP) install --no-compile --require-hashes -r $<
	@touch $@
