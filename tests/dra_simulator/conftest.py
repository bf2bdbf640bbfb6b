"""Fixtures: a simulated API server, a client, a node and a plugin."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import CLASSES, Client
from tensorfusion_dra.scheduling import cel_evaluation
from tests.dra_simulator.kubelets import NodeUnderTest, TinyPlugin
from tests.support import objects
from tests.support.waiting import awaited


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server with the class of the driver's devices."""
    with ApiServer(check_expression=cel_evaluation.check_expression) as server:
        Client(server.url).create(CLASSES, objects.device_class())
        yield server


@pytest.fixture
def client(api: ApiServer) -> Client:
    """A client of the API server."""
    return Client(api.url)


@pytest.fixture
def node(api: ApiServer) -> Iterator[NodeUnderTest]:
    """A node on which no kubelet runs yet."""
    # Not pytest's tmp_path: a socket's path may have at most 107 bytes.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, ExitStack() as stack:
        yield NodeUnderTest(api.url, Path(folder), stack)


@pytest.fixture
def plugin(node: NodeUnderTest) -> TinyPlugin:
    """A plugin that is connected with a kubelet of the node."""
    node.start()
    plugin = node.plugin()
    awaited(node.connected)
    return plugin
