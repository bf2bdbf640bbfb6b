"""The permissions of each process at the API server, and findings about missing ones."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor.finding import Finding, ok, problem, warning

STATUS_PATCH: Final = "associated-node:patch"
"""Verb from 1.36 on: it covers only claims allocated on the node of the pod's token."""


def minor_version(text: str) -> int | None:
    """Return 36 for v1.36.2 and 1.36+; None if the text is not a version of Kubernetes 1."""
    found = re.match(r"v?1\.([0-9]+)", text)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """One verb on one resource.

    Attributes:
        group: API group; "" for the core group.
        resource: With its subresource, such as ``resourceclaims/status``.
        purpose: What it is needed for.
        name: The only object for which it is needed; "" for all.
        namespace: The only namespace in which it is needed; "" for all.
        vital: True if without it nodes publish nothing or claims fail.
        since_minor: The first minor version of Kubernetes 1 that requires it; 0 for all.
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
        name = f" named {self.name}" if self.name else ""
        return f"{self.verb} {resource}{group}{below}{name}"


_SLICES: Final = tuple(
    Permission(verb=verb, group=names.RESOURCE_GROUP, resource="resourceslices", purpose=purpose)
    for verb, purpose in (
        ("list", "the node's slices are compared with its GPUs"),
        ("watch", "a slice that another client deletes or changes is repaired"),
        ("create", "the node's GPUs are published"),
        ("update", "a change of the node's GPUs is published"),
        ("delete", "a slice that is no longer needed is removed"),
    )
)
_CLAIMS: Final = (
    Permission(
        verb="get",
        group=names.RESOURCE_GROUP,
        resource="resourceclaims",
        purpose="an allocated claim is read when the kubelet prepares it",
    ),
    Permission(
        verb="patch",
        group=names.RESOURCE_GROUP,
        resource="resourceclaims/status",
        purpose="a claim's status reports its devices and limits",
        vital=False,
    ),
    Permission(
        verb=STATUS_PATCH,
        group=names.RESOURCE_GROUP,
        resource="resourceclaims/driver",
        name=names.DRIVER,
        purpose="a claim's status reports its devices and limits, from Kubernetes 1.36 on",
        vital=False,
        since_minor=36,
    ),
)
_LIST_CLAIMS: Final = Permission(
    verb="list",
    group=names.RESOURCE_GROUP,
    resource="resourceclaims",
    purpose="claims that wait at the scheduler for this node's enforcer (--enforcer-wait-seconds)",
    vital=False,
)
_NODE: Final = Permission(
    verb="get", group="", resource="nodes", purpose="the Node object owns the node's slices"
)
_PODS: Final = Permission(
    verb="get",
    group="",
    resource="pods",
    purpose="limits of claims without their own, and the claims of a container (--read-pods)",
)
_EVENTS: Final = Permission(
    verb="create",
    group="events.k8s.io",
    resource="events",
    namespace="default",
    purpose="an Event on the Node reports a GPUPool that cannot be used",
    vital=False,
)
_POD_EVENTS: Final = Permission(
    verb="create",
    group="events.k8s.io",
    resource="events",
    purpose="an Event on a pod reports that its limits do not hold; without it, on the Node",
    vital=False,
)

_WORKERS: Final = (
    Permission(
        verb="list",
        group="",
        resource="pods",
        purpose="the node's workers of Tensor Fusion's hypervisor (--hypervisor-sockets)",
    ),
    Permission(
        verb="watch",
        group="",
        resource="pods",
        purpose="annotations of the node's workers that others changed are put back",
    ),
    Permission(
        verb="patch",
        group="",
        resource="pods",
        purpose="a claim's pod is marked for Tensor Fusion's hypervisor (--hypervisor-sockets)",
    ),
)

_DRIVER_PURPOSE: Final = (
    "the Node's labels say when the NVIDIA driver is replaced (--release-driver)"
)
_POOL_PURPOSE: Final = "the node's GPUPool is found and watched (--pool-source)"


def of_node_plugin(
    *,
    pool_source: str = "settings",
    read_pods: bool = True,
    marks_pods: bool = False,
    lists_claims: bool = False,
    releases_driver: bool = True,
) -> tuple[Permission, ...]:
    """Return exactly the permissions that a node plugin with these settings uses."""
    permissions = [_NODE, *_SLICES, *_CLAIMS, _POD_EVENTS]
    if read_pods or marks_pods:
        permissions.append(_PODS)
    if marks_pods:
        permissions += _WORKERS
    if lists_claims:
        permissions.append(_LIST_CLAIMS)
    if pool_source != "settings":
        permissions += _followed(names.TENSOR_FUSION_GROUP, names.GPUPOOLS, _POOL_PURPOSE)
        permissions += _followed("", "nodes", _POOL_PURPOSE)
        permissions.append(_EVENTS)
    elif releases_driver:
        permissions += _followed("", "nodes", _DRIVER_PURPOSE, vital=False)
    return tuple(permissions)


def of_webhook() -> tuple[Permission, ...]:
    """Return exactly the permissions that the webhook uses."""
    purpose = "pods get claims by the settings of their GPUPool, and only if it uses DRA"
    pods = Permission(
        verb="get", group="", resource="pods", purpose="a claim gets what its pod requests"
    )
    slices = Permission(
        verb="list",
        group=names.RESOURCE_GROUP,
        resource="resourceslices",
        purpose="pods name pools that nodes publish, and percentages of their GPUs",
    )
    quota = "the claims of a namespace keep to its GPUResourceQuota"
    claims = Permission(
        verb="list", group=names.RESOURCE_GROUP, resource="resourceclaims", purpose=quota
    )
    priorities = (
        Permission(
            verb="get",
            group=names.SCHEDULING_GROUP,
            resource="priorityclasses",
            name=name,
            purpose="pods of this qos get Tensor Fusion's PriorityClass where it exists",
        )
        for name in names.QOS_PRIORITY_CLASSES.values()
    )
    return (
        pods,
        slices,
        claims,
        *priorities,
        *_followed(names.TENSOR_FUSION_GROUP, names.GPU_RESOURCE_QUOTAS, quota),
        *_followed(names.TENSOR_FUSION_GROUP, names.GPUPOOLS, purpose),
        *_followed(names.TENSOR_FUSION_GROUP, names.SCHEDULING_CONFIG_TEMPLATES, purpose),
    )


def _followed(group: str, resource: str, purpose: str, *, vital: bool = True) -> list[Permission]:
    return [
        Permission(verb=verb, group=group, resource=resource, purpose=purpose, vital=vital)
        for verb in ("list", "watch")
    ]


class AccessAnswer(NamedTuple):
    """The API server's answer about one permission.

    Attributes:
        reason: The authorizer's reason; usually "".
    """

    permission: Permission
    allowed: bool
    reason: str = ""


def findings(who: str, answers: Iterable[AccessAnswer]) -> Iterator[Finding]:
    """Yield a finding for each missing permission, and one for all granted ones.

    Args:
        who: Holder of the permissions, such as ``service account gpu/node-plugin``.
    """
    granted = 0
    for answer in answers:
        if answer.allowed:
            granted += 1
            continue
        severity = problem if answer.permission.vital else warning
        reason = f": {answer.reason}" if answer.reason else ""
        of = f", resourceNames: [{answer.permission.name}]" if answer.permission.name else ""
        yield severity(
            f"right to {answer.permission}",
            f"{who} does not have it{reason}",
            expected=f"granted: {answer.permission.purpose}",
            remedy="apply the ClusterRole and its binding of this release again; it needs "
            f'{{apiGroups: ["{answer.permission.group}"], '
            f"resources: [{answer.permission.resource}], "
            f'verbs: ["{answer.permission.verb}"]{of}}}',
        )
    if granted:
        yield ok(f"rights of {who}", f"{granted} granted")
