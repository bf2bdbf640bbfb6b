"""Claims, slices, nodes and lists over HTTP, and the classification of the server's faults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_simulator.api.faults import ANY, Cut, HalfOpen, Refuse
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster import api as cluster_api
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.cluster.objects import Claims, Nodes, Pods, has_priority_class
from tensorfusion_dra.cluster.slices import PublishedSlices, Slices
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.devices import slices as planning
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import ClaimError, RetryableError, StatusError
from tensorfusion_dra.discovery.simulated import simulated_discovery
from tests.core.devices.slice_documents import plain_device, slice_spec
from tests.support import canned_api
from tests.support.builders.devices import NODE, published_devices
from tests.support.canned_api import served
from tests.support.virtual_time import VirtualClock
from tests.support.waiting import PATIENCE_SECONDS

CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "a", "namespace": "default"},
    "spec": {
        "devices": {
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": "tensor-fusion.ai"}}]
        }
    },
}


CLAIM_REF = ClaimRef(namespace="default", name="a", uid="uid")
POD_REF = PodRef(namespace="default", name="train", uid="uid")


def t4_slice(generation: int = 1) -> Slice:
    inventory = simulated_discovery.SimulatedDiscovery("1xT4", node_name=NODE.name).read()
    listed = [device.as_api() for device in published_devices(*inventory.gpus)]
    wanted = planning.wanted(listed, NODE, node_uid="node-uid")
    (created,) = planning.plan(wanted, []).create
    spec = created["spec"]
    return {**created, "spec": {**spec, "pool": {**spec["pool"], "generation": generation}}}


def test_missing_claim_is_a_claim_error(api: Api) -> None:
    with pytest.raises(ClaimError, match=r"claim default/a: found none"):
        Claims(api).fetch(CLAIM_REF, wait_seconds=PATIENCE_SECONDS)


def test_404_without_claim_details_does_not_mean_a_missing_claim(
    server: ApiServer, api: Api
) -> None:
    """Such a 404 comes from an API server without resource.k8s.io, or from a proxy."""
    server.faults.add("get", "resourceclaims", Refuse(404, "page not found"))

    with pytest.raises(RetryableError, match="404"):
        Claims(api).fetch(CLAIM_REF, wait_seconds=1)


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(429, retry_after_seconds=1), Cut()])
def test_claim_is_fetched_with_all_fields_in_spite_of_a_transient_fault(
    server: ApiServer, api: Api, fault: Refuse | Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "time", VirtualClock())
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    stored = api.call("POST", path, body=CLAIM)
    server.faults.add("get", "resourceclaims", fault, times=2)

    assert Claims(api).fetch(CLAIM_REF, wait_seconds=PATIENCE_SECONDS) == stored


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(401), Cut(), HalfOpen()])
@pytest.mark.parametrize(
    ("read", "subject"),
    [
        (lambda api: Claims(api).fetch(CLAIM_REF, wait_seconds=0.7), "claim default/a: GET /apis/"),
        (lambda api: Pods(api).find(POD_REF, wait_seconds=0.7), "pod default/train: GET /api/v1"),
        (
            lambda api: PublishedSlices(api).published(wait_seconds=0.7),
            "ResourceSlices: GET /apis/resource",
        ),
    ],
    ids=["claim", "pod", "slices"],
)
def test_lasting_fault_is_retryable_and_ends_within_the_time(
    server: ApiServer,
    api: Api,
    read: Callable[[Api], object],
    subject: str,
    fault: Refuse | Cut | HalfOpen,
) -> None:
    server.faults.add(ANY, ANY, fault)

    with pytest.raises(RetryableError, match=f"^{subject}"):
        read(api)


def test_slice_is_created_replaced_and_deleted(api: Api) -> None:
    slices = Slices(api, node_name=NODE.name)
    created = slices.create(t4_slice())
    replaced = slices.replace({**created, "spec": t4_slice(generation=2)["spec"]})

    (listed,) = slices.fetch() or ()
    slices.delete(listed)
    slices.delete(listed)  # it is gone already

    assert replaced["metadata"]["uid"] == created["metadata"]["uid"]
    assert listed["spec"]["pool"]["generation"] == 2
    assert slices.fetch() == []


def test_slice_changed_since_the_read_is_neither_replaced_nor_deleted(
    api: Api,
) -> None:
    slices = Slices(api, node_name=NODE.name)
    read = slices.create(t4_slice())
    slices.replace({**read, "spec": t4_slice(generation=2)["spec"]})

    with pytest.raises(StatusError) as replaced:
        slices.replace({**read, "spec": t4_slice(generation=3)["spec"]})
    with pytest.raises(StatusError) as deleted:
        slices.delete(read)

    assert (replaced.value.status, deleted.value.status) == (409, 409)


def test_server_without_v1_is_retryable(tmp_path: Path) -> None:
    with ApiServer(resource_versions=("v1beta1",)) as server:
        api = Api(server.kubeconfig(tmp_path / "kubeconfig"))

        with pytest.raises(RetryableError, match=r"resource\.k8s\.io/v1/resourceslices: 404"):
            Slices(api, node_name=NODE.name).fetch()


def test_node_uid_is_read_and_missing_node_is_retryable(api: Api) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE.name}}
    stored = api.call("POST", "/api/v1/nodes", body=node)

    assert Nodes(api, node_name=NODE.name).uid() == stored["metadata"]["uid"]
    with pytest.raises(RetryableError, match="404"):
        Nodes(api, node_name="node-02").uid()


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ([{"type": "Ready", "status": "True"}], True),
        ([{"type": "MemoryPressure", "status": "True"}], False),
        ([{"type": "Ready", "status": "Unknown"}], False),
        ([{"type": "Ready", "status": "False"}], False),
        ([], False),
    ],
)
def test_node_readiness_follows_its_ready_condition(
    api: Api, conditions: list[dict[str, str]], ready: bool
) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-01"}}
    api.call("POST", "/api/v1/nodes", body={**node, "status": {"conditions": conditions}})

    assert Nodes(api, node_name="node-01").is_ready() is ready


def test_a_list_for_which_no_time_is_left_is_retryable(api: Api) -> None:
    with pytest.raises(RetryableError, match="no answer within the time"):
        api.listed("/api/v1/pods", dict, wait_seconds=-0.001)


PRIORITY = "GET /apis/scheduling.k8s.io/v1/priorityclasses"


def test_priority_class_exists_or_not(tmp_path: Path) -> None:
    answers = {f"{PRIORITY}/high": {"value": 1}, f"{PRIORITY}/hidden": (403, "no")}
    with canned_api.served(answers) as server:
        api = Api(server.kubeconfig(tmp_path / "kubeconfig"))

        assert has_priority_class(api, "high", 5)
        assert not has_priority_class(api, "low", 5)
        with pytest.raises(RetryableError, match="403"):
            has_priority_class(api, "hidden", 5)


NODES = "/api/v1/nodes"


def page(*names: str, more: str = "") -> dict[str, Any]:
    return {"metadata": {"continue": more}, "items": [{"metadata": {"name": n}} for n in names]}


def test_pages_are_followed_to_the_end(tmp_path: Path) -> None:
    pages = iter([page("a", "b", more="token"), page("c")])
    with canned_api.served({f"GET {NODES}": lambda _: next(pages)}) as server:
        lists = ClusterLists(Api(server.kubeconfig(tmp_path / "kubeconfig")))

        found = [item["metadata"]["name"] for item in lists.items(NODES)]

    asked = [request for request, _ in server.requests]
    assert found == ["a", "b", "c"]
    assert asked == [f"GET {NODES}?limit=500", f"GET {NODES}?limit=500&continue=token"]


def test_kind_that_the_server_lacks_has_no_objects(tmp_path: Path) -> None:
    with canned_api.served({}) as server:
        lists = ClusterLists(Api(server.kubeconfig(tmp_path / "kubeconfig")))

        assert lists.items(NODES) == []
        assert lists.items_if_served(NODES) is None
        assert lists.find(f"{NODES}/a") is None
        assert lists.readable_items(NODES, "Nodes") == []
        assert lists.unreadable == []


def test_missing_permission_is_noted_once_for_what_can_do_without(tmp_path: Path) -> None:
    with canned_api.served({f"GET {NODES}": (403, "no")}) as server:
        lists = ClusterLists(Api(server.kubeconfig(tmp_path / "kubeconfig")))

        assert lists.readable_items(NODES, "Nodes") is None
        assert lists.unreadable == ["Nodes (no right to list them)"]
        for read in (lists.items, lists.find):
            with pytest.raises(StatusError, match="403"):
                read(NODES)


def create(api: Api, name: str, **fields: object) -> None:
    api.call(
        "POST",
        "/apis/resource.k8s.io/v1/resourceslices",
        body={
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": slice_spec(**fields),
        },
    )


def slice_pool(node: str) -> dict[str, object]:
    return {"name": f"default/{node}", "generation": 1, "resourceSliceCount": 1}


def test_slices_of_all_nodes_but_only_of_this_driver_are_read(
    api: Api,
) -> None:
    create(api, "a", nodeName="node-a", pool=slice_pool("node-a"))
    create(api, "b", nodeName="node-b", pool=slice_pool("node-b"))
    create(api, "nic", driver="nic.example.com", devices=[plain_device("nic-0")])

    found = PublishedSlices(api).published(wait_seconds=5)

    assert sorted(item["metadata"]["name"] for item in found) == ["a", "b"]


def test_slices_of_others_are_left_out_even_if_a_proxy_drops_the_selector(tmp_path: Path) -> None:
    stored = {"uid": "1", "resourceVersion": "1"}
    own: Any = {**t4_slice(), "metadata": {"name": "own", **stored}}
    others = [
        {"metadata": {"name": name, **stored}, "spec": {**own["spec"], **changed}}
        for name, changed in (
            ("of-another-driver", {"driver": "nvidia"}),
            ("of-another-node", {"nodeName": "node-99"}),
        )
    ]
    others.append({"metadata": {"name": "of-nobody", **stored}})
    answers: Any = {
        "GET /apis/resource.k8s.io/v1/resourceslices": {"items": [*others, own]},
    }
    with served(answers) as server:
        api = Api(server.kubeconfig(tmp_path / "kubeconfig"))

        assert Slices(api, node_name=NODE.name).fetch() == [own]
