"""A running server for each test that asks webhooks, and the desk where they answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.simulator import match_conditions
from tensorfusion_dra.simulator.apiserver import ApiServer
from tensorfusion_dra.webhook.server import Server
from tests.simulator.api.webhooks.desk import Desk, Hooked
from tests.support.https import Files, serving


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def hooks(desk: Desk, files: Files) -> Iterator[Server]:
    with serving(desk.respond, files) as server:
        yield server


@pytest.fixture
def api(hooks: Server, files: Files) -> Iterator[Hooked]:
    with ApiServer(condition_holds=match_conditions.holds) as server:
        client = Hooked(server.url, hooks, files)
        yield client
        client.close()
