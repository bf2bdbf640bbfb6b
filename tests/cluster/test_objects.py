"""Claims, slices, nodes, pods and lists over HTTP, and what the server's faults mean."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from dra_simulator.api.faults import ANY, Cut, HalfOpen, Refuse
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster import api as cluster_api
from tensorfusion_dra.cluster import published_cards
from tensorfusion_dra.cluster.api import APPLY, Api
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.cluster.objects import (
    ApiClaims,
    ApiClaimStatus,
    ApiNodes,
    ApiPods,
    ApiWorkerPods,
    Quotas,
    has_priority_class,
)
from tensorfusion_dra.cluster.published_cards import PublishedCards
from tensorfusion_dra.cluster.slices import ApiSlices
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import cards
from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.device_status import Readiness
from tensorfusion_dra.core.errors import (
    ClaimError,
    MissingPermissionError,
    RetryableError,
    StatusError,
)
from tests.support import canned_api, objects
from tests.support.answers import SLICES_PATH
from tests.support.builders.devices import NODE
from tests.support.builders.documents import slice_document
from tests.support.builders.quotas import quota_document
from tests.support.builders.reported_claims import (
    DEVICE,
    POOL,
    SHARE_ID,
    reported_claim,
    reported_limit,
    reported_share,
)
from tests.support.builders.slices import new_slice
from tests.support.objects import Json
from tests.support.threads import running
from tests.support.virtual_time import VirtualClock
from tests.support.waiting import PATIENCE_SECONDS, eventually

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
NODES = "/api/v1/nodes"
CLAIM_REF = ClaimRef(namespace="default", name="a", uid="uid")
POD_REF = PodRef(namespace="default", name="train", uid="uid")


def test_missing_claim_is_a_claim_error(api: Api) -> None:
    with pytest.raises(ClaimError, match=r"claim default/a: found none"):
        ApiClaims(api).fetch(CLAIM_REF, wait_seconds=PATIENCE_SECONDS)


def test_404_without_claim_details_does_not_mean_a_missing_claim(
    server: ApiServer, api: Api
) -> None:
    """Such a 404 comes from an API server without resource.k8s.io, or from a proxy."""
    server.faults.add("get", "resourceclaims", Refuse(404, "page not found"))

    with pytest.raises(RetryableError, match="404"):
        ApiClaims(api).fetch(CLAIM_REF, wait_seconds=1)


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(429, retry_after_seconds=1), Cut()])
def test_claim_is_fetched_in_spite_of_a_transient_fault(
    server: ApiServer, api: Api, fault: Refuse | Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "time", VirtualClock())
    stored = api.call("POST", CLAIMS, body=objects.claim(name="a"))
    server.faults.add("get", "resourceclaims", fault, times=2)

    found = ApiClaims(api).fetch(CLAIM_REF, wait_seconds=PATIENCE_SECONDS)

    assert found["metadata"]["uid"] == stored["metadata"]["uid"]


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(401), Cut(), HalfOpen()])
@pytest.mark.parametrize(
    ("read", "subject"),
    [
        (
            lambda api: ApiClaims(api).fetch(CLAIM_REF, wait_seconds=0.7),
            "claim default/a: GET /apis/",
        ),
        (
            lambda api: ApiPods(api).find(POD_REF, wait_seconds=0.7),
            "pod default/train: GET /api/v1",
        ),
    ],
    ids=["claim", "pod"],
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
    slices = ApiSlices(api, node_name=NODE.name)
    created = slices.create(new_slice())
    replaced = slices.replace({**created, "spec": new_slice(generation=2)["spec"]})

    (listed,) = slices.fetch() or ()
    assert listed.items() <= replaced.items()
    assert replaced["metadata"]["uid"] == created["metadata"]["uid"]
    assert replaced["spec"]["pool"]["generation"] == 2
    for _ in range(2):  # then it is gone already
        slices.delete(replaced)
    assert slices.fetch() == []


def test_slice_changed_since_the_read_is_neither_replaced_nor_deleted(api: Api) -> None:
    slices = ApiSlices(api, node_name=NODE.name)
    read = slices.create(new_slice())
    slices.replace({**read, "spec": new_slice(generation=2)["spec"]})

    for write in (slices.replace, slices.delete):
        with pytest.raises(StatusError, match="409"):
            write({**read, "spec": new_slice(generation=3)["spec"]})


def test_server_without_v1_is_retryable(tmp_path: Path) -> None:
    with ApiServer(resource_versions=("v1beta1",)) as server:
        api = Api(server.kubeconfig(tmp_path / "kubeconfig"))

        with pytest.raises(RetryableError, match=r"resource\.k8s\.io/v1/resourceslices: 404"):
            ApiSlices(api, node_name=NODE.name).fetch()


def test_node_uid_is_read_and_missing_node_is_retryable(api: Api) -> None:
    stored = api.call("POST", NODES, body=objects.node(NODE.name))

    assert ApiNodes(api, node_name=NODE.name).uid() == stored["metadata"]["uid"]
    with pytest.raises(RetryableError, match="404"):
        ApiNodes(api, node_name="node-02").uid()


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
    status = {"status": {"conditions": conditions}}
    api.call("POST", NODES, body={**objects.node("node-01"), **status})

    assert ApiNodes(api, node_name="node-01").is_ready() is ready


PRIORITY = "GET /apis/scheduling.k8s.io/v1/priorityclasses"


def test_priority_class_exists_or_not(tmp_path: Path) -> None:
    answers = {f"{PRIORITY}/high": {"value": 1}, f"{PRIORITY}/hidden": (403, "no")}
    with canned_api.served(answers) as server:
        api = Api(server.kubeconfig(tmp_path / "kubeconfig"))

        assert has_priority_class(api, "high", 5)
        assert not has_priority_class(api, "low", 5)
        with pytest.raises(RetryableError, match="403"):
            has_priority_class(api, "hidden", 5)


def test_a_list_for_which_no_time_is_left_is_retryable(api: Api) -> None:
    with pytest.raises(RetryableError, match="no answer within the time"):
        api.listed("/api/v1/pods", dict, wait_seconds=-0.001)


def page(*names: str, more: str = "") -> dict[str, Any]:
    return {"metadata": {"continue": more}, "items": [{"metadata": {"name": n}} for n in names]}


def test_pages_are_followed_to_the_end(tmp_path: Path) -> None:
    pages = iter([page("a", "b", more="token"), page("c")])
    with canned_api.served({f"GET {NODES}": lambda _: next(pages)}) as server:
        lists = ClusterLists(Api(server.kubeconfig(tmp_path / "kubeconfig")))

        assert [item["metadata"]["name"] for item in lists.items(NODES)] == ["a", "b", "c"]

    asked = [request for request, _ in server.requests]
    assert asked == [f"GET {NODES}?limit=25", f"GET {NODES}?limit=500&continue=token"]


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


def test_slices_of_all_nodes_but_only_of_this_driver_are_read(api: Api) -> None:
    for document in (
        slice_document("a", node="node-a"),
        slice_document("b", node="node-b"),
        slice_document("nic", driver="nic.example.com", devices=[{"name": "nic-0"}]),
    ):
        api.call("POST", SLICES_PATH, body=document)

    published = PublishedCards(api)
    with running(published.run, stop=published.stop):
        assert eventually(lambda: known(published) == 2)
        assert eventually(lambda: selected(published, "all", lambda item: item) == 2)


def known(published: PublishedCards) -> int:
    """Return the number of nodes whose cards are known."""
    try:
        return sum(count for count, _ in published.current().nodes.values())
    except RetryableError:
        return 0


def slice_of(node: str, name: str = "") -> Json:
    spec = {**new_slice()["spec"], "nodeName": node}
    return {**new_slice(), "metadata": {"name": name or node}, "spec": spec}


def test_cards_of_nodes_follow_their_slices(api: Api) -> None:
    published = PublishedCards(api)
    with pytest.raises(RetryableError, match="not listed by the API server yet"):
        published.current()
    nodes = [ApiSlices(api, node_name=f"node-{number}") for number in range(3)]
    created = [each.create(slice_of(f"node-{number}")) for number, each in enumerate(nodes)]
    with running(published.run, stop=published.stop):
        assert eventually(lambda: known(published) == 3)
        ((of_node, _),) = published.current().nodes.items()
        assert {card.model for card, _ in of_node.cards} == {"A100"}

        nodes[0].delete(created[0])
        assert eventually(lambda: known(published) == 2)
        nodes[0].create(slice_of("node-0"))
        assert eventually(lambda: known(published) == 3)


@pytest.fixture
def api_with_quotas(tmp_path: Path) -> Iterator[Api]:
    with ApiServer(tensor_fusion=True) as server:
        yield Api(server.kubeconfig(tmp_path / "with-quotas"))


def test_what_was_admitted_is_written_into_a_quota_unless_another_was_faster(
    api_with_quotas: Api,
) -> None:
    api, quotas = api_with_quotas, Quotas(api_with_quotas)
    path = "/apis/tensor-fusion.ai/v1/namespaces/team-a/gpuresourcequotas"
    api.call("POST", "/api/v1/namespaces", body={"metadata": {"name": "team-a"}})
    api.call("POST", path, body=quota_document())
    (seen,) = quotas.of_namespace("team-a", wait_seconds=PATIENCE_SECONDS)

    assert quotas.annotate(seen, "{}", wait_seconds=PATIENCE_SECONDS)
    assert not quotas.annotate(seen, '{"lost": []}', wait_seconds=PATIENCE_SECONDS)

    (stored,) = quotas.of_namespace("team-a", wait_seconds=PATIENCE_SECONDS)
    assert stored["metadata"]["annotations"] == {names.QUOTA_ADMITTED: "{}"}
    assert quotas.annotate(stored, "[]", wait_seconds=PATIENCE_SECONDS)
    api.call("DELETE", f"{path}/gpus")
    assert not quotas.annotate(stored, "{}", wait_seconds=PATIENCE_SECONDS)


Select = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class SlowSelection:
    """Selects all cards once the test lets it go on, and counts its slices."""

    def __init__(self) -> None:
        self.go_on, self.begun = Event(), Event()
        self.count = 0

    def __call__(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_SECONDS)
        self.count += 1
        return item


def selected(
    published: PublishedCards, key: str, select: Select, namespace: str = ""
) -> int | None:
    """Return the number of nodes whose cards are selected; None if they are not known yet."""
    try:
        found = published.selected(key, select, namespace=namespace or key, wait_seconds=0.1)
    except RetryableError:
        return None
    return sum(count for count, _ in found.nodes.values())


def test_selection_goes_on_after_its_caller_has_gone_and_is_kept_for_others(api: Api) -> None:
    api.call("POST", SLICES_PATH, body=slice_document("a", node="node-a"))
    published, slow = PublishedCards(api), SlowSelection()
    with closing_selections(published):
        assert selected(published, "slow", slow) is None
        assert slow.begun.wait(PATIENCE_SECONDS)
        assert selected(published, "slow", slow) is None
        assert selected(published, "other", lambda item: item) is None
        slow.go_on.set()

        assert eventually(lambda: selected(published, "slow", slow) == 1)
        assert eventually(lambda: selected(published, "other", lambda item: item) == 1)
        assert slow.count == 1


def test_selection_that_had_to_wait_is_kept_as_long_as_any(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    monkeypatch.setattr(published_cards, "time", clock)
    api.call("POST", SLICES_PATH, body=slice_document("a", node="node-a"))
    published, slow, quick = PublishedCards(api), SlowSelection(), SlowSelection()
    quick.go_on.set()
    with closing_selections(published):
        assert selected(published, "slow", slow) is None
        assert selected(published, "quick", quick) is None
        clock.sleep(100)
        slow.go_on.set()
        assert eventually(lambda: selected(published, "quick", quick) == 1)
        clock.sleep(25)
        assert selected(published, "quick", quick) == 1
        assert quick.count == 1

        clock.sleep(10)
        assert eventually(lambda: quick.count == 2 or selected(published, "quick", quick) is None)


def test_selections_that_wait_are_bounded_and_end_with_the_process(api: Api) -> None:
    for name in ("a", "b"):
        api.call("POST", SLICES_PATH, body=slice_document(name, node=f"node-{name}"))
    published, slow = PublishedCards(api), SlowSelection()
    with closing_selections(published):
        keys = [f"key-{number}" for number in range(20)]
        assert [selected(published, key, slow) for key in keys] == [None] * 20
        with pytest.raises(RetryableError, match="many selectors"):
            published.selected("further", slow, namespace="another", wait_seconds=60.0)
        published.stop()
        slow.go_on.set()
        assert eventually(lambda: not selecting())

    assert slow.count <= 1


def test_selections_of_one_namespace_leave_room_for_others(api: Api) -> None:
    published, slow = PublishedCards(api), SlowSelection()
    api.call("POST", SLICES_PATH, body=slice_document("a", node="node-a"))
    with closing_selections(published):
        for number in range(20):
            assert selected(published, f"key-{number}", slow, "team-a") is None
        assert selected(published, "other", lambda item: item, "team-b") is None
        slow.go_on.set()

        assert eventually(lambda: selected(published, "other", lambda item: item, "team-b") == 1)
        assert selected(published, "key-1", slow, "team-a") == 1
        assert slow.count == 2


def refusal(published: PublishedCards) -> str:
    """Return why there is no selection of all cards; "" if there is one."""
    try:
        published.selected("all", lambda item: item, namespace="a", wait_seconds=0.1)
    except RetryableError as error:
        return str(error)
    return ""


def selecting() -> bool:
    return any(each.name.startswith("selections") for each in threading.enumerate())


@contextmanager
def closing_selections(published: PublishedCards) -> Iterator[None]:
    try:
        yield
    finally:
        published.stop()


def test_failed_selection_is_retryable_and_made_again(tmp_path: Path) -> None:
    answers: Json = {f"GET {SLICES_PATH}": (500, "no")}
    with canned_api.served(answers) as server:
        published = PublishedCards(Api(server.kubeconfig(tmp_path / "kubeconfig")))
        with closing_selections(published):
            assert eventually(lambda: "500" in refusal(published))
            server.answers[f"GET {SLICES_PATH}"] = {"items": []}
            assert eventually(lambda: not refusal(published))


def test_of_one_node_a_few_slices_are_kept(api: Api) -> None:
    published = PublishedCards(api)
    node = ApiSlices(api, node_name="node-0")
    for number in range(cards.MAX_SLICES + 5):
        node.create(slice_of("node-0", f"s{number}"))
    with running(published.run, stop=published.stop):
        assert eventually(lambda: known(published) == 1)
        expected = cards.MAX_SLICES * cards.of_slices([new_slice()]).number()
        assert eventually(lambda: published.current().number() == expected)


def test_slices_of_others_are_left_out_even_if_a_proxy_drops_the_selector(tmp_path: Path) -> None:
    metadata = {"name": "a", "uid": "1", "resourceVersion": "1"}
    own: Json = {**new_slice(), "metadata": metadata}
    others = [
        {"metadata": metadata, "spec": {**own["spec"], **changed}}
        for changed in ({"driver": "nvidia"}, {"nodeName": "node-99"})
    ]
    items = {"items": [*others, {"metadata": metadata}, own]}
    with canned_api.served({f"GET {SLICES_PATH}": items}) as server:
        api = Api(server.kubeconfig(tmp_path / "kubeconfig"))

        assert ApiSlices(api, node_name=NODE.name).fetch() == [own]


ANNOTATIONS = {"tensor-fusion.ai/vram-limit": "8Gi", "example.com/other": "x"}


@pytest.mark.parametrize("name", ["gone", "train"])
def test_missing_or_replaced_pod_is_not_found(api: Api, name: str) -> None:
    create_pod(api, "train", annotations=ANNOTATIONS)
    earlier = PodRef(namespace="default", name=name, uid="uid-of-the-one-before")

    assert ApiPods(api).find(earlier, wait_seconds=5) is None


def test_only_this_drivers_annotations_of_a_pod_are_kept(api: Api) -> None:
    ref = create_pod(api, "train", annotations=ANNOTATIONS)

    found = ApiPods(api).find(ref, wait_seconds=5) or {}
    assert found["metadata"]["annotations"] == {"tensor-fusion.ai/vram-limit": "8Gi"}


def test_missing_permission_names_the_setting_that_avoids_it(server: ApiServer, api: Api) -> None:
    server.faults.add("get", "pods", Refuse(403, "no right"))

    with pytest.raises(RetryableError, match=r"pod default/train: .*get pods.*--read-pods.*403"):
        ApiPods(api).find(POD_REF, wait_seconds=5)


LABEL = {"tensor-fusion.ai/component": "worker"}


def create_pod(api: Api, name: str, node: str = "node-01", **metadata: Any) -> PodRef:
    document = objects.pod(name)
    document["metadata"] |= metadata
    document["spec"]["nodeName"] = node
    stored = api.call("POST", "/api/v1/namespaces/default/pods", body=document)
    return PodRef(namespace="default", name=name, uid=stored["metadata"]["uid"])


def workers_of(api: Api) -> ApiWorkerPods:
    return ApiWorkerPods(api, node_name="node-01")


def names_of(api: Api) -> list[str]:
    return [pod["metadata"]["name"] for pod in workers_of(api).of_node(dict, wait_seconds=5)]


PODS: Json = {
    "elsewhere": {"node": "node-02", "labels": LABEL},
    "no-worker": {},
    "ours": {"labels": LABEL},
}


def test_workers_of_the_own_node_are_listed(api: Api) -> None:
    for name, fields in PODS.items():
        create_pod(api, name, **fields)

    assert names_of(api) == ["ours"]


def test_marks_are_added_changed_and_removed_and_the_rest_stays(api: Api) -> None:
    ref = create_pod(api, "train", labels={"app": "x"}, annotations={"a": "1", "b": "2"})

    workers_of(api).mark(ref, labels=LABEL, annotations={"a": None, "c": "3"}, wait_seconds=5)

    stored = api.call("GET", "/api/v1/namespaces/default/pods/train")
    assert stored["metadata"]["labels"] == {"app": "x", **LABEL}
    assert stored["metadata"]["annotations"] == {"b": "2", "c": "3"}

    workers_of(api).mark(ref, labels=dict.fromkeys(LABEL), annotations={}, wait_seconds=5)
    assert names_of(api) == []


def test_changes_of_the_own_nodes_workers_are_watched(api: Api) -> None:
    pods = [create_pod(api, name, **fields) for name, fields in PODS.items()]
    seen: list[tuple[str, str, Any]] = []

    def note(kind: str, pod: Any) -> None:
        metadata = pod["metadata"]
        seen.append((kind, metadata["name"], metadata.get("annotations", {}).get("a")))

    def on_list(found: Sequence[Any]) -> None:
        for pod in found:
            note("LISTED", pod)

    watch = workers_of(api).watch(dict, on_list, note)
    with running(watch.run, stop=watch.stop):
        assert eventually(lambda: seen == [("LISTED", "ours", None)])
        for ref in pods:
            workers_of(api).mark(ref, labels={}, annotations={"a": "1"}, wait_seconds=5)

        assert eventually(lambda: seen[1:] == [("MODIFIED", "ours", "1")])


def test_pod_that_is_gone_is_not_marked(api: Api) -> None:
    with pytest.raises(RetryableError, match=r"pod default/train: .*404"):
        workers_of(api).mark(POD_REF, labels=LABEL, annotations={}, wait_seconds=5)


def test_missing_permissions_to_workers_are_named(api: Api, server: ApiServer) -> None:
    for verb in ("list", "patch"):
        server.faults.add(verb, "pods", Refuse(403, "no right"))

    with pytest.raises(RetryableError, match="workers of the node: expected the right to list pod"):
        workers_of(api).of_node(dict, wait_seconds=5)
    with pytest.raises(MissingPermissionError, match=r"patch pods of this node: .*/pods/train"):
        workers_of(api).mark(POD_REF, labels=LABEL, annotations={}, wait_seconds=5)


OURS = {
    "driver": "tensor-fusion.ai.dra-driver",
    "pool": POOL,
    "device": DEVICE,
    "shareID": SHARE_ID,
}
THEIRS = {"driver": "nic.example.com", "pool": "nics", "device": "nic-0"}


def not_granted(verbs: str) -> str:
    """Return the error of a 1.36 API server to a plugin without the granular right."""
    return (
        'ResourceClaim.resource.k8s.io "a" is invalid: status.devices: Forbidden: changing'
        f' status.devices requires resource="resourceclaims/driver", verb="[{verbs}]" permission:'
        ' resourceclaims.resource.k8s.io "tensor-fusion.ai.dra-driver" is forbidden'
    )


def create_allocated_claim(api: Api) -> ClaimRef:
    """Create a claim with a share of our card and a network card of another driver."""
    stored = api.call(
        "POST", CLAIMS, body=objects.claim(*map(objects.exactly, ("gpu", "nic")), name="a")
    )
    results = [{**OURS, "request": "gpu"}, {**THEIRS, "request": "nic"}]
    stored["status"] = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "train", "uid": "uid-of-train"}],
    }
    stored = api.call("PUT", f"{CLAIMS}/a/status", body=stored)
    return ClaimRef(namespace="default", name="a", uid=stored["metadata"]["uid"])


def entries(*, vram_gib: int = 24) -> list[Json]:
    prepared = reported_claim("a", reported_share(limit=reported_limit(vram_gib)))
    since = Readiness(since=datetime(2026, 3, 1, tzinfo=UTC))
    return device_status.status(prepared, {prepared.shares[0].device: since})


def apply_theirs(api: Api, ref: ClaimRef, data: Json) -> None:
    api.call(
        "PATCH",
        f"{CLAIMS}/{ref.name}/status",
        query={"fieldManager": "nic", "force": "true"},
        body={
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": ref.name, "namespace": ref.namespace},
            "status": {"devices": [{**THEIRS, "data": data}]},
        },
        content_type=APPLY,
    )


def stored_devices(api: Api) -> Any:
    return api.call("GET", f"{CLAIMS}/a")["status"].get("devices")


def deallocated_claim(api: Api) -> ClaimRef:
    """Create a claim, remove its allocation, and return it."""
    ref = create_allocated_claim(api)
    stored = api.call("GET", f"{CLAIMS}/a")
    del stored["status"]["reservedFor"], stored["status"]["allocation"]
    api.call("PUT", f"{CLAIMS}/a/status", body=stored)
    return ref


def replaced_claim(api: Api) -> ClaimRef:
    """Delete a claim, create another one with the same name, and return the deleted one."""
    old = deallocated_claim(api)
    api.call("DELETE", f"{CLAIMS}/a")
    create_allocated_claim(api)
    return old


def missing_claim(api: Api) -> ClaimRef:
    return replace(create_allocated_claim(api), name="none")


def test_write_adds_entries_and_keeps_the_allocation(api: Api) -> None:
    ref = create_allocated_claim(api)
    before = api.call("GET", f"{CLAIMS}/a")["status"]

    assert ApiClaimStatus(api).write(ref, entries())

    assert api.call("GET", f"{CLAIMS}/a")["status"] == {**before, "devices": entries()}


def test_entries_of_two_drivers_coexist(api: Api) -> None:
    ref = create_allocated_claim(api)
    for vram_gib, mac in ((24, "02:00:00:00:00:01"), (20, "02:00:00:00:00:02")):
        ApiClaimStatus(api).write(ref, entries(vram_gib=vram_gib))
        apply_theirs(api, ref, {"mac": mac})

        ours, theirs = sorted(
            stored_devices(api), key=lambda device: device["driver"] != OURS["driver"]
        )
        assert [ours] == entries(vram_gib=vram_gib)
        assert (theirs["driver"], theirs["data"]) == (THEIRS["driver"], {"mac": mac})


def test_binding_condition_outlasts_the_status_of_the_prepared_claim(api: Api) -> None:
    """Another pod that uses the claim waits for it as well."""
    ref = create_allocated_claim(api)
    condition = {**entries()[0]["conditions"][0], "type": names.BINDING_READY}
    waited = ApiClaimStatus(api, manager=names.BINDING_MANAGER)
    waited.write(ref, [{**OURS, "conditions": [condition]}])

    for vram_gib in (24, 20):
        ApiClaimStatus(api).write(ref, entries(vram_gib=vram_gib))

    (entry,) = stored_devices(api)
    assert {each["type"] for each in entry["conditions"]} == {"Ready", names.BINDING_READY}


@pytest.mark.parametrize("lost", [missing_claim, replaced_claim, deallocated_claim])
def test_claim_that_lost_its_devices_is_not_written(
    api: Api, lost: Callable[[Api], ClaimRef]
) -> None:
    assert not ApiClaimStatus(api).write(lost(api), entries())
    assert stored_devices(api) is None


def test_rejection_of_an_immutable_uid_counts_as_claim_gone(server: ApiServer, api: Api) -> None:
    ref = replaced_claim(api)
    refusal = Refuse(422, 'metadata.uid: Invalid value: "x": field is immutable')
    server.faults.add("patch", "resourceclaims/status", refusal)

    assert not ApiClaimStatus(api).write(ref, entries())


@pytest.mark.parametrize(
    ("refusal", "permission"),
    [
        (Refuse(403, "no right"), "patch on resourceclaims/status"),
        (
            Refuse(422, not_granted("associated-node:patch arbitrary-node:patch")),
            "associated-node:patch on resourceclaims/driver",
        ),
        (Refuse(422, not_granted("arbitrary-node:patch")), "a token bound to a pod"),
    ],
)
def test_missing_permission_is_named(
    server: ApiServer, api: Api, refusal: Refuse, permission: str
) -> None:
    ref = create_allocated_claim(api)
    server.faults.add("patch", "resourceclaims/status", refusal)

    with pytest.raises(MissingPermissionError, match=r"claim default/a: PATCH .*") as refused:
        ApiClaimStatus(api).write(ref, entries())

    assert refused.value.permission.startswith(permission)


@pytest.mark.parametrize("fault", [Refuse(409), Refuse(422), Refuse(500), Refuse(429), Cut()])
def test_other_faults_are_retryable(server: ApiServer, api: Api, fault: Refuse | Cut) -> None:
    ref = create_allocated_claim(api)
    server.faults.add("patch", "resourceclaims/status", fault)

    with pytest.raises(RetryableError) as raised:
        ApiClaimStatus(api).write(ref, entries())

    assert not isinstance(raised.value, MissingPermissionError)
