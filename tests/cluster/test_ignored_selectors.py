"""Foreign objects are ignored even if the server or a proxy ignores field selectors."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.cluster.api import Api, ResourceApi
from tensorfusion_dra.cluster.slices import Slices
from tests.cluster.test_objects_at_the_server import t4_slice
from tests.support import canned_api
from tests.support.answers import SLICES_PATH
from tests.support.builders.devices import NODE
from tests.support.canned_api import CannedApi


def stored_slice(name: str, **spec: Any) -> dict[str, Any]:
    """Return a stored slice of the node; the arguments replace fields of its spec."""
    item: Any = copy.deepcopy(dict(t4_slice()))
    item["metadata"] |= {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "5"}
    item["spec"] |= spec
    return dict(item)


OWN = stored_slice("own")
FOREIGN = [
    stored_slice("of-another-driver", driver="gpu.nvidia.com"),
    stored_slice("of-another-node", nodeName="node-99"),
    {"metadata": {"name": "of-all-nodes"}, "spec": {"driver": "x", "allNodes": True}},
    {"metadata": {"name": "of-nobody"}},
]
LISTED = {"metadata": {"resourceVersion": "7"}, "items": [*FOREIGN, OWN]}


@pytest.fixture
def server() -> Iterator[CannedApi]:
    answers = {
        "GET /apis/resource.k8s.io": {"versions": [{"version": "v1"}]},
        f"GET {SLICES_PATH}": LISTED,
    }
    with canned_api.served(answers) as running:
        yield running


def test_foreign_slices_are_ignored_and_logged_once(server: CannedApi, tmp_path: Path) -> None:
    slices = Slices(
        ResourceApi(Api(server.kubeconfig(tmp_path / "kubeconfig"))), node_name=NODE.name
    )

    with capture_logs() as logs:
        found = [slices.fetch(), slices.fetch()]

    assert found == [[OWN], [OWN]]
    assert [line["event"] for line in logs] == ["foreign_slices_ignored"]
    assert logs[0]["slices"] == len(FOREIGN)


def test_events_of_foreign_slices_do_not_trigger_a_change(
    server: CannedApi, tmp_path: Path
) -> None:
    resource_api = ResourceApi(Api(server.kubeconfig(tmp_path / "kubeconfig")))
    woken: list[str] = []
    watch = Slices(resource_api, node_name=NODE.name).watch(
        on_change=lambda: woken.append("changed"), on_return=lambda: None
    )

    watch._on_list([], "1")

    for item in [*FOREIGN, OWN]:
        watch._on_event("MODIFIED", item)

    assert woken == ["changed"]
