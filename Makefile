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
# Tests wait about half of their time, so there are more workers than most machines have cores.
PYTEST := $(PY) -m pytest --numprocesses 4 --dist worksteal
# Some images set it, but a process of the driver starts in half the time from compiled modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo dev check test style types quick suite test-faults e2e bench image release manifests protos lock clean

demo: $(VENV)/demo.stamp  ## Run a whole node on this machine, without GPU or cluster.
	@$(PY) -m tensorfusion_dra simulate $(ARGS)

dev: $(VENV)/dev.stamp  ## Set up the development environment.

check: $(VENV)/dev.stamp  ## Check style, types and import directions, and run the tests without processes.
	@$(MAKE) --no-print-directory style
	@$(MAKE) --no-print-directory --jobs=2 types quick

test: $(VENV)/dev.stamp  ## All of `make check`, and the tests with processes.
	@$(MAKE) --no-print-directory style
	@$(MAKE) --no-print-directory --jobs=2 types suite

style:
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports

types:
	$(PY) -m mypy

quick: $(VENV)/collected.stamp
	$(PYTEST) -m "not process and not sweep" $(ARGS)

suite: $(VENV)/collected.stamp
	$(PYTEST) -m "not sweep" $(ARGS)

# Compiles all modules once. Otherwise each test process would compile them in a new environment.
$(VENV)/collected.stamp: $(VENV)/dev.stamp
	@$(PY) -m pytest --collect-only --quiet >/dev/null || true # a failed collection fails again in `suite`, which shows it
	@touch $@

test-faults: export FAULT_EFFORT ?= 1
test-faults: $(VENV)/dev.stamp  ## Run what tries every step, damage or input, and the checks in hack on stand-ins.
	$(PYTEST) -m "sweep or hypothesis" $(ARGS)

e2e: $(VENV)/dev.stamp  ## Run the tests on the real cluster that KUBECONFIG names; ARGS="--driver host" runs without a DaemonSet.
	$(PY) -m pytest tests/e2e $(ARGS)

bench: $(VENV)/demo.stamp  ## Measure start time, memory, latencies and API writes of the node plugin.
	@$(PY) hack/bench $(ARGS)

image:  ## Build the image without a registry or a daemon (needs root, buildah, debootstrap) as dist/image.tar.
	@hack/image --check
	@$(MAKE) --no-print-directory $(VENV)/demo.stamp
	PYTHON=$(PY) hack/image $(ARGS)

release: export PROJECT ?= hack/project.toml
release: $(VENV)/release.stamp  ## Build and check all artifacts of a release in dist/release; PROJECT=hack/project.example.toml rehearses it.
	PYTHON=$(CURDIR)/$(PY) hack/release
	$(if $(ONLY),,hack/release-check)

manifests: $(VENV)/dev.stamp  ## Render daemonset/install from the chart, after a change in daemonset/chart.
	@$(PY) hack/manifests

protos: $(VENV)/dev.stamp  ## Regenerate the gRPC messages after a change in proto/.
	PYTHON=$(PY) hack/generate-protos

lock: $(VENV)/release.stamp  ## Pin the packages again after a change in pyproject.toml; ARGS=--upgrade takes new versions.
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" hack/lock $(ARGS)

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON): expected Python 3.11 or later (make PYTHON=/path/to/python3)" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV)
	@$(PIP) install --no-compile --require-hashes -r hack/requirements/pip.txt

# --no-compile: most modules of these packages are never imported; the others are compiled when they are.
$(VENV)/%.stamp: hack/requirements/%.txt $(wildcard hack/requirements/*.txt) | $(VENV)/bin/python
	@echo "installing $< into $(VENV)" >&2
	@$(PIP) install --no-compile --require-hashes -r $<
	@touch $@
