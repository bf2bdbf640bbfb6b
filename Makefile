# Everything runs from .venv, which the first target that needs it sets up from hash-pinned packages.
SHELL := /bin/bash
PYTHON ?= python3
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
# Keeps the order of the files. By default files with few tests run last, and the longest tests are among them.
PYTEST := $(PY) -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder
# Some images set it, but a process of the driver starts in half the time from compiled modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test types suite test-faults e2e bench soak image manifests protos lock clean

demo: .venv/demo.stamp  ## Run a whole node on this machine, without GPU or cluster.
	@$(PY) -m tensorfusion_dra simulate $(ARGS)

test: .venv/dev.stamp  ## Check style, types and import directions, and run all tests.
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	.venv/bin/lint-imports
	@$(MAKE) --no-print-directory --jobs=2 types suite

# Runs in parallel with the tests, which wait about half of their time.
types:
	$(PY) -m mypy

suite: .venv/collected.stamp
	$(PYTEST) $(ARGS)

# Compiles all modules once. Otherwise each test process would compile them in a new environment.
.venv/collected.stamp: .venv/dev.stamp
	@$(PY) -m pytest --collect-only --quiet >/dev/null || true # a failed collection fails again in `suite`, which shows it
	@touch $@

test-faults: export FAULT_EFFORT ?= 1
test-faults: .venv/dev.stamp  ## Run all fault tests (kills, damaged files, odd inputs); `make test` runs a fixed sample.
	$(PYTEST) tests/faults $(ARGS)
	$(PYTEST) -m hypothesis --ignore tests/faults $(ARGS)

e2e: .venv/dev.stamp  ## Run the tests on the real cluster that KUBECONFIG names; ARGS="--driver host" runs without a DaemonSet.
	$(PY) -m pytest tests/e2e $(ARGS)

bench: .venv/demo.stamp  ## Measure start time, memory, latencies and API writes of the node plugin, and check its budgets.
	@$(PY) hack/bench $(ARGS)
	@$(PY) hack/budgets

soak: .venv/demo.stamp  ## Check that files, threads and memory stay constant while pods come and go.
	@$(PY) hack/soak $(ARGS)

image:  ## Build the image without a registry or a daemon (needs root, buildah, debootstrap, runc) as dist/image.tar.
	@hack/image --check
	@$(MAKE) --no-print-directory .venv/demo.stamp
	hack/image $(ARGS)

manifests: .venv/dev.stamp  ## Render daemonset/install from the chart, after a change in daemonset/chart.
	@$(PY) hack/manifests

protos: .venv/dev.stamp  ## Regenerate the gRPC messages after a change in proto/.
	PYTHON=$(PY) hack/generate-protos

lock: .venv/dev.stamp  ## Pin the packages again after a change in pyproject.toml.
	hack/lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON): expected Python 3.11 or later (make PYTHON=/path/to/python3)" >&2; exit 1; }
	@$(PYTHON) -m venv .venv
	@$(PIP) install --no-compile --require-hashes -r hack/requirements/pip.txt

# --no-compile: most modules of these packages are never imported; the others are compiled when they are.
.venv/%.stamp: hack/requirements/%.txt | .venv/bin/python
	@echo "installing $< into .venv" >&2
	@$(PIP) install --no-compile --require-hashes -r $<
	@touch $@
