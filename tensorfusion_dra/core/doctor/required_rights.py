"""What each process asks of the API server, as RBAC writes it; manifests are held against it."""

from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core import names

RESOURCE_GROUP: Final = "resource.k8s.io"
EVENTS_GROUP: Final = "events.k8s.io"

STATUS_PATCH: Final = "associated-node:patch"
"""A verb of its own from 1.36 on: only for claims allocated on the node of the pod's token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource.

    Attributes:
        group: "" for the core group.
        resource: With its subresource, such as ``resourceclaims/status``.
        purpose: What does not work without it.
        name: The only object that it is needed for; "" for any.
        namespace: The only namespace that it is needed in; "" for all.
        vital: Without it, nodes publish nothing or claims fail.
        since_minor: The first version of Kubernetes 1 that asks for it.
    """

    verb: str
    group: str
    resource: str
    purpose: str
    name: str = ""
    namespace: str = ""
    vital: bool = True
    since_minor: int = 0

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        resource, _, subresource = self.resource.partition("/")
        below = f"/{subresource}" if subresource else ""
        name = f" of the name {self.name}" if self.name else ""
        return f"{self.verb} {resource}{group}{below}{name}"


_SLICES: Final = tuple(
    Right(verb=verb, group=RESOURCE_GROUP, resource="resourceslices", purpose=purpose)
    for verb, purpose in (
        ("list", "the node's slices are compared with its GPUs"),
        ("watch", "a slice that somebody deletes or changes is put right"),
        ("create", "the node's GPUs are published"),
        ("update", "a change of the node's GPUs is published"),
        ("delete", "a slice that is no longer needed is removed"),
    )
)
_CLAIMS: Final = (
    Right(
        verb="get",
        group=RESOURCE_GROUP,
        resource="resourceclaims",
        purpose="an allocated claim is read when the kubelet asks for it",
    ),
    Right(
        verb="patch",
        group=RESOURCE_GROUP,
        resource="resourceclaims/status",
        purpose="a claim's status tells its devices and limits",
        vital=False,
    ),
    Right(
        verb=STATUS_PATCH,
        group=RESOURCE_GROUP,
        resource="resourceclaims/driver",
        name=names.DRIVER,
        purpose="a claim's status tells its devices and limits, from Kubernetes 1.36 on",
        vital=False,
        since_minor=36,
    ),
)
_NODE: Final = Right(
    verb="get", group="", resource="nodes", purpose="the Node object owns the node's slices"
)
_PODS: Final = Right(
    verb="get",
    group="",
    resource="pods",
    purpose="limits of claims that name none, and which claims a container uses (--read-pods)",
)
_EVENTS: Final = Right(
    verb="create",
    group=EVENTS_GROUP,
    resource="events",
    namespace="default",
    purpose="a GPUPool that cannot be used is told on the Node",
    vital=False,
)

_POOL_TEMPLATES: Final = "schedulingconfigtemplates"
_POOL_PURPOSE: Final = "the node's GPUPool is found and followed (--pool-source)"


def of_node_plugin(*, pool_source: str = "settings", read_pods: bool = True) -> tuple[Right, ...]:
    """Every right that a node plugin with these settings uses, and no other."""
    rights = [_NODE, *_SLICES, *_CLAIMS]
    if read_pods:
        rights.append(_PODS)
    if pool_source != "settings":
        rights += _followed(names.TENSOR_FUSION_GROUP, names.GPUPOOLS, _POOL_PURPOSE)
        rights += _followed("", "nodes", _POOL_PURPOSE)
        rights.append(_EVENTS)
    return tuple(rights)


def of_webhook() -> tuple[Right, ...]:
    """Every right that the webhook uses, and no other."""
    purpose = "pods are given what their pool hands out, and only where it uses DRA"
    pods = Right(
        verb="get", group="", resource="pods", purpose="a claim gets what its pod's annotations ask"
    )
    slices = Right(
        verb="list",
        group="resource.k8s.io",
        resource="resourceslices",
        purpose="compute-percent-request and -limit are percents of published GPUs",
    )
    return (
        pods,
        slices,
        *_followed(names.TENSOR_FUSION_GROUP, names.GPUPOOLS, purpose),
        *_followed(names.TENSOR_FUSION_GROUP, _POOL_TEMPLATES, purpose),
    )


def _followed(group: str, resource: str, purpose: str) -> list[Right]:
    return [
        Right(verb=verb, group=group, resource=resource, purpose=purpose)
        for verb in ("list", "watch")
    ]
