# Everything runs from .venv, which the first target that needs it sets up from hash-pinned packages.
SHELL := /bin/bash
PYTHON ?= python3
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
# In the order of the files: by default those of few tests come last, and the longest are among them.
PYTEST := $(PY) -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder
# Some images set it; but a process of the driver starts in half the time from compiled modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test types suite test-faults e2e bench soak image manifests protos lock clean

demo: .venv/demo.stamp  ## The whole node on this machine: no GPU, no cluster.
	@$(PY) -m tensorfusion_dra simulate $(ARGS)

test: .venv/dev.stamp  ## Style, types, import arrows and all tests.
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	.venv/bin/lint-imports
	@$(MAKE) --no-print-directory --jobs=2 types suite

# Beside the tests, which wait as much as they work.
types:
	$(PY) -m mypy

suite: .venv/collected.stamp
	$(PYTEST) $(ARGS)

# Each process of the tests would compile everything anew if all of them met a new environment at once.
.venv/collected.stamp: .venv/dev.stamp
	@$(PY) -m pytest --collect-only --quiet >/dev/null || true # what fails to be collected fails again, and is shown then
	@touch $@

test-faults: export FAULT_EFFORT ?= 1
test-faults: .venv/dev.stamp  ## All kills, damages and odd inputs, of which `make test` runs a fixed sample.
	$(PYTEST) tests/faults $(ARGS)
	$(PYTEST) -m hypothesis --ignore tests/faults $(ARGS)

e2e: .venv/dev.stamp  ## Everything on the real cluster that KUBECONFIG names; ARGS="--driver host" without a DaemonSet.
	$(PY) -m pytest tests/e2e $(ARGS)

bench: .venv/demo.stamp  ## Start time, memory, latencies and API writes of the node plugin, and its budgets.
	@$(PY) hack/bench $(ARGS)
	@$(PY) hack/budgets

soak: .venv/demo.stamp  ## Whether the node plugin stays as it is while pods come and go.
	@$(PY) hack/soak $(ARGS)

image: .venv/demo.stamp  ## The image, without a registry and without a daemon; its size, start time and memory.
	hack/image $(ARGS)

manifests: .venv/dev.stamp  ## Every overlay and the chart, rendered and validated for Kubernetes 1.34 to 1.37.
	@$(PY) hack/manifests

protos: .venv/dev.stamp  ## The generated messages, after a change in proto/.
	PYTHON=$(PY) hack/generate-protos

lock: .venv/dev.stamp  ## New pins, after a change in pyproject.toml.
	hack/lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON): expected Python 3.11 or later (make PYTHON=/path/to/python3)" >&2; exit 1; }
	@$(PYTHON) -m venv .venv

# --no-compile: most modules of these packages are never imported; those that are, get compiled then.
.venv/%.stamp: hack/requirements/%.txt | .venv/bin/python
	@echo "installing $< into .venv" >&2
	@$(PIP) install --no-compile --require-hashes -r $<
	@touch $@
