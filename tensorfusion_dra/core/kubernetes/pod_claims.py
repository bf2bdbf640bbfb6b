"""The ResourceClaims that a pod names, and its containers use.

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

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

POD_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"
"""On a created claim: the entry of the pod's spec.resourceClaims."""


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


def containers_with_paths(pod: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every container with its path, init containers first."""
    spec = as_map(pod.get("spec"))
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(as_list(spec.get(kind))):
            if isinstance(container, dict):
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
    earlier: list[tuple[str, set[str]]] = []
    for path, container in containers_with_paths(pod):
        if path.startswith("spec.initContainers") and container.get("restartPolicy") != "Always":
            continue
        entries = map(as_map, as_list(as_map(container.get("resources")).get("claims")))
        requests = {
            str(entry.get("request") or "")
            for entry in entries
            if claims.get(name_of(entry)) == claim_name
        }
        for name, others in earlier:
            if requests & others or ("" in requests | others and requests and others):
                return name, name_of(container)
        earlier.append((name_of(container), requests))
    return ()
