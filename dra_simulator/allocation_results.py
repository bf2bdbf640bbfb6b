"""Results of an allocation as the scheduler writes them into a claim's status."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tensorfusion_dra.scheduling import allocation
from tensorfusion_dra.scheduling.allocation import Cluster, Pick
from tensorfusion_dra.scheduling.devices import DeviceClass, Wanted

Document = Mapping[str, Any]
Json = dict[str, Any]


def allocate(claims: Sequence[Document], found: Cluster, node: Document) -> list[Json]:
    """Return the status.allocation of each of a pod's claims, in their order.

    Raises:
        NoFitError: The devices of this node do not satisfy all the claims.
        SchedulingError: The claims, classes or slices have an error that stops the scheduling on
            every node.
    """
    chosen = allocation.allocate(claims, found, node)
    name = node["metadata"]["name"]
    return [
        _result_of(claim, picks, found, node_name=name)
        for claim, picks in zip(claims, chosen, strict=True)
    ]


def _result_of(claim: Document, picks: Sequence[Pick], found: Cluster, *, node_name: str) -> Json:
    """Return the AllocationResult of a claim."""
    devices: Json = {"results": [_device_result(pick) for pick in picks]}
    config = _config(claim, picks, found.classes)
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
    if pick.device.conditions:
        result["bindingConditions"] = list(pick.device.conditions)
        result["bindingFailureConditions"] = list(pick.device.failures)
    if pick.consumed is not None:
        result["shareID"] = str(uuid.uuid4())
        if pick.consumed:
            result["consumedCapacity"] = {name: str(text) for name, text in pick.consumed.items()}
    return result


def _config(
    claim: Document, picks: Sequence[Pick], classes: Mapping[str, DeviceClass]
) -> list[Json]:
    """Return the classes' configuration, once for each class, followed by the claim's.

    An entry for all requests names none.
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
    entries += [
        {**entry, "source": "FromClaim"} for entry in claim["spec"]["devices"].get("config") or ()
    ]
    found = []
    for entry in entries:
        named = entry.get("requests") or []
        concerned = [each for each in chosen.values() if {each.main, each.name} & {*named}]
        if len(concerned) == len(chosen):
            entry.pop("requests", None)
        if concerned or not named:
            found.append(entry)
    return found


def _node_selector(picks: Sequence[Pick], node_name: str) -> Json | None:
    """Return the selector of the nodes that can reach the devices; None if all nodes can."""
    term: Json = {}
    for device in (pick.device for pick in picks):
        if device.node_name or device.binds_to_node:
            name = {"key": "metadata.name", "operator": "In", "values": [node_name]}
            return {"nodeSelectorTerms": [{"matchFields": [name]}]}
        for wider in (device.node_selector or {}).get("nodeSelectorTerms") or ():
            for kind in ("matchFields", "matchExpressions"):
                every = term.setdefault(kind, [])
                every += [entry for entry in wider.get(kind) or () if entry not in every]
    term = {kind: every for kind, every in term.items() if every}
    return {"nodeSelectorTerms": [term]} if term else None
