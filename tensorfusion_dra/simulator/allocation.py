"""Allocates devices to claims as kube-scheduler 1.36 does."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.simulator.allocator import devices, pools, requests, results, usage
from tensorfusion_dra.simulator.allocator.devices import Slice
from tensorfusion_dra.simulator.allocator.requests import DeviceClass, SchedulingError
from tensorfusion_dra.simulator.allocator.search import Search

Document = Mapping[str, Any]

__all__ = ["Cluster", "NoFitError", "SchedulingError", "allocate", "cluster"]


class NoFitError(DriverError):
    """A node has not the devices for a pod's claims; another one may.

    Attributes:
        devices: Why each device was passed over.
    """

    def __init__(self, text: str, passed_over: Mapping[str, str]) -> None:
        super().__init__(text)
        self.devices = passed_over


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What there is, and what claims have of it.

    Attributes:
        claims: All ResourceClaims, also those without an allocation.
        starts_over: As the schedulers of 1.34 and 1.35 search; see Search.
    """

    slices: tuple[Slice, ...]
    classes: Mapping[str, DeviceClass]
    claims: tuple[Document, ...]
    starts_over: bool = False


def cluster(
    *, slices: Iterable[Document], classes: Iterable[Document], claims: Iterable[Document]
) -> Cluster:
    """The cluster of these ResourceSlices, DeviceClasses and ResourceClaims."""
    by_name = (requests.class_of(document) for document in classes)
    return Cluster(
        slices=tuple(devices.slice_of(document) for document in slices),
        classes={device_class.name: device_class for device_class in by_name},
        claims=tuple(claims),
    )


def allocate(claims: Sequence[Document], found: Cluster, node: Document) -> list[dict[str, Any]]:
    """The status.allocation of each of a pod's claims that has none yet, on this node.

    Raises:
        NoFitError: This node cannot have all of them.
        SchedulingError: No node can, for a reason that lies in the claims, classes or slices.
    """
    wanted = [requests.claim_of(claim) for claim in claims]
    reachable = pools.gather(found.slices, node)
    search = Search(
        wanted,
        reachable,
        classes=found.classes,
        usage=usage.of_claims(found.claims),
        starts_over=found.starts_over,
    )
    picks = search.run()
    if picks is None:
        passed_over = {str(device): reason for device, reason in search.reasons.items()}
        passed_over |= {str(pool): pool.trouble for pool in reachable if pool.trouble}
        raise NoFitError("cannot allocate all claims", passed_over)
    name = node["metadata"]["name"]
    return [
        results.allocation(claim, chosen, classes=found.classes, node_name=name)
        for claim, chosen in zip(wanted, picks, strict=True)
    ]
