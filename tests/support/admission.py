"""What the API server sends to the webhook: pods, claims and reviews of them."""

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
    """Annotations of Tensor Fusion, an underscore for each dash."""
    return {PREFIX + name.replace("_", "-"): text for name, text in annotations.items()}


def pod(annotations: Mapping[str, str], *containers: Json, **spec: Any) -> Json:
    """A pod; with one container `main` unless others are given."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "team-a", "annotations": dict(annotations)},
        "spec": {"containers": list(containers) or [container()], **spec},
    }


def container(name: str = "main", **fields: Any) -> Json:
    """A container of a pod."""
    return {"name": name, "image": "train", **fields}


def claim(**changes: Any) -> Json:
    """A claim of the pod `train`, as the claim controller makes it from the template."""
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
    """A GPUPool."""
    annotations = {"tensor-fusion.ai/is-default-pool": "true"} if default else {}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}


def asked(document: Json, *, operation: str = "CREATE", old: Json | None = None) -> Review:
    """The review of an object."""
    return review.parse(body(document, operation=operation, old=old), wait_seconds=5)


def body(document: Json, *, operation: str = "CREATE", old: Json | None = None) -> bytes:
    """What the API server posts about an object."""
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
    """An object after a JSON patch, as the simulated API server applies it."""
    return JsonPatch(tuple(operations)).applied(document)


class ObjectsInMemory:
    """See driver.ports.cluster.Objects; a test sets what is told."""

    def __init__(self, *items: Json) -> None:
        self.told: Sequence[Json] = items
        self.error: Exception | None = None

    def items(self) -> Sequence[Json]:
        if self.error is not None:
            raise self.error
        return self.told


class PodsInMemory:
    """See webhook.ports.PodReader; pods by UID."""

    def __init__(self) -> None:
        self.stored: dict[str, Json] = {}
        self.error: Exception | None = None

    def find(self, pod: PodRef, *, wait_seconds: float) -> Json | None:
        assert wait_seconds > 0
        if self.error is not None:
            raise self.error
        return self.stored.get(pod.uid)


class SlicesInMemory:
    """See webhook.ports.PublishedSlices; a test sets what is published."""

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
    """A slice of devices, each by model and TFLOPS, in a GPUPool."""
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
