"""Allocation of devices to claims, as in kube-scheduler 1.36."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.scheduling import devices, pools, requests, results, usage
from tensorfusion_dra.scheduling.devices import Slice
from tensorfusion_dra.scheduling.requests import DeviceClass, SchedulingError
from tensorfusion_dra.scheduling.search import Search

Document = Mapping[str, Any]

__all__ = ["Cluster", "NoFitError", "SchedulingError", "allocate", "cluster"]


class NoFitError(DriverError):
    """A node lacks devices for a pod's claims; another node may have them.

    Attributes:
        devices: The reason why each device or pool was rejected, by its name.
    """

    def __init__(self, text: str, rejected: Mapping[str, str]) -> None:
        super().__init__(text)
        self.devices = rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices and DeviceClasses of a cluster, and the claims that use them.

    Attributes:
        claims: All ResourceClaims, including those without an allocation.
        tries_all_candidates: Search as the schedulers of 1.34 and 1.35 do; see Search.
    """

    slices: tuple[Slice, ...]
    classes: Mapping[str, DeviceClass]
    claims: tuple[Document, ...]
    tries_all_candidates: bool = False


def cluster(
    *, slices: Iterable[Document], classes: Iterable[Document], claims: Iterable[Document]
) -> Cluster:
    """Return the cluster with these ResourceSlices, DeviceClasses and ResourceClaims."""
    by_name = (requests.class_of(document) for document in classes)
    return Cluster(
        slices=tuple(devices.slice_of(document) for document in slices),
        classes={device_class.name: device_class for device_class in by_name},
        claims=tuple(claims),
    )


def allocate(claims: Sequence[Document], found: Cluster, node: Document) -> list[dict[str, Any]]:
    """Allocate devices of one node to a pod's claims.

    Args:
        claims: Those of the pod's claims that have no allocation yet.

    Returns:
        The status.allocation of each claim, in the order of the claims.

    Raises:
        NoFitError: The devices of this node do not satisfy all the claims.
        SchedulingError: The claims, classes or slices have an error that stops the scheduling on
            every node.
    """
    wanted = [requests.claim_of(claim) for claim in claims]
    reachable = pools.gather(found.slices, node)
    search = Search(
        wanted,
        reachable,
        classes=found.classes,
        usage=usage.of_claims(found.claims),
        tries_all_candidates=found.tries_all_candidates,
    )
    picks = search.run()
    if picks is None:
        rejected = {str(device): reason for device, reason in search.reasons.items()}
        rejected |= {str(pool): pool.trouble for pool in reachable if pool.trouble}
        raise NoFitError("cannot allocate all claims", rejected)
    name = node["metadata"]["name"]
    return [
        results.allocation(claim, chosen, classes=found.classes, node_name=name)
        for claim, chosen in zip(wanted, picks, strict=True)
    ]
