"""Kubernetes objects that an API server accepts, with this driver's names."""

from typing import Any, Final

Json = dict[str, Any]

SHARE: Final = "11111111-2222-3333-4444-555555555555"


def device_document(name: str = "gpu-0", **fields: object) -> Json:
    """Return a shared GPU."""
    policy = {"default": "40Gi", "validRange": {"min": "1Mi", "step": "1Mi"}}
    return {
        "name": name,
        "allowMultipleAllocations": True,
        "attributes": {"model": {"string": "A100"}, "driver_version": {"version": "550.54.15"}},
        "capacity": {"vram": {"value": "40Gi", "requestPolicy": policy}},
        **fields,
    }


def slice_document(name: str = "slice-a", *, node: str = "node-a", **spec: object) -> Json:
    """Return a slice with one device."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "tensor-fusion.ai.dra-driver",
            "pool": {"name": f"pool-a/{node}", "generation": 1, "resourceSliceCount": 1},
            "nodeName": node,
            "devices": [device_document()],
            **spec,
        },
    }


def claim_document(name: str = "claim-a", **devices: object) -> Json:
    """Return a claim for one device."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request_document()], **devices}},
    }


def request_document(name: str = "gpu", **exactly: object) -> Json:
    """Return a request for exactly one device."""
    return {"name": name, "exactly": {"deviceClassName": "tensor-fusion.ai", **exactly}}


def template_document(name: str = "template-a", /, **metadata: object) -> Json:
    """Return a template for claims that get this metadata."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"metadata": metadata, "spec": claim_document()["spec"]},
    }


def class_document(name: str = "tensor-fusion.ai", **spec: object) -> Json:
    """Return a class that selects this driver's devices."""
    expression = 'device.driver == "tensor-fusion.ai.dra-driver"'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}], **spec},
    }


def result_document(**fields: object) -> Json:
    """Return an allocation result: one share of one device."""
    return {
        "request": "gpu",
        "driver": "tensor-fusion.ai.dra-driver",
        "pool": "pool-a/node-a",
        "device": "gpu-0",
        "shareID": SHARE,
        "consumedCapacity": {"vram": "1024Mi"},
        **fields,
    }


def allocation_document(*results: Json, **devices: object) -> Json:
    """Return an allocation on one node."""
    policy = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}]
    return {
        "devices": {"results": list(results) or [result_document()], **devices},
        "nodeSelector": {"nodeSelectorTerms": policy},
    }


def device_status(**fields: object) -> Json:
    """Return the status of the device in result_document()."""
    return {
        "driver": "tensor-fusion.ai.dra-driver",
        "pool": "pool-a/node-a",
        "device": "gpu-0",
        "shareID": SHARE,
        **fields,
    }


def condition(**fields: object) -> Json:
    """Return a condition that is true."""
    return {
        "type": "Ready",
        "status": "True",
        "reason": "Prepared",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        **fields,
    }


def pod_with_claim(name: str = "pod-a", **spec: object) -> Json:
    """Return a pod with a claim that its container uses."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [
                {"name": "app", "image": "app", "resources": {"claims": [{"name": "gpu"}]}}
            ],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "claim-a"}],
            **spec,
        },
    }


def event_document(name: str = "event-a", *, pod: str = "pod-a", **fields: object) -> Json:
    """Return an Event on a pod."""
    return {
        "metadata": {"name": name},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "default",
            "name": pod,
            "uid": f"uid-of-{pod}",
        },
        "reason": "Prepared",
        "message": "ready",
        "type": "Normal",
        "source": {"component": "test"},
        **fields,
    }
