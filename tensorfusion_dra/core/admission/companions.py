"""Claims that one container uses together.

An enforcer that sets limits by the container's environment names a card by its index there, or not
at all. The variables of each claim are written as if its cards were the container's only ones: the
first one has index 0. In a container with two claims the last variable of a name wins, and a card
can end up with the limit of the other, or with none.

CDI gives variables to a claim's requests and not to a container. So numbering the cards across
claims would not help: a container that uses one of the claims alone counts its cards from 0.
Therefore a container may use one claim at most, and a second claim for it is refused.

Example: container `train` names claims `a` and `b`, container `log` names `b`. `a` is prepared,
`b` is refused. Had `log` alone named `b`, both would be prepared.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

_KINDS: Final = ("initContainers", "containers")


def beside(pod: Mapping[str, Any], claim_name: str) -> frozenset[str]:
    """Names of the other claims that a container of this pod uses together with the claim.

    Args:
        pod: As the API server stores it.
        claim_name: The ResourceClaim's name, in the pod's namespace.
    """
    names = dict(_claim_names(pod))
    together: set[str] = set()
    spec = as_map(pod.get("spec"))
    for kind in _KINDS:
        for container in map(as_map, as_list(spec.get(kind))):
            entries = as_list(as_map(container.get("resources")).get("claims"))
            used = {names[name_of(entry)] for entry in entries if name_of(entry) in names}
            if claim_name in used:
                together |= used
    return frozenset(together - {claim_name})


def _claim_names(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each entry of spec.resourceClaims, and the name of its ResourceClaim.

    The status names the claims that were made from templates (core/v1, PodStatus).
    """
    for entry in map(as_map, as_list(as_map(pod.get("spec")).get("resourceClaims"))):
        if isinstance(entry.get("resourceClaimName"), str):
            yield name_of(entry), str(entry["resourceClaimName"])
    for made in map(as_map, as_list(as_map(pod.get("status")).get("resourceClaimStatuses"))):
        if isinstance(made.get("resourceClaimName"), str):
            yield name_of(made), str(made["resourceClaimName"])
