"""Allocation of devices to claims, as in kube-scheduler 1.36."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.scheduling import devices, requests, usage
from tensorfusion_dra.scheduling.devices import SchedulingError, Slice
from tensorfusion_dra.scheduling.requests import ClaimSpec, DeviceClass, Wanted
from tensorfusion_dra.scheduling.search import Pick, Search

Document = Mapping[str, Any]
Json = dict[str, Any]

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
    *,
    slices: Iterable[Document],
    classes: Iterable[Document],
    claims: Iterable[Document],
    tries_all_candidates: bool = False,
) -> Cluster:
    """Return the cluster with these ResourceSlices, DeviceClasses and ResourceClaims."""
    by_name = (requests.class_of(document) for document in classes)
    return Cluster(
        slices=tuple(devices.slice_of(document) for document in slices),
        classes={device_class.name: device_class for device_class in by_name},
        claims=tuple(claims),
        tries_all_candidates=tries_all_candidates,
    )


def allocate(claims: Sequence[Document], found: Cluster, node: Document) -> list[Json]:
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
    reachable = devices.gather(found.slices, node)
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
        _result_of(claim, chosen, classes=found.classes, node_name=name)
        for claim, chosen in zip(wanted, picks, strict=True)
    ]


def _result_of(
    claim: ClaimSpec, picks: Sequence[Pick], *, classes: Mapping[str, DeviceClass], node_name: str
) -> Json:
    """Return the AllocationResult of a claim."""
    devices: Json = {"results": [_device_result(pick) for pick in picks]}
    config = _config(claim, picks, classes)
    if config:
        devices["config"] = config
    result: Json = {"devices": devices}
    selector = _node_selector(picks, node_name)
    if selector is not None:
        result["nodeSelector"] = selector
    return result


def _device_result(pick: Pick) -> Json:
    driver, pool, device = pick.device.id
    result: Json = {"request": pick.wanted.name, "driver": driver, "pool": pool, "device": device}
    if pick.wanted.is_admin:
        result["adminAccess"] = True
    if pick.wanted.tolerations:
        result["tolerations"] = [dict(toleration) for toleration in pick.wanted.tolerations]
    if pick.consumed is not None:
        result["shareID"] = str(uuid.uuid4())
        if pick.consumed:
            result["consumedCapacity"] = {name: str(text) for name, text in pick.consumed.items()}
    return result


def _config(
    claim: ClaimSpec, picks: Sequence[Pick], classes: Mapping[str, DeviceClass]
) -> list[Json]:
    """Return the classes' configuration, once for each class, followed by the claim's.

    An entry of the claim that names several requests is repeated for each, as in Kubernetes.
    """
    chosen: dict[str, Wanted] = {pick.wanted.main: pick.wanted for pick in picks}
    of_class: dict[str, list[str]] = {}
    for wanted in chosen.values():
        of_class.setdefault(wanted.device_class, []).append(wanted.name)
    entries = [
        {**entry, "source": "FromClass", "requests": names}
        for class_name, names in of_class.items()
        for entry in classes[class_name].config
    ]
    for entry in claim.config:
        named = entry.get("requests") or []
        copy = {**entry, "source": "FromClaim"}
        if not named:
            entries.append(copy)
        entries += [
            copy for wanted in chosen.values() if wanted.main in named or wanted.name in named
        ]
    return entries


def _node_selector(picks: Sequence[Pick], node_name: str) -> Json | None:
    """Return the selector of the nodes that can reach the devices; None if all nodes can."""
    term: Json = {}
    for pick in picks:
        if pick.device.is_local:
            name = {"key": "metadata.name", "operator": "In", "values": [node_name]}
            return {"nodeSelectorTerms": [{"matchFields": [name]}]}
        for wider in (pick.device.node_selector or {}).get("nodeSelectorTerms") or ():
            for kind in ("matchFields", "matchExpressions"):
                found = term.setdefault(kind, [])
                found += [entry for entry in wider.get(kind) or () if entry not in found]
    term = {kind: found for kind, found in term.items() if found}
    return {"nodeSelectorTerms": [term]} if term else None
