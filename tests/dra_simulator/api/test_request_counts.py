"""Counts of the requests that the API server received and answered."""

import http.client

import pytest

from dra_simulator.api.faults import Cut
from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import NODES, Client


def test_received_and_answered_requests_of_a_client_are_counted(
    api: Client, server: ApiServer
) -> None:
    with (
        server.faults.during("list", "nodes", Cut()),
        pytest.raises(http.client.RemoteDisconnected),
    ):
        api.get(NODES)

    api.get(NODES)

    assert (server.requests.received("tests/1"), server.requests.answered("tests/1")) == (2, 1)
    assert (server.requests.received("other"), server.requests.answered("other")) == (0, 0)
