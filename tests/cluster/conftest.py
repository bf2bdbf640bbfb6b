"""Fixtures: a simulated API server, and a server that gives every request the same answer."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster.api import Api
from tests.support.answers import Answers
from tests.support.servers import serving


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(bookmark_seconds=0.2) as running:
        yield running


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Api:
    return Api(server.kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def answers() -> Iterator[Answers]:
    server = Answers()
    with serving(server):
        yield server


@pytest.fixture(scope="module")
def tracing() -> Iterator[None]:
    """Trace the allocations of a module's tests.

    tracemalloc.stop() crashes a process in which another thread allocates, so it is called when no
    server of a test is left.
    """
    tracemalloc.start()
    yield
    tracemalloc.stop()
