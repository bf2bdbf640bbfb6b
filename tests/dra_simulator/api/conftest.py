"""A running server for each test, and a client for it."""

from collections.abc import Iterator

import pytest

from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import Client


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def api(server: ApiServer) -> Iterator[Client]:
    client = Client(server.url)
    yield client
    client.close()
