"""The permissions that the node plugin uses at the API server."""

from typing import NamedTuple

from tensorfusion_dra.core import names

RESOURCE = names.RESOURCE_GROUP


class Permission(NamedTuple):
    """One verb on one resource.

    Attributes:
        group: API group; "" for the core group.
        resource: With its subresource, such as ``resourceclaims/status``.
        name: The only object for which it is needed; "" for all.
        since_minor: The first minor version of Kubernetes 1 that requires it; 0 for all.
    """

    verb: str
    group: str
    resource: str
    name: str = ""
    since_minor: int = 0


def of_node_plugin(*, reads_pods: bool, releases_driver: bool) -> list[Permission]:
    """Return exactly the permissions that a node plugin with these settings uses."""
    slices = ("list", "watch", "create", "update", "delete")
    # From 1.36 on, it covers only claims that are allocated on the node of the pod's token.
    status = Permission(
        "associated-node:patch", RESOURCE, "resourceclaims/driver", names.DRIVER, since_minor=36
    )
    return [
        Permission("get", "", "nodes"),
        *(Permission(verb, RESOURCE, "resourceslices") for verb in slices),
        Permission("get", RESOURCE, "resourceclaims"),
        Permission("patch", RESOURCE, "resourceclaims/status"),
        status,
        Permission("create", "events.k8s.io", "events"),
        *([Permission("get", "", "pods")] if reads_pods else []),
        *(Permission(verb, "", "nodes") for verb in ("list", "watch") if releases_driver),
    ]
