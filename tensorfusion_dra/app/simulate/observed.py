"""Observations of the simulated cluster that go into the report."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dra_simulator.rest import Json
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.app.simulate.report import FreeCapacity, Pod, Share
from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity


def phase(pod: Json) -> str:
    """Return the pod's phase; ``Pending`` for a new pod."""
    return str(pod.get("status", {}).get("phase", "Pending"))


def is_settled(pod: Json) -> bool:
    """Return True if the pod runs, or if no node fits it; until then it waits for its claim."""
    return phase(pod) == "Running" or "nodes are available" in waits_for(pod)


def waits_for(pod: Json) -> str:
    """Return the scheduler's message of a pod that is not scheduled; else an empty text."""
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def pod_report(cluster: SimulatedCluster, pod: Json, asks: Mapping[str, str]) -> Pod:
    """Return what became of a pod: its phase, its shares and its container."""
    name = pod["metadata"]["name"]
    container = cluster.container_of(name)
    return Pod(
        name=name,
        asks=asks,
        phase=phase(pod),
        waits_for="" if container else waits_for(pod),
        shares=tuple(_shares(cluster.claim_of(pod))),
        env=dict(container.env) if container else {},
        cdi_ids=container.cdi_ids if container else (),
    )


def _shares(claim: Json | None) -> list[Share]:
    allocation = ((claim or {}).get("status") or {}).get("allocation") or {}
    return [
        Share(
            device=result["device"],
            share_id=result.get("shareID"),
            consumed=result.get("consumedCapacity") or {},
        )
        for result in allocation.get("devices", {}).get("results", [])
    ]


def first_spec(
    cluster: SimulatedCluster, pods: Sequence[Json]
) -> tuple[str, dict[str, Any] | None]:
    """Return the path and content of the CDI spec of the first pod that has one."""
    for pod in pods:
        claim = cluster.claim_of(pod)
        uid = claim["metadata"]["uid"] if claim else ""
        for file in cluster.spec_files():
            if uid and file.name == f"{names.CDI_FILE_PREFIX}{uid}.json":
                return str(file), json.loads(file.read_text(encoding="utf-8"))
    return "", None


def free_capacities(slices: Sequence[Json], claims: Sequence[Json]) -> list[FreeCapacity]:
    """Return what the claims leave of each device's capacities."""
    taken: dict[tuple[str, str], int] = {}
    for claim in claims:
        for share in _shares(claim):
            for name, amount in share.consumed.items():
                key = (share.device, name)
                taken[key] = taken.get(key, 0) + quantity.parse(amount).nano
    left = []
    for device in [device for item in slices for device in item["spec"].get("devices") or []]:
        for name, entry in _shared_capacity(device["capacity"]).items():
            total = quantity.parse(entry["value"])
            free = Quantity(total.nano - taken.get((device["name"], name), 0), total.family)
            left.append(
                FreeCapacity(
                    device=device["name"],
                    capacity=name,
                    total=str(total),
                    free=str(free),
                    free_share=free.nano / total.nano,
                )
            )
    return left


def _shared_capacity(capacity: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the capacities that tenants share: the virtual ones if there are any, else all."""
    virtual = {name: entry for name, entry in capacity.items() if name.startswith("virtual_")}
    return virtual or capacity
