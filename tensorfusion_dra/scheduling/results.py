"""Conversion of the devices that the search picked into a claim's status.allocation."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tensorfusion_dra.scheduling.picks import Pick
from tensorfusion_dra.scheduling.requests import ClaimSpec, DeviceClass, Wanted

Json = dict[str, Any]


def allocation(
    claim: ClaimSpec, picks: Sequence[Pick], *, classes: Mapping[str, DeviceClass], node_name: str
) -> Json:
    """Return the AllocationResult of a claim."""
    devices: Json = {"results": [_result(pick) for pick in picks]}
    config = _config(claim, picks, classes)
    if config:
        devices["config"] = config
    result: Json = {"devices": devices}
    selector = _node_selector(picks, node_name)
    if selector is not None:
        result["nodeSelector"] = selector
    return result


def _result(pick: Pick) -> Json:
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
