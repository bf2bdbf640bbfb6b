"""Why nodes publish nothing: a DaemonSet without pods, or a GPUPool that they wait for."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.doctor import objects
from tensorfusion_dra.app.doctor.checks import Context, Place
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.doctor.finding import Level
from tests.app.doctor.here import context
from tests.support.canned_api import CannedApi, served

DAEMONSETS = "GET /apis/apps/v1/daemonsets"
SLICES = "GET /apis/resource.k8s.io/v1/resourceslices"
Here = Callable[..., Context]


@pytest.fixture
def canned() -> Iterator[CannedApi]:
    with served({"GET /apis/resource.k8s.io": {"versions": [{"version": "v1"}]}}) as api:
        yield api


@pytest.fixture
def here(canned: CannedApi, tmp_path: Path) -> Here:
    kubeconfig = canned.kubeconfig(tmp_path / "kubeconfig")
    return lambda **more: context(tmp_path, api=Api(kubeconfig), **more)


DAEMONSET: Any = {
    "metadata": {"namespace": "gpu", "name": "node-plugin"},
    "spec": {
        "template": {
            "spec": {
                "runtimeClassName": "nvidia",
                "nodeSelector": {"nvidia.com/gpu.present": "true"},
                "containers": [
                    {"env": [{"name": "TENSORFUSION_DRA_POOL_SOURCE", "value": "node-labels"}]}
                ],
            }
        }
    },
    "status": {"desiredNumberScheduled": 0},
}
NODES: Any = {"items": [{"metadata": {"name": "node-01"}}]}


def test_label_and_runtime_class_of_a_daemonset_without_pods_are_named(
    canned: CannedApi, here: Here
) -> None:
    canned.answers |= {DAEMONSETS: {"items": [DAEMONSET]}, "GET /api/v1/nodes": NODES}

    found = list(objects.pods(here(place=Place.WORKSTATION)))

    assert [each.level for each in found] == [Level.PROBLEM, Level.PROBLEM]
    assert "RuntimeClass nvidia" in found[0].subject
    assert "nvidia.com/gpu.present=true" in found[1].found


@pytest.mark.parametrize("place", Place)
def test_awaited_gpupool_is_named_in_place_of_the_missing_slices(
    canned: CannedApi, here: Here, place: Place
) -> None:
    canned.answers |= {
        DAEMONSETS: {"items": [DAEMONSET]},
        "GET /api/v1/nodes": NODES,
        "GET /api/v1/nodes/node-01": NODES["items"][0],
        SLICES: {"items": []},
    }

    (found,) = objects.slices(here(place=place, pool_source="node-labels"))

    assert found.subject == "GPUPool (pool-source=node-labels)"
    assert found.found.startswith("the API server has no GPUPools")
