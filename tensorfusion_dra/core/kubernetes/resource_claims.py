"""The ResourceClaims of pods: those that a pod names, those made for it, the devices in a claim.

Kubernetes makes claims for pods from templates, and for extended resources (KEP-5004).

An enforcer that sets limits by environment variables identifies a card by its index in the
container, or does not identify it. The variables of a claim are written as if its cards were the
only ones in the container: the first card has index 0. In a container with two claims the last
variable of each name wins, so a card can end up with the limit of the other claim, or with none.

CDI adds variables for each request of a claim, not for each container. Numbering the cards across
claims would therefore not help: a container that uses only one of the claims counts its cards from
0. So a container may use at most one claim, and a second one is refused. The same is true of an
enforcer that limits the container's one cgroup.

Example: container `train` names claims `a` and `b`, container `log` names `b`. `a` is prepared,
`b` is refused. If only `log` named `b`, both would be prepared.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from tensorfusion_dra.core.kubernetes import quantity, untyped_json
from tensorfusion_dra.core.kubernetes.untyped_json import (
    as_list,
    as_map,
    map_at,
    name_of,
    objects_at,
)

Json = dict[str, Any]

MAX_RESULTS: Final = 32
"""Maximum number of devices in a claim (AllocationResultsMaxSize of resource.k8s.io/v1)."""
POD_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"
"""On a created claim: the entry of the pod's spec.resourceClaims."""
_IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that every DeviceClass has, by its name."""


def entries(pod: Mapping[str, Any]) -> list[Mapping[str, object]]:
    """Return the entries of the pod's spec.resourceClaims."""
    return [as_map(each) for each in as_list(as_map(pod.get("spec")).get("resourceClaims"))]


def stored_name(pod: Mapping[str, Any], entry: Mapping[str, object]) -> str | None:
    """Return the name of an entry's claim; "" if none is created yet, None if it needs none.

    The names of claims made from templates are in the pod's status (core/v1, PodStatus).
    """
    if isinstance(entry.get("resourceClaimName"), str):
        return str(entry["resourceClaimName"])
    for made in map(as_map, as_list(as_map(pod.get("status")).get("resourceClaimStatuses"))):
        if name_of(made) == name_of(entry):
            found = made.get("resourceClaimName")
            return None if found is None else str(found)
    return ""


def names_by_entry(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the pod's claims that exist, by the names of their entries."""
    found = {name_of(entry): stored_name(pod, entry) for entry in entries(pod)}
    return {entry: claim for entry, claim in found.items() if claim}


def extended_name(pod: Mapping[str, Any]) -> str | None:
    """Return the name of the claim that kube-scheduler made for the pod's extended resources.

    None if it made none (KEP-5004).
    """
    made = map_at(pod, "status", "extendedResourceClaimStatus")
    return str(made["resourceClaimName"]) if made.get("resourceClaimName") else None


def created(pod: Mapping[str, Any], entry: str, template: Mapping[str, Any]) -> Json:
    """Return the claim that Kubernetes creates from a template for an entry of the pod.

    Labels and annotations come from the template's spec.metadata
    (pkg/controller/resourceclaim/controller.go).
    """
    metadata, spec = as_map(pod.get("metadata")), as_map(template.get("spec"))
    copied = as_map(spec.get("metadata"))
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": metadata.get("name"),
        "uid": metadata.get("uid", ""),
        "controller": True,
    }
    return {
        "apiVersion": template.get("apiVersion"),
        "kind": "ResourceClaim",
        "metadata": {
            "name": f"{metadata.get('name')}-{entry}",
            "namespace": metadata.get("namespace"),
            "labels": dict(as_map(copied.get("labels"))),
            "annotations": {**as_map(copied.get("annotations")), POD_CLAIM_ANNOTATION: entry},
            "ownerReferences": [owner],
        },
        "spec": untyped_json.copied(dict(as_map(spec.get("spec")))),
    }


def extended_claim(
    pod: Mapping[str, Any], classes: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]
) -> Json | None:
    """Return the claim that kube-scheduler makes for the pod's extended resources; None if none.

    It makes the claim while it places the pod (KEP-5004). A resource that a node's device plugin
    offers is left out, since the scheduler claims devices only on nodes without one.
    """
    class_of, of_plugins = class_of_resource(classes), of_device_plugins(nodes)
    requests = [
        {
            "name": f"container-{container}-request-{index}",
            "exactly": {
                "deviceClassName": class_of[name],
                "allocationMode": "ExactCount",
                "count": count,
            },
        }
        for index, (container, name, count) in enumerate(extended_resources(pod))
        if name in class_of and name not in of_plugins
    ]
    if not requests:
        return None
    metadata = as_map(pod.get("metadata"))
    return {
        "kind": "ResourceClaim",
        "metadata": {
            "name": f"{metadata.get('name')}-extended-resources",
            "namespace": metadata.get("namespace"),
        },
        "spec": {"devices": {"requests": requests}},
    }


def extended_resources(pod: Mapping[str, Any]) -> Iterator[tuple[int, str, int]]:
    """Yield the number of a container, an extended resource that it requests, and how many.

    Init containers use the devices of the others and are left out.
    """
    for number, container in enumerate(objects_at(pod, "spec", "containers")):
        for name, amount in map_at(container, "resources", "limits").items():
            domain = name.partition("/")[0]
            is_own = domain.endswith("kubernetes.io") and not name.startswith(_IMPLICIT)
            count = quantity.parse(amount).ceil()
            if "/" in name and not is_own and count:
                yield number, name, count


def class_of_resource(classes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the DeviceClass of each extended resource; of several, the newest one serves it."""
    found = {
        f"{_IMPLICIT}{each['metadata']['name']}": str(each["metadata"]["name"]) for each in classes
    }
    by_age = sorted(classes, key=lambda each: str(each["metadata"].get("creationTimestamp") or ""))
    for each in by_age:
        name = as_map(each.get("spec")).get("extendedResourceName")
        if name:
            found[str(name)] = str(each["metadata"]["name"])
    return found


def of_device_plugins(nodes: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the resources that nodes offer themselves."""
    return {
        name
        for node in nodes
        for name, amount in map_at(node, "status", "allocatable").items()
        if amount != "0"
    }


def requests(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the device requests of a claim or of a template, with all alternatives."""
    spec = map_at(item, "spec")
    return [
        exact
        for request in objects_at(spec.get("spec", spec), "devices", "requests")
        for exact in (request.get("exactly"), *objects_at(request, "firstAvailable"))
        if isinstance(exact, dict)
    ]


def main_requests(claim: Mapping[str, Any]) -> list[Json]:
    """Return the requests of a claim, each with `exactly` or `firstAvailable`."""
    return objects_at(claim, "spec", "devices", "requests")


def alternatives(request: Mapping[str, Any]) -> list[tuple[str, Json]]:
    """Return the name and content of a request, or of each of its alternatives: `name/sub`."""
    name, exactly = str(request.get("name", "")), request.get("exactly")
    found = [(name, exactly)] if isinstance(exactly, dict) else []
    several = objects_at(request, "firstAvailable")
    return found + [(f"{name}/{name_of(each)}", each) for each in several]


def every_request(claim: Mapping[str, Any]) -> list[tuple[str, Json]]:
    """Return the alternatives() of all requests of a claim."""
    return [each for request in main_requests(claim) for each in alternatives(request)]


def results(claim: Mapping[str, Any]) -> list[Json]:
    """Return the devices that are allocated to a claim; none before its allocation."""
    return objects_at(claim, "status", "allocation", "devices", "results")


def pending_conditions(claim: Mapping[str, Any]) -> Iterator[str]:
    """Yield each binding condition that a device of the claim lacks, with the device's name.

    The scheduler waits for them before it binds a pod (KEP-5007).
    """
    key = itemgetter("driver", "pool", "device")
    met = {
        (key(device), device.get("shareID"), condition.get("type"))
        for device in objects_at(claim, "status", "devices")
        for condition in objects_at(device, "conditions")
        if condition.get("status") == "True"
    }
    for each in results(claim):
        for name in as_list(each.get("bindingConditions")):
            if (key(each), each.get("shareID"), name) not in met:
                yield f"{name} of {each['device']}"


def negative_amounts(claim: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error for each negative amount of an allocation, in the words of kube-scheduler."""
    name = "{namespace}/{name}".format_map(claim["metadata"])
    for each in results(claim):
        device = f"{each.get('driver')}/{each.get('pool')}/{each.get('device')}"
        for key, text in sorted(map_at(each, "consumedCapacity").items()):
            if quantity.parse(text).nano < 0:
                yield (
                    f'claim {name}, device {device}: consumed capacity "{key}" must not be '
                    f"negative, got {text}"
                )


def containers_with_paths(pod: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every container with its path, init containers first."""
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(objects_at(pod, "spec", kind)):
            yield f"spec.{kind}[{index}]", container


def claims_sharing_a_container(pod: Mapping[str, Any], claim_name: str) -> frozenset[str]:
    """Return the names of the other claims that a container of this pod uses with the claim.

    Args:
        pod: As the API server stores it.
        claim_name: The ResourceClaim's name, in the pod's namespace.
    """
    claims = names_by_entry(pod)
    together: set[str] = set()
    for _, container in containers_with_paths(pod):
        entries = as_list(as_map(container.get("resources")).get("claims"))
        used = {claims[name_of(entry)] for entry in entries if name_of(entry) in claims}
        if claim_name in used:
            together |= used
    return frozenset(together - {claim_name})


def containers_at_once(pod: Mapping[str, Any], claim_name: str) -> tuple[str, ...]:
    """Return two containers that use one request of the claim at once in two PID namespaces.

    Empty if there are none. Init containers run one after the other and before the rest, except
    those that are restarted always (sidecars). A container that names no request uses all.

    Args:
        pod: As the API server stores it.
        claim_name: The ResourceClaim's name, in the pod's namespace.
    """
    spec = as_map(pod.get("spec"))
    if spec.get("shareProcessNamespace") is True or spec.get("hostPID") is True:
        return ()
    claims = names_by_entry(pod)
    users: dict[str, str] = {}  # the first container of each request; of "", that of all
    for path, container in containers_with_paths(pod):
        if path.startswith("spec.initContainers") and container.get("restartPolicy") != "Always":
            continue
        entries = map(as_map, as_list(as_map(container.get("resources")).get("claims")))
        requests = {
            str(entry.get("request") or "")
            for entry in entries
            if claims.get(name_of(entry)) == claim_name
        }
        shared = users.keys() & ({*users} if "" in requests else {*requests, ""})
        if requests and shared:
            return next(users[each] for each in users if each in shared), name_of(container)
        for each in requests:
            users.setdefault(each, name_of(container))
    return ()
