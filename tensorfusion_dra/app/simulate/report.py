"""Facts of a simulation, as `-o json` prints them, and how the cluster shows them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dra_simulator.rest import Json
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A pod's share of one device.

    Attributes:
        share_id: Set by the scheduler if the device can be shared; else None.
        consumed: Quantities by capacity; empty for admin access.
    """

    device: str
    share_id: str | None
    consumed: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the simulation.

    Attributes:
        asks: Quantities by capacity that its claim requests; empty requests a whole card.
        phase: The phase in its status.
        waits_for: The scheduler's message if its container does not run; else empty.
        env: Environment of its container: the CDI spec's and the image's.
    """

    name: str
    asks: Mapping[str, str]
    phase: str
    waits_for: str = ""
    shares: tuple[Share, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cdi_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Result of a pod's admission.

    Attributes:
        refused: Why the API server refused the pod; empty if it accepted it.
        annotations: Annotations of the stored pod.
        claim: Name of its claim; empty if it has none.
        request: The claim's first request, the content of `exactly`.
        requests: Number of such requests in the claim: one for each GPU.
    """

    pod: str
    refused: str = ""
    warnings: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    claim: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)
    requests: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeCapacity:
    """The free part of one capacity of one device.

    Attributes:
        total: Quantity in the capacity's unit.
        free: Quantity in the capacity's unit.
        free_share: Fraction of the total, 0 to 1.
    """

    device: str
    capacity: str
    total: str
    free: str
    free_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of a simulation.

    Attributes:
        slices: The stored ResourceSlices.
        cdi_file: Path of the CDI spec of the first pod that runs; empty if none runs.
        left: Free capacities while the pods run.
        admissions: Results of the webhook; empty without one.
        left_behind: Claims, CDI specs and sockets that the teardown should have removed.
        kept_in: The folder if the cluster is kept running; else empty.
        seconds: Durations by name.
    """

    node: str
    pool: str
    slices: tuple[Mapping[str, Any], ...]
    pods: tuple[Pod, ...]
    cdi_file: str
    cdi_spec: Mapping[str, Any] | None
    left: tuple[FreeCapacity, ...]
    admissions: tuple[Admission, ...]
    left_behind: tuple[str, ...]
    kept_in: str
    seconds: Mapping[str, float]


def as_json(report: Report) -> str:
    """Return the report as JSON."""
    return json.dumps(asdict(report), indent=2)


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
