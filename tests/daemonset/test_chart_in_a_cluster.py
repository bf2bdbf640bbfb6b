"""What the chart says of the cluster that it is installed in."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import canned_api, helm
from tests.support.installation import NO_GPUS, WEBHOOK

Document = dict[str, Any]

GPU_NODE = {"feature.node.kubernetes.io/pci-10de.present": "true"}
LOOKED_UP = {
    "Namespace": "v1",
    "Node": "v1",
    "RuntimeClass": "node.k8s.io/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
}
MONITORING = {"monitoring": {"enabled": True}}


def cluster(*objects: str, nodes: tuple[Mapping[str, str], ...] = ()) -> dict[str, Document]:
    """Return an API server's answers to the chart's lookups.

    Args:
        objects: As kind and name: `RuntimeClass/nvidia`.
        nodes: The labels of each node.
    """
    answers: dict[str, Document] = {}
    for text in ("Namespace/kube-system", *objects):
        kind, _, name = text.partition("/")
        answers[f"GET {root(LOOKED_UP[kind])}/{plural(kind)}/{name}"] = {
            "apiVersion": LOOKED_UP[kind],
            "kind": kind,
            "metadata": {"name": name},
        }
    items = [{"metadata": {"name": str(n), "labels": each}} for n, each in enumerate(nodes)]
    answers["GET /api/v1/nodes"] = {"apiVersion": "v1", "kind": "NodeList", "items": items}
    return answers


def discovery(kinds: Iterable[tuple[str, str, bool]]) -> dict[str, Any]:
    """Return an API server's answers on its kinds: API, kind, and whether it is namespaced."""
    resources: dict[str, list[Document]] = {}
    for api, kind, namespaced in kinds:
        resources.setdefault(api, []).append(
            {"name": plural(kind), "kind": kind, "namespaced": namespaced, "verbs": ["get", "list"]}
        )
    groups = [
        {"name": api.partition("/")[0], "versions": [{"groupVersion": api, "version": "v1"}]}
        for api in resources
        if "/" in api
    ]
    return {
        "GET /version": {"major": "1", "minor": "36", "gitVersion": "v1.36.0"},
        "GET /api": {"kind": "APIVersions", "versions": ["v1"]},
        "GET /apis": {"kind": "APIGroupList", "groups": groups},
    } | {
        f"GET {root(api)}": {"kind": "APIResourceList", "groupVersion": api, "resources": found}
        for api, found in resources.items()
    }


def root(api: str) -> str:
    return f"/{'apis' if '/' in api else 'api'}/{api}"


def plural(kind: str) -> str:
    return f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"


def notes(answers: Mapping[str, Any], values: Mapping[str, Any], folder: Path) -> str:
    """Return the notes of a release in a cluster."""
    kinds = {(api, kind, False) for kind, api in LOOKED_UP.items()}
    kinds |= {("v1", "ConfigMap", True)}
    kinds |= {
        (item["apiVersion"], item["kind"], "namespace" in item["metadata"])
        for item in helm.render(values)
    }
    with canned_api.served({**discovery(sorted(kinds)), **answers}) as api:
        return helm.notes(values, kubeconfig=api.kubeconfig(folder / "kubeconfig"))


@pytest.mark.parametrize(
    ("answers", "values", "warnings"),
    [
        (cluster("RuntimeClass/nvidia", nodes=({}, GPU_NODE)), {}, set()),
        (cluster("RuntimeClass/nvidia", nodes=({}, {"a": "b"})), {}, {"label node NODE"}),
        (cluster(nodes=(GPU_NODE,)), {}, {"no RuntimeClass nvidia"}),
        (cluster(nodes=({},)), {}, {"label node NODE", "no RuntimeClass nvidia"}),
        # Values by which the DaemonSet needs neither.
        (cluster(nodes=({},)), NO_GPUS, set()),
        (
            cluster("RuntimeClass/of-the-team", nodes=({},)),
            {"nvidia": {"runtimeClass": "of-the-team"}, "nodePlugin": {"affinity": {"a": {}}}},
            set(),
        ),
        (cluster(nodes=(GPU_NODE,)), {"nvidia": {"privileged": True}}, set()),
        (cluster(nodes=(GPU_NODE,)), {"nvidia": {"runtimeClass": ""}}, set()),
        # Without a cluster nothing is known.
        (cluster(), {}, set()),
    ],
)
def test_notes_name_what_a_daemonset_without_pods_lacks(
    answers: Mapping[str, Any], values: Mapping[str, Any], warnings: set[str], tmp_path: Path
) -> None:
    found = notes(answers, values, tmp_path)

    assert {text for text in ("label node NODE", "no RuntimeClass nvidia") if text in found} == (
        warnings
    )


@pytest.mark.parametrize(
    ("values", "is_warned"),
    [
        ({}, True),
        ({"settings": {"enforcer": "tensor-fusion", "isolation": "soft"}}, True),
        ({"settings": {"enforcer": "hami-core"}}, False),
        ({"settings": {"enforcer": "mps"}}, False),
        ({"settings": {"hypervisor-sockets": "/var/lib/kubelet/device-plugins"}}, False),
        ({"settings": {"isolation": "shared"}}, False),
        (NO_GPUS, False),
    ],
)
def test_notes_warn_of_nodes_without_an_enforcer(
    values: Mapping[str, Any], is_warned: bool
) -> None:
    found = helm.notes(values)

    cures = ("enforcer: hami-core", "enforcer: mps", "hypervisor-sockets: /var/lib/kubelet/")
    assert [cure in found for cure in cures] == [is_warned] * 3


@pytest.mark.parametrize(
    ("values", "definition", "cure"),
    [
        (WEBHOOK, "certificates.cert-manager.io", "webhook.certificate.source=self-signed"),
        (MONITORING, "podmonitors.monitoring.coreos.com", "monitoring.enabled=false"),
    ],
)
def test_installation_into_a_cluster_without_an_operator_is_refused(
    values: Mapping[str, Any], definition: str, cure: str, tmp_path: Path
) -> None:
    with pytest.raises(helm.RefusedValuesError, match=f"found no .*{definition}.* or set {cure}"):
        notes(cluster(), values, tmp_path)

    assert notes(cluster(f"CustomResourceDefinition/{definition}"), values, tmp_path)
    assert helm.render(values), "without a cluster nothing is known"
