"""An API server for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.simulator.apiserver import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(bookmark_seconds=0.2) as running:
        yield running


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Api:
    return Api(server.kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def resource_api(api: Api) -> ResourceApi:
    return ResourceApi(api)
