"""Kubernetes objects for tests, with few fields besides those under test."""

from typing import Any

Json = dict[str, Any]

DRIVER = "gpu.example.com"
NODE = "node-a"
CLASS = "gpu"


def attributes(**values: str | int | bool) -> Json:
    """Attributes of a device, each of the kind of its value."""
    found: Json = {}
    for name, value in values.items():
        if isinstance(value, bool):
            found[name] = {"bool": value}
        elif isinstance(value, int):
            found[name] = {"int": value}
        else:
            found[name] = {"string": value}
    return found


def device(name: str, **values: str | int | bool) -> Json:
    """A device for one claim at a time."""
    return {"name": name, "attributes": attributes(**values)}


def shared(
    name: str, *, tflops: str = "100", vram: str = "40Gi", **values: str | int | bool
) -> Json:
    """A device that claims share; a claim consumes all of a capacity that it does not name."""
    return {
        **device(name, **values),
        "allowMultipleAllocations": True,
        "capacity": {
            "tflops": {
                "value": tflops,
                "requestPolicy": {"default": tflops, "validRange": {"min": "0"}},
            },
            "vram": {
                "value": vram,
                "requestPolicy": {
                    "default": vram,
                    "validRange": {"min": "1Mi", "step": "1Mi"},
                },
            },
        },
    }


def resource_slice(
    *devices: Json, name: str = "slice-a", pool: str = NODE, generation: int = 1, count: int = 1
) -> Json:
    """A slice of node-a."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "devices": list(devices),
        },
    }


def device_class(name: str = CLASS, *selectors: str, config: list[Json] | None = None) -> Json:
    """A class of the driver's devices that match the selectors."""
    spec: Json = {"selectors": expressions(f'device.driver == "{DRIVER}"', *selectors)}
    if config:
        spec["config"] = config
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": spec,
    }


def expressions(*texts: str) -> list[Json]:
    """CEL selectors."""
    return [{"cel": {"expression": text}} for text in texts]


def exactly(name: str = "gpu", capacity: Json | None = None, **fields: Any) -> Json:
    """A request of a claim."""
    wanted: Json = {"deviceClassName": CLASS, **fields}
    if capacity is not None:
        wanted["capacity"] = {"requests": capacity}
    return {"name": name, "exactly": wanted}


def claim_spec(*requests: Json, **fields: Any) -> Json:
    """The spec of a claim or template."""
    return {"devices": {"requests": list(requests) or [exactly()], **fields}}


def allocated(*pods: Json) -> Json:
    """The status of a claim with the first device of node-a, reserved for these created pods."""
    result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": "gpu-0"}
    reserved = {"reservedFor": [consumer(pod) for pod in pods]} if pods else {}
    return {"allocation": {"devices": {"results": [result]}}, **reserved}


def consumer(pod: Json) -> Json:
    """A created pod as a claim's status names it."""
    return {"resource": "pods", **{name: pod["metadata"][name] for name in ("name", "uid")}}


def claim(*requests: Json, name: str = "claim", **fields: Any) -> Json:
    """A claim in the namespace default."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": claim_spec(*requests, **fields),
    }


def template(*requests: Json, name: str = "template", metadata: Json | None = None) -> Json:
    """A claim template in the namespace default."""
    spec: Json = {"spec": claim_spec(*requests)}
    if metadata is not None:
        spec["metadata"] = metadata
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def pod(
    name: str = "pod", *, claim_name: str = "", template_name: str = "", uses: bool = True
) -> Json:
    """A pod with one container, which uses the pod's only claim."""
    spec: Json = {"containers": [{"name": "main", "image": "busybox"}]}
    if claim_name or template_name:
        source = (
            {"resourceClaimName": claim_name}
            if claim_name
            else {"resourceClaimTemplateName": template_name}
        )
        spec["resourceClaims"] = [{"name": "gpu", **source}]
        if uses:
            spec["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def node(name: str = NODE, **labels: str) -> Json:
    """A node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
    }
