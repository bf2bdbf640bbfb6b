"""The roles contain exactly the rights that the node plugin uses."""

import pytest

from dra_simulator.api.requests import Asked
from dra_simulator.rest import EVENTS, GPUPOOLS, SLICES
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.cluster.api import USER_AGENT
from tensorfusion_dra.core import names
from tests.app.node_plugin.test_node_plugin_process import cluster_with, start
from tests.daemonset.test_manifests import VARIANTS
from tests.support import helm, installation, rbac
from tests.support.rbac import Right

ACCOUNT = "tensorfusion-dra-node-plugin"

CHECKED_BY_THE_SERVER = {
    Right(
        group="resource.k8s.io",
        resource="resourceclaims/driver",
        verb="associated-node:patch",
        names=(names.DRIVER,),
    ): "the API server checks it when the status of a claim is written (1.36)",
}


def allowed(documents: list[rbac.Document]) -> frozenset[Right]:
    return rbac.rights(documents, ACCOUNT)


@pytest.fixture(scope="module")
def sent() -> frozenset[Asked]:
    """Return all kinds of requests that a node plugin sends with its default settings."""
    with cluster_with() as cluster:
        start(cluster)
        cluster.submit("a", {"tflops": "100", "vram": "16Gi"})
        cluster.until("running", lambda: cluster.container_of("a") is not None)
        cluster.until("status written", lambda: status_written(cluster))
        change_add_and_delete_slices(cluster)
        cluster.delete("a")
        cluster.until("released", lambda: not cluster.claims())
        return cluster.server.requests.asked(USER_AGENT)


@pytest.fixture(scope="module")
def sent_with_pools() -> frozenset[Asked]:
    """Return all kinds of requests that a node plugin sends when it follows GPUPools."""
    with cluster_with(tensor_fusion=True) as cluster:
        cluster.plugin_flags.extend(["--pool-source", "node-labels"])
        cluster.start_plugin()
        cluster.until("registered", lambda: bool(cluster.kubelet.registered))
        cluster.client.create(GPUPOOLS, pool("of-all", qos="medium"))
        cluster.until("published", lambda: bool(cluster.slices()))
        cluster.client.replace(
            GPUPOOLS, {**cluster.client.get(GPUPOOLS, "of-all"), "spec": pool_spec("no-such-qos")}
        )
        cluster.until("event written", lambda: bool(cluster.client.list(EVENTS).items))
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


def change_add_and_delete_slices(cluster: SimulatedCluster) -> None:
    """Damage the slices so that the node plugin repairs them: by update, deletion and creation."""
    (before,) = cluster.slices()
    devices = before["spec"]["devices"]
    cluster.client.replace(SLICES, {**before, "spec": {**before["spec"], "devices": devices[:1]}})
    cluster.until("updated", lambda: cluster.slices()[0]["spec"]["devices"] == devices)

    metadata = {"name": f"{before['metadata']['name']}-9"}
    cluster.client.create(SLICES, {**before, "metadata": metadata})
    cluster.until("deleted", lambda: len(cluster.slices()) == 1)

    cluster.client.delete(SLICES, before["metadata"]["name"])
    cluster.until("created", lambda: len(cluster.slices()) == 1)


def test_role_allows_every_request_of_the_node_plugin(sent: frozenset[Asked]) -> None:
    granted = allowed(installation.documents("nvidia"))

    refused = [request for request in sent if not any(right.allows(request) for right in granted)]

    assert sent
    assert refused == []


def test_role_allows_nothing_else(
    sent: frozenset[Asked], sent_with_pools: frozenset[Asked]
) -> None:
    granted = allowed(installation.documents("nvidia"))
    # Events report problems, and the only problem in these runs is an invalid GPUPool.
    requests = sent | sent_with_pools

    unused = {right for right in granted if not any(right.allows(request) for request in requests)}

    assert unused == set(CHECKED_BY_THE_SERVER)


def test_pool_source_adds_exactly_the_rights_to_follow_pools(
    sent_with_pools: frozenset[Asked],
) -> None:
    base = allowed(installation.documents("nvidia"))
    granted = allowed(helm.render(VARIANTS["gpupools"]))

    refused = [
        request
        for request in sent_with_pools
        if not any(right.allows(request) for right in granted)
    ]
    unused = {
        right
        for right in granted - base
        if not any(right.allows(request) for request in sent_with_pools)
    }

    assert refused == []
    assert unused == set()
    assert {(right.resource, right.verb) for right in granted - base} == {
        ("gpupools", "list"),
        ("gpupools", "watch"),
        ("nodes", "list"),
        ("nodes", "watch"),
    }


def test_no_role_uses_wildcards() -> None:
    for document in installation.documents("nvidia", "webhook"):
        if document["kind"] in {"ClusterRole", "Role"}:
            for rule in document["rules"]:
                assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_hypervisor_sockets_add_the_rights_to_watch_and_mark_pods() -> None:
    base = allowed(installation.documents("nvidia"))
    granted = allowed(helm.render(VARIANTS["hypervisor"]))

    assert {(right.resource, right.verb) for right in granted - base} == {
        ("pods", "list"),
        ("pods", "watch"),
        ("pods", "patch"),
    }
