"""A cluster with the driver's DeviceClass."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from dra_simulator.rest import CLASSES
from tensorfusion_dra.app.shared import logging
from tensorfusion_dra.core.kubernetes import releases
from tests.support import gpu_cluster
from tests.support.gpu_cluster import Cluster, two_cards


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let verbs that run in this process turn off their log, and only theirs.

    A verb's own configuration stays in every logger that it used, which later tests listen to.
    """
    settings = structlog.get_config()
    critical = structlog.make_filtering_bound_logger("critical")
    monkeypatch.setattr(
        logging, "configure", lambda **_: structlog.configure(wrapper_class=critical)
    )
    yield
    structlog.configure(**settings)


@pytest.fixture
def cluster(tmp_path: Path, quiet: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of Kubernetes 1.37, or of the minor version that is the fixture's parameter."""
    with gpu_cluster.server(getattr(request, "param", releases.SIMULATED)) as server:
        made = Cluster(server, server.kubeconfig(tmp_path / "kubeconfig"))
        made.client.create(CLASSES, gpu_cluster.device_class())
        yield made


@pytest.fixture
def cards(cluster: Cluster) -> list[str]:
    """The names of the two cards of node-01."""
    return cluster.add_node("node-01", *two_cards())
