"""Input of the webhook: pods, claims and AdmissionReviews of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.kubernetes import review
from tensorfusion_dra.core.kubernetes.review import Review
from tensorfusion_dra.simulator.api.patches import JsonPatch

Json = dict[str, Any]

PREFIX = "tensor-fusion.ai/"


def said(**annotations: str) -> dict[str, str]:
    """Return annotations of Tensor Fusion; underscores in the names stand for dashes."""
    return {PREFIX + name.replace("_", "-"): text for name, text in annotations.items()}


def pod(annotations: Mapping[str, str], *containers: Json, **spec: Any) -> Json:
    """Return a pod, with one container `main` by default."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "team-a", "annotations": dict(annotations)},
        "spec": {"containers": list(containers) or [container()], **spec},
    }


def container(name: str = "main", **fields: Any) -> Json:
    """Return a container of a pod."""
    return {"name": name, "image": "train", **fields}


def claim(**changes: Any) -> Json:
    """Return a claim of the pod `train`, as the claim controller creates it from the template."""
    exactly = {"deviceClassName": "tensor-fusion.ai", "allocationMode": "ExactCount", "count": 1}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "train", "uid": "uid-train"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": "train-tensor-fusion-gpu-claim-",
            "namespace": "team-a",
            "labels": {"tensor-fusion.ai/resource-claim-template": "true"},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"devices": {"requests": [{"name": "gpu-request", "exactly": exactly}]}, **changes},
    }


def gpupool(name: str, *, default: bool = False, **spec: Any) -> Json:
    """Return a GPUPool."""
    annotations = {"tensor-fusion.ai/is-default-pool": "true"} if default else {}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}


def asked(document: Json, *, operation: str = "CREATE", old: Json | None = None) -> Review:
    """Return the review of an object."""
    return review.parse(body(document, operation=operation, old=old), wait_seconds=5)


def body(document: Json, *, operation: str = "CREATE", old: Json | None = None) -> bytes:
    """Return the AdmissionReview that the API server posts for an object."""
    group, _, version = document["apiVersion"].rpartition("/")
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": group, "version": version, "kind": document["kind"]},
        "operation": operation,
        "name": document["metadata"].get("name", ""),
        "namespace": document["metadata"].get("namespace", ""),
        "object": document,
        "oldObject": old,
    }
    document = {"apiVersion": review.API_VERSION, "kind": review.KIND, "request": request}
    return json.dumps(document).encode()


def patched(document: Json, operations: Sequence[object]) -> Json:
    """Apply a JSON patch to an object as the simulated API server does, and return the result."""
    return JsonPatch(tuple(operations)).applied(document)


class ObjectsInMemory:
    """Objects set by a test; implements driver.ports.cluster.Objects."""

    def __init__(self, *items: Json) -> None:
        self.listed: Sequence[Json] = items
        self.error: Exception | None = None

    def items(self) -> Sequence[Json]:
        if self.error is not None:
            raise self.error
        return self.listed


class PodsInMemory:
    """Pods by UID; implements webhook.ports.PodReader."""

    def __init__(self) -> None:
        self.stored: dict[str, Json] = {}
        self.error: Exception | None = None

    def find(self, pod: PodRef, *, wait_seconds: float) -> Json | None:
        assert wait_seconds > 0
        if self.error is not None:
            raise self.error
        return self.stored.get(pod.uid)


class SlicesInMemory:
    """Slices set by a test; implements webhook.ports.PublishedSlices."""

    def __init__(self, *slices: Json) -> None:
        self.slices: Sequence[Json] = slices
        self.error: Exception | None = None
        self.reads = 0

    def published(self, *, wait_seconds: float) -> Sequence[Json]:
        assert wait_seconds > 0
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.slices


def published(*devices: tuple[str, str], pool: str = "default") -> Json:
    """Return a slice of a GPUPool with devices, each given by model and TFLOPS."""
    return {
        "spec": {
            "devices": [
                {
                    "name": f"gpu-{index}",
                    "attributes": {"model": {"string": model}, "pool_name": {"string": pool}},
                    "capacity": {"tflops": {"value": tflops}, "vram": {"value": "80Gi"}},
                }
                for index, (model, tflops) in enumerate(devices)
            ]
        }
    }
