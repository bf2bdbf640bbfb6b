"""Fixtures: an API server that calls webhooks, and the stub that answers the calls."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_simulator import match_conditions
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.runtime.http_server import Server
from tests.dra_simulator.api.webhooks.desk import WebhookClient, WebhookStub
from tests.support.https import Files, serving


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def stub() -> WebhookStub:
    return WebhookStub()


@pytest.fixture
def hooks(stub: WebhookStub, files: Files) -> Iterator[Server]:
    with serving(stub.respond, files) as server:
        yield server


@pytest.fixture
def api(hooks: Server, files: Files) -> Iterator[WebhookClient]:
    with ApiServer(condition_holds=match_conditions.holds) as server:
        client = WebhookClient(server.url, hooks, files)
        yield client
        client.close()
