"""Running servers, and clients for them."""

from collections.abc import Iterator

import pytest

from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import Client, served


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def api(server: ApiServer) -> Iterator[Client]:
    client = Client(server.url)
    yield client
    client.close()


@pytest.fixture(scope="session")
def empty() -> Iterator[Client]:
    """A client of a server that has every kind, also Tensor Fusion's, and no objects of a test."""
    with served(tensor_fusion=True) as client:
        yield client
