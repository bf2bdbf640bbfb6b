"""Pods and the status of claims over HTTP, with the marks of workers."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from dra_simulator.api.faults import Cut, Refuse
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster.api import APPLY, Api
from tensorfusion_dra.cluster.objects import Claims, ClaimStatus, Pods, WorkerPods
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.device_status import Readiness
from tensorfusion_dra.core.errors import MissingPermissionError, RetryableError
from tests.cluster.test_watches import following
from tests.support.builders.reported_claims import (
    DEVICE,
    POOL,
    SHARE_ID,
    reported_claim,
    reported_limit,
    reported_share,
)
from tests.support.waiting import eventually

ANNOTATIONS = {"tensor-fusion.ai/vram-limit": "8Gi", "example.com/other": "x"}


@pytest.mark.parametrize("name", ["gone", "train"])
def test_missing_or_replaced_pod_is_not_found(api: Api, name: str) -> None:
    create_pod(api, "train", annotations=ANNOTATIONS)
    earlier = PodRef(namespace="default", name=name, uid="uid-of-the-one-before")

    assert Pods(api).find(earlier, wait_seconds=5) is None


def test_only_this_drivers_annotations_of_a_pod_are_kept(api: Api) -> None:
    ref = create_pod(api, "train", annotations=ANNOTATIONS)

    own = {key: ANNOTATIONS[key] for key in ANNOTATIONS if key.startswith("tensor-fusion.ai/")}
    found = Pods(api).find(ref, wait_seconds=5)
    assert found is not None
    assert found["metadata"]["annotations"] == own != {}


def test_missing_permission_names_the_setting_that_avoids_it(server: ApiServer, api: Api) -> None:
    ref = create_pod(api, "train", annotations=ANNOTATIONS)
    server.faults.add("get", "pods", Refuse(403, "no right"))

    with pytest.raises(RetryableError, match=r"pod default/train: .*get pods.*--read-pods.*403"):
        Pods(api).find(ref, wait_seconds=5)


LABEL = {"tensor-fusion.ai/component": "worker"}


def create_pod(api: Api, name: str, node: str = "node-01", **metadata: Any) -> PodRef:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "train"}]},
    }
    stored = api.call("POST", "/api/v1/namespaces/default/pods", body=body)
    return PodRef(namespace="default", name=name, uid=stored["metadata"]["uid"])


def workers_of(api: Api) -> WorkerPods:
    return WorkerPods(api, node_name="node-01")


def names_of(api: Api) -> list[str]:
    return [pod["metadata"]["name"] for pod in workers_of(api).of_node(dict, wait_seconds=5)]


def test_workers_of_the_own_node_are_listed(api: Api) -> None:
    create_pod(api, "ours", labels=LABEL)
    create_pod(api, "elsewhere", node="node-02", labels=LABEL)
    create_pod(api, "no-worker")

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
    ours = create_pod(api, "ours", labels=LABEL)
    elsewhere = create_pod(api, "elsewhere", node="node-02", labels=LABEL)
    other = create_pod(api, "no-worker")
    seen: list[tuple[str, str, Any]] = []

    def note(kind: str, pod: Any) -> None:
        metadata = pod["metadata"]
        seen.append((kind, metadata["name"], metadata.get("annotations", {}).get("a")))

    def on_list(pods: Sequence[Any]) -> None:
        for pod in pods:
            note("LISTED", pod)

    with following(workers_of(api).watch(dict, on_list, note)):
        assert eventually(lambda: seen == [("LISTED", "ours", None)])
        for ref in (elsewhere, other, ours):
            workers_of(api).mark(ref, labels={}, annotations={"a": "1"}, wait_seconds=5)

        assert eventually(lambda: seen[1:] == [("MODIFIED", "ours", "1")])


def test_pod_that_is_gone_is_not_marked(api: Api) -> None:
    gone = PodRef(namespace="default", name="gone", uid="uid")

    with pytest.raises(RetryableError, match=r"pod default/gone: .*404"):
        workers_of(api).mark(gone, labels=LABEL, annotations={}, wait_seconds=5)


def test_missing_permissions_to_workers_are_named(api: Api, server: ApiServer) -> None:
    ref = create_pod(api, "train")
    for verb in ("list", "patch"):
        server.faults.add(verb, "pods", Refuse(403, "no right"))

    with pytest.raises(RetryableError, match="workers of the node: expected the right to list pod"):
        workers_of(api).of_node(dict, wait_seconds=5)
    with pytest.raises(MissingPermissionError, match=r"patch pods of this node: .*/pods/train"):
        workers_of(api).mark(ref, labels=LABEL, annotations={}, wait_seconds=5)


Json = dict[str, Any]

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
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


def create_allocated_claim(api: Api, *, name: str = "a") -> ClaimRef:
    """Create a claim with a share of our card and a network card of another driver."""
    wanted = [{"name": each, "exactly": {"deviceClassName": each}} for each in ("gpu", "nic")]
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": wanted}},
    }
    stored = api.call("POST", CLAIMS, body=body)
    results = [{**OURS, "request": "gpu"}, {**THEIRS, "request": "nic"}]
    stored["status"] = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "train", "uid": "uid-of-train"}],
    }
    stored = api.call("PUT", f"{CLAIMS}/{name}/status", body=stored)
    return ClaimRef(namespace="default", name=name, uid=stored["metadata"]["uid"])


def entries(*, vram_gib: int = 24) -> list[Json]:
    prepared = reported_claim("a", reported_share(limit=reported_limit(vram_gib)))
    since = Readiness(since=datetime(2026, 3, 1, tzinfo=UTC))
    return device_status.status(prepared, {prepared.shares[0].device: since})


def stored_status(api: Api, name: str = "a") -> Json:
    status: Json = api.call("GET", f"{CLAIMS}/{name}")["status"]
    return status


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


def replace_claim(api: Api) -> ClaimRef:
    """Delete a claim, create another one with the same name, and return the deleted one."""
    old = create_allocated_claim(api)
    deallocate(api)
    api.call("DELETE", f"{CLAIMS}/a")
    create_allocated_claim(api)
    return old


def deallocate(api: Api) -> None:
    """Remove the claim's allocation."""
    stored = api.call("GET", f"{CLAIMS}/a")
    stored["status"].pop("reservedFor", None)
    stored["status"].pop("allocation")
    api.call("PUT", f"{CLAIMS}/a/status", body=stored)


def test_write_adds_entries_and_keeps_the_allocation(api: Api) -> None:
    ref = create_allocated_claim(api)
    before = stored_status(api)

    written = ClaimStatus(api).write(ref, entries())

    assert written
    assert stored_status(api) == {**before, "devices": entries()}


def test_entries_of_two_drivers_coexist(api: Api) -> None:
    ref = create_allocated_claim(api)
    claim_status = ClaimStatus(api)
    claim_status.write(ref, entries())
    apply_theirs(api, ref, {"mac": "02:00:00:00:00:01"})

    claim_status.write(ref, entries(vram_gib=20))
    apply_theirs(api, ref, {"mac": "02:00:00:00:00:02"})

    by_driver = {device["driver"]: device for device in stored_status(api)["devices"]}
    (ours,) = entries(vram_gib=20)
    assert by_driver[OURS["driver"]] == ours
    assert by_driver["nic.example.com"]["data"] == {"mac": "02:00:00:00:00:02"}


def test_binding_condition_outlasts_the_status_of_the_prepared_claim(api: Api) -> None:
    """Another pod that uses the claim waits for it as well."""
    ref = create_allocated_claim(api)
    waited = ClaimStatus(api, manager=names.BINDING_MANAGER)
    condition = {**entries()[0]["conditions"][0], "type": names.BINDING_READY}
    waited.write(ref, [{**OURS, "conditions": [condition]}])

    ClaimStatus(api).write(ref, entries())
    ClaimStatus(api).write(ref, entries(vram_gib=20))

    (entry,) = stored_status(api)["devices"]
    types = [each["type"] for each in entry["conditions"]]
    assert sorted(types) == ["Ready", names.BINDING_READY]


def test_all_claims_are_listed_in_pages(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorfusion_dra.cluster.api._PAGE", "2")
    for name in "abc":
        create_allocated_claim(api, name=name)

    listed = Claims(api).listed({"metadata": {"name": str}})

    assert listed == [{"metadata": {"name": name}} for name in "abc"]


def ref_of_missing_claim(api: Api) -> ClaimRef:
    ref = create_allocated_claim(api)
    return ClaimRef(namespace="default", name="none", uid=ref.uid)


def create_deallocated_claim(api: Api) -> ClaimRef:
    ref = create_allocated_claim(api)
    deallocate(api)
    return ref


@pytest.mark.parametrize("lost", [ref_of_missing_claim, replace_claim, create_deallocated_claim])
def test_claim_that_lost_its_devices_is_not_written(
    api: Api, lost: Callable[[Api], ClaimRef]
) -> None:
    ref = lost(api)

    written = ClaimStatus(api).write(ref, entries())

    assert not written
    assert "devices" not in stored_status(api)


def test_rejection_of_an_immutable_uid_counts_as_claim_gone(server: ApiServer, api: Api) -> None:
    ref = replace_claim(api)
    refusal = Refuse(422, 'metadata.uid: Invalid value: "x": field is immutable')
    server.faults.add("patch", "resourceclaims/status", refusal)

    assert not ClaimStatus(api).write(ref, entries())


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
        ClaimStatus(api).write(ref, entries())

    assert refused.value.permission.startswith(permission)


@pytest.mark.parametrize("fault", [Refuse(409), Refuse(422), Refuse(500), Refuse(429), Cut()])
def test_other_faults_are_retryable(server: ApiServer, api: Api, fault: Refuse | Cut) -> None:
    ref = create_allocated_claim(api)
    server.faults.add("patch", "resourceclaims/status", fault)

    with pytest.raises(RetryableError) as raised:
        ClaimStatus(api).write(ref, entries())

    assert not isinstance(raised.value, MissingPermissionError)
