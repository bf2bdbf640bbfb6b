"""ResourceClaims as the API server stores them."""

import uuid
from typing import Any


def stored_claim(name: str, *results: dict[str, Any], uid: str = "") -> dict[str, Any]:
    """Return an allocated claim in the namespace default."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": uid or str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
        },
        "spec": {"devices": {"requests": [{"name": "gpu"}]}},
        "status": {
            "allocation": {"devices": {"results": list(results)}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-of-{name}"}],
        },
    }


def allocation_result(
    device: str | None,
    *,
    tflops: str | None,
    vram: str | None,
    request: str = "gpu",
    pool: str = "default/node-01",
) -> dict[str, Any]:
    """Return the scheduler's result for one share; None leaves an amount out."""
    consumed = {"tflops": tflops, "vram": vram}
    return {
        "request": request,
        "driver": "tensor-fusion.ai.dra-driver",
        "pool": pool,
        "device": device,
        "shareID": str(uuid.uuid4()),
        "consumedCapacity": {name: text for name, text in consumed.items() if text is not None},
    }


def template_claim(**changes: Any) -> dict[str, Any]:
    """Return a claim of the pod `train`, as the claim controller creates it from the template.

    The claim is not allocated yet; changes set other fields of its spec.
    """
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
