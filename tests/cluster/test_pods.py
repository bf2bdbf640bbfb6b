"""Pods over HTTP."""

from collections.abc import Mapping
from typing import Any

import pytest

from dra_simulator.api.faults import Cut, HalfOpen, Refuse
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.pods import Pods
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.errors import RetryableError

ANNOTATIONS = {"tensor-fusion.ai/vram-limit": "8Gi", "example.com/other": "x"}


def create_pod(api: Api, annotations: dict[str, str] | None) -> PodRef:
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
    ref = create_pod(api, ANNOTATIONS)

    assert annotations(Pods(api).find(ref, wait_seconds=5)) == ANNOTATIONS


def test_missing_pod_is_not_found(api: Api) -> None:
    ref = PodRef(namespace="default", name="gone", uid="uid")

    assert Pods(api).find(ref, wait_seconds=5) is None


def test_replaced_pod_has_no_annotations(api: Api) -> None:
    create_pod(api, ANNOTATIONS)
    earlier = PodRef(namespace="default", name="train", uid="uid-of-the-one-before")

    assert Pods(api).find(earlier, wait_seconds=5) is None


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(429, retry_after_seconds=1), Cut()])
def test_transient_fault_is_retried(server: ApiServer, api: Api, fault: Refuse | Cut) -> None:
    ref = create_pod(api, ANNOTATIONS)
    server.faults.add("get", "pods", fault, times=2)

    assert annotations(Pods(api).find(ref, wait_seconds=5)) == ANNOTATIONS


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(401), Cut(), HalfOpen()])
def test_lasting_fault_is_retryable_and_ends_within_the_time(
    server: ApiServer, api: Api, fault: Refuse | Cut | HalfOpen
) -> None:
    ref = create_pod(api, ANNOTATIONS)
    server.faults.add("get", "pods", fault)

    with pytest.raises(RetryableError, match=r"^pod default/train: GET /api/v1"):
        Pods(api).find(ref, wait_seconds=0.7)


def test_missing_right_error_names_the_setting_that_avoids_it(server: ApiServer, api: Api) -> None:
    ref = create_pod(api, ANNOTATIONS)
    server.faults.add("get", "pods", Refuse(403, "no right"))

    with pytest.raises(RetryableError, match=r"pod default/train: .*get pods.*--read-pods.*403"):
        Pods(api).find(ref, wait_seconds=5)
