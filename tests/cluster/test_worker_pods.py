"""Marks of workers over HTTP."""

from collections.abc import Sequence
from threading import Thread
from typing import Any

import pytest

from dra_simulator.api.faults import Refuse
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.pods import Pods, WorkerPods
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports.cluster import MissingRightError
from tests.support.waiting import PATIENCE_SECONDS, eventually

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

    def note_list(pods: Sequence[Any]) -> None:
        for pod in pods:
            note("LISTED", pod)

    watch = workers_of(api).watch(note_list, note)
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
