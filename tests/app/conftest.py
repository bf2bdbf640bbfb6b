"""A cluster with the driver's DeviceClass."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.simulator.rest import CLASSES
from tests.support import gpu_cluster
from tests.support.gpu_cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with gpu_cluster.server() as server:
        made = Cluster(server, server.kubeconfig(tmp_path / "kubeconfig"))
        made.client.create(CLASSES, gpu_cluster.device_class())
        yield made
