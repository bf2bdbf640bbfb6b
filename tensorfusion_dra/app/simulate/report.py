"""Facts of a simulation, as `-o json` prints them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


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
