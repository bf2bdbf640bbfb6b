"""The roles hold what the node plugin asks of the API server, and nothing else."""

from pathlib import Path

import pytest

from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.cluster.api import USER_AGENT
from tensorfusion_dra.core import names
from tensorfusion_dra.simulator.api.requests import Asked
from tensorfusion_dra.simulator.rest import EVENTS, GPUPOOLS, SLICES
from tests.app.node_plugin.test_node_plugin_process import cluster_with, start
from tests.support import kustomize, rbac
from tests.support.rbac import Right

ROOT = Path(__file__).parents[2] / "daemonset"
ACCOUNT = "tensorfusion-dra-node-plugin"

NEVER_ASKED_FOR = {
    Right(
        group="resource.k8s.io",
        resource="resourceclaims/driver",
        verb="associated-node:patch",
        names=(names.DRIVER,),
    ): "the API server asks for it when the status of a claim is written (1.36)",
}


def allowed(documents: list[rbac.Document]) -> frozenset[Right]:
    return rbac.rights(documents, ACCOUNT)


@pytest.fixture(scope="module")
def asked() -> frozenset[Asked]:
    """What a node plugin asks for in its life, with the settings of the base."""
    with cluster_with() as cluster:
        start(cluster)
        cluster.submit("a", {"tflops": "100", "vram": "16Gi"})
        cluster.until("running", lambda: cluster.container_of("a") is not None)
        cluster.until("told", lambda: status_written(cluster))
        slices_are_changed_and_added_and_deleted(cluster)
        cluster.delete("a")
        cluster.until("released", lambda: not cluster.claims())
        return cluster.server.requests.asked(USER_AGENT)


@pytest.fixture(scope="module")
def asked_with_pools() -> frozenset[Asked]:
    """What it asks for beside that when it follows GPUPools."""
    with cluster_with(tensor_fusion=True) as cluster:
        cluster.plugin_flags.extend(["--pool-source", "node-labels"])
        cluster.start_plugin()
        cluster.until("registered", lambda: bool(cluster.kubelet.registered))
        cluster.client.create(GPUPOOLS, pool("of-all", qos="medium"))
        cluster.until("published", lambda: bool(cluster.slices()))
        cluster.client.replace(
            GPUPOOLS, {**cluster.client.get(GPUPOOLS, "of-all"), "spec": pool_spec("no-such-qos")}
        )
        cluster.until("said", lambda: bool(cluster.client.list(EVENTS).items))
        return cluster.server.requests.asked(USER_AGENT)


def pool(name: str, *, qos: str) -> rbac.Document:
    return {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPUPool",
        "metadata": {"name": name},
        "spec": pool_spec(qos),
    }


def pool_spec(qos: str) -> rbac.Document:
    term = {"key": "kubernetes.io/hostname", "operator": "Exists"}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    return {
        "qosConfig": {"defaultQoS": qos},
        "nodeManagerConfig": {"nodeSelector": selector},
    }


def status_written(cluster: SimulatedCluster) -> bool:
    return any(claim["status"].get("devices") for claim in cluster.claims())


def slices_are_changed_and_added_and_deleted(cluster: SimulatedCluster) -> None:
    """Each is put right by the node plugin: by an update, a deletion and a creation."""
    (before,) = cluster.slices()
    devices = before["spec"]["devices"]
    cluster.client.replace(SLICES, {**before, "spec": {**before["spec"], "devices": devices[:1]}})
    cluster.until("updated", lambda: cluster.slices()[0]["spec"]["devices"] == devices)

    metadata = {"name": f"{before['metadata']['name']}-9"}
    cluster.client.create(SLICES, {**before, "metadata": metadata})
    cluster.until("deleted", lambda: len(cluster.slices()) == 1)

    cluster.client.delete(SLICES, before["metadata"]["name"])
    cluster.until("created", lambda: len(cluster.slices()) == 1)


def test_the_base_allows_whatever_the_node_plugin_asks_for(asked: frozenset[Asked]) -> None:
    held = allowed(kustomize.render(ROOT / "base"))

    refused = [question for question in asked if not any(right.allows(question) for right in held)]

    assert asked
    assert refused == []


def test_the_base_allows_nothing_else(
    asked: frozenset[Asked], asked_with_pools: frozenset[Asked]
) -> None:
    held = allowed(kustomize.render(ROOT / "base"))
    # An Event tells trouble, and the trouble that is made here is a pool's.
    questions = asked | asked_with_pools

    unused = {right for right in held if not any(right.allows(question) for question in questions)}

    assert unused == set(NEVER_ASKED_FOR)


def test_the_component_for_pools_adds_exactly_the_rights_that_following_them_takes(
    asked_with_pools: frozenset[Asked],
) -> None:
    base = allowed(kustomize.render(ROOT / "base"))
    held = allowed(kustomize.with_components(ROOT / "base", ROOT / "components" / "gpupools"))

    refused = [
        question
        for question in asked_with_pools
        if not any(right.allows(question) for right in held)
    ]
    unused = {
        right
        for right in held - base
        if not any(right.allows(question) for question in asked_with_pools)
    }

    assert refused == []
    assert unused == set()
    assert {(right.resource, right.verb) for right in held - base} == {
        ("gpupools", "list"),
        ("gpupools", "watch"),
        ("nodes", "list"),
        ("nodes", "watch"),
    }


def test_nobody_may_act_on_everything_of_a_kind() -> None:
    for folder in (ROOT / "base", ROOT / "webhook"):
        for document in kustomize.render(folder):
            for rule in document.get("rules", []):
                assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_events_may_be_created_in_one_namespace_only() -> None:
    held = allowed(kustomize.render(ROOT / "base"))

    assert {right.namespace for right in held if right.resource == "events"} == {"default"}
