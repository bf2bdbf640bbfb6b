"""DeviceTaintRules are read from the API servers that have them by default."""

from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.why import observed
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tests.support import canned_api

GROUP = "/apis/resource.k8s.io"
TAINT = {"key": "maintenance", "effect": "NoExecute"}
SLICE = {"spec": {"driver": "mine", "pool": {"name": "p"}, "devices": [{"name": "a"}]}}
RULES = {"items": [{"spec": {"deviceSelector": {"driver": "mine"}, "taint": TAINT}}]}


@pytest.mark.parametrize(
    ("version", "rules", "taints", "unreadable"),
    [
        ("v1.36.2", RULES, [], []),
        ("v1.37.2", RULES, [TAINT], []),
        ("v1.37.2", (403, "no"), [], ["DeviceTaintRules (no right to list them)"]),
    ],
    ids=["1.36", "1.37", "without the right"],
)
def test_taints_of_rules(
    tmp_path: Path, version: str, rules: Any, taints: list[Any], unreadable: list[str]
) -> None:
    answers = {
        "GET /version": {"gitVersion": version},
        f"GET {GROUP}": {"versions": [{"version": "v1"}]},
        f"GET {GROUP}/v1/resourceslices": {"items": [SLICE]},
        f"GET {GROUP}/v1/devicetaintrules": rules,
    }
    with canned_api.served(answers) as server:
        lists = ClusterLists(Api(server.kubeconfig(tmp_path / "kubeconfig")))

        found = observed.read(lists, "default")

    (device,) = found.slices[0]["spec"]["devices"]
    assert device.get("taints", []) == taints
    assert found.unreadable == unreadable
