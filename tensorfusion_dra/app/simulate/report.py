"""Facts of a simulation, as `-o json` prints them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a pod got of one device.

    Attributes:
        consumed: Quantities by capacity; empty for admin access.
    """

    device: str
    share_id: str | None
    consumed: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the simulation.

    Attributes:
        asks: Quantities by capacity, as its claim requests them; empty asks for a whole card.
        phase: As in its status.
        waits_for: The scheduler's words if it is not running.
        env: Environment of its container as the runtime made it, ours and the image's.
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
    """What the webhook made of a pod.

    Attributes:
        refused: Why the API server did not take it; empty if it did.
        annotations: Of the pod as it was stored.
        claim: Name of its claim; empty if it has none.
        request: What the claim asks for, as the API has it.
        requests: How many such requests the claim has: one for each GPU.
    """

    pod: str
    refused: str = ""
    warnings: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    claim: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)
    requests: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is still free of one device's capacity.

    Attributes:
        total: In the capacity's unit.
        free: In the capacity's unit.
        free_share: 0 to 1.
    """

    device: str
    capacity: str
    total: str
    free: str
    free_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that a simulation shows.

    Attributes:
        slices: As the API server stores them.
        admissions: What the webhook did, if there is one.
        cdi_file: Path of the first pod's spec; empty if no pod ran.
        left_behind: What the teardown should have removed and did not.
        seconds: Durations by name.
    """

    node: str
    pool: str
    slices: tuple[Mapping[str, Any], ...]
    pods: tuple[Pod, ...]
    cdi_file: str
    cdi_spec: Mapping[str, Any] | None
    left: tuple[Left, ...]
    admissions: tuple[Admission, ...]
    left_behind: tuple[str, ...]
    kept_in: str
    seconds: Mapping[str, float]


def as_json(report: Report) -> str:
    """Return the report for programs."""
    return json.dumps(asdict(report), indent=2)
