"""A cluster with the driver's DeviceClass."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.simulator.rest import CLASSES
from tests.app.why import waiting_pods
from tests.app.why.waiting_pods import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with waiting_pods.server() as server:
        made = Cluster(server, server.kubeconfig(tmp_path / "kubeconfig"))
        made.client.create(CLASSES, waiting_pods.device_class())
        yield made
