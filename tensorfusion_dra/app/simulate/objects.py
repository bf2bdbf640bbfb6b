"""Objects that a simulation creates: the DeviceClass, pods, and the templates of their claims."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_simulator.rest import RESOURCE_V1, Json
from tensorfusion_dra.core import names

NAMESPACE: Final = "default"
IMAGE_ENV: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""The environment of the image of every container."""

_CLAIM: Final = "gpu"
_CONTAINER: Final = "app"


def _object(api_version: str, kind: str, name: str, namespace: str = "") -> Json:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def device_class() -> Json:
    """Return the driver's DeviceClass."""
    selector = {"cel": {"expression": f'device.driver == "{names.DRIVER}"'}}
    return {
        **_object(RESOURCE_V1, "DeviceClass", names.DEVICE_CLASS),
        "spec": {"selectors": [selector]},
    }


def template(name: str, asks: Mapping[str, str], annotations: Mapping[str, str]) -> Json:
    """Return the template of a claim with one request.

    Args:
        name: Name of the template.
        asks: Requested quantities by capacity; empty requests a whole card.
        annotations: Annotations of the claim.
    """
    exactly: dict[str, Any] = {"deviceClassName": names.DEVICE_CLASS}
    if asks:
        exactly["capacity"] = {"requests": dict(asks)}
    requests = [{"name": _CLAIM, "exactly": exactly}]
    return {
        **_object(RESOURCE_V1, "ResourceClaimTemplate", name, NAMESPACE),
        "spec": {
            "metadata": {"annotations": dict(annotations)},
            "spec": {"devices": {"requests": requests}},
        },
    }


def pod(name: str) -> Json:
    """Return a pod with one container, whose claim is made from the template of the same name."""
    environment = [{"name": key, "value": value} for key, value in IMAGE_ENV.items()]
    container = {
        "name": _CONTAINER,
        "image": "app",
        "env": environment,
        "resources": {"claims": [{"name": _CLAIM}]},
    }
    claims: Sequence[Json] = [{"name": _CLAIM, "resourceClaimTemplateName": name}]
    return {
        **_object("v1", "Pod", name, NAMESPACE),
        "spec": {"resourceClaims": claims, "containers": [container]},
    }
