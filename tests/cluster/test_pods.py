"""Pods over HTTP, and the marks of workers."""

from collections.abc import Mapping, Sequence
from threading import Thread
from typing import Any

import pytest

from dra_simulator.api.faults import Cut, HalfOpen, Refuse
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.objects import Pods, WorkerPods
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports import MissingRightError
from tests.support.waiting import PATIENCE_SECONDS, eventually

ANNOTATIONS = {"tensor-fusion.ai/vram-limit": "8Gi", "example.com/other": "x"}


def create_annotated(api: Api, annotations: dict[str, str] | None) -> PodRef:
    metadata: dict[str, Any] = {"name": "train", "namespace": "default"}
    if annotations is not None:
        metadata["annotations"] = annotations
    stored = api.call(
        "POST",
        "/api/v1/namespaces/default/pods",
        body={
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": [{"name": "main", "image": "train"}]},
        },
    )
    return PodRef(namespace="default", name="train", uid=stored["metadata"]["uid"])


def annotations(pod: Mapping[str, Any] | None) -> Any:
    assert pod is not None
    return pod["metadata"].get("annotations", {})


def test_annotations_of_a_pod_are_read(api: Api) -> None:
    ref = create_annotated(api, ANNOTATIONS)

    assert annotations(Pods(api).find(ref, wait_seconds=5)) == ANNOTATIONS


def test_missing_pod_is_not_found(api: Api) -> None:
    ref = PodRef(namespace="default", name="gone", uid="uid")

    assert Pods(api).find(ref, wait_seconds=5) is None


def test_replaced_pod_has_no_annotations(api: Api) -> None:
    create_annotated(api, ANNOTATIONS)
    earlier = PodRef(namespace="default", name="train", uid="uid-of-the-one-before")

    assert Pods(api).find(earlier, wait_seconds=5) is None


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(429, retry_after_seconds=1), Cut()])
def test_transient_fault_is_retried(server: ApiServer, api: Api, fault: Refuse | Cut) -> None:
    ref = create_annotated(api, ANNOTATIONS)
    server.faults.add("get", "pods", fault, times=2)

    assert annotations(Pods(api).find(ref, wait_seconds=5)) == ANNOTATIONS


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(401), Cut(), HalfOpen()])
def test_lasting_fault_is_retryable_and_ends_within_the_time(
    server: ApiServer, api: Api, fault: Refuse | Cut | HalfOpen
) -> None:
    ref = create_annotated(api, ANNOTATIONS)
    server.faults.add("get", "pods", fault)

    with pytest.raises(RetryableError, match=r"^pod default/train: GET /api/v1"):
        Pods(api).find(ref, wait_seconds=0.7)


def test_missing_right_error_names_the_setting_that_avoids_it(server: ApiServer, api: Api) -> None:
    ref = create_annotated(api, ANNOTATIONS)
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
    return [pod["metadata"]["name"] for pod in workers_of(api).of_node(wait_seconds=5)]


def test_workers_of_the_own_node_are_listed(api: Api) -> None:
    create_pod(api, "ours", labels=LABEL)
    create_pod(api, "elsewhere", node="node-02", labels=LABEL)
    create_pod(api, "no-worker")

    assert names_of(api) == ["ours"]


def test_marks_are_added_changed_and_removed_and_the_rest_stays(api: Api) -> None:
    ref = create_pod(api, "train", labels={"app": "x"}, annotations={"a": "1", "b": "2"})

    workers_of(api).mark(ref, labels=LABEL, annotations={"a": None, "c": "3"}, wait_seconds=5)

    stored = Pods(api).find(ref, wait_seconds=5)
    assert stored is not None
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

    watch = workers_of(api).watch(on_list, note)
    thread = Thread(target=watch.run)
    thread.start()
    try:
        assert eventually(lambda: seen == [("LISTED", "ours", None)])
        for ref in (elsewhere, other, ours):
            workers_of(api).mark(ref, labels={}, annotations={"a": "1"}, wait_seconds=5)

        assert eventually(lambda: seen[1:] == [("MODIFIED", "ours", "1")])
    finally:
        watch.stop()
        thread.join(PATIENCE_SECONDS)


def test_pod_that_is_gone_is_not_marked(api: Api) -> None:
    gone = PodRef(namespace="default", name="gone", uid="uid")

    with pytest.raises(RetryableError, match=r"pod default/gone: .*404"):
        workers_of(api).mark(gone, labels=LABEL, annotations={}, wait_seconds=5)


def test_missing_right_to_list_pods_is_named(api: Api, server: ApiServer) -> None:
    server.faults.add("list", "pods", Refuse(403, "no right"))

    with pytest.raises(RetryableError, match="workers of the node: expected the right to list pod"):
        workers_of(api).of_node(wait_seconds=5)


def test_missing_right_to_patch_pods_is_named(api: Api, server: ApiServer) -> None:
    ref = create_pod(api, "train")
    server.faults.add("patch", "pods", Refuse(403, "no right"))

    with pytest.raises(
        MissingRightError, match=r"pod default/train: .*patch pods of this node"
    ) as caught:
        workers_of(api).mark(ref, labels=LABEL, annotations={}, wait_seconds=5)

    assert caught.value.right == "patch on pods"
