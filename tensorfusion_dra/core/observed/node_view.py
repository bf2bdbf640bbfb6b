"""The node as an administrator sees it at one moment: cards, shares, and how the driver fares.

The status page, its JSON and the metrics are made of this view. It repeats no rule: each value
follows from the catalog, the ledger's records, the verdicts about limits, or the state of a loop.

Amounts are exact: compute in billionths of a TFLOPS (the resolution of a Kubernetes quantity),
memory in bytes, time as timezone-aware moments or in seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.operation import OperationKind, Result, Stage
from tensorfusion_dra.core.claims.verdicts import Standing
from tensorfusion_dra.core.devices.gpu import LeftOut
from tensorfusion_dra.core.devices.health import Sickness
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.devices.slices import WriteReason
from tensorfusion_dra.core.kubernetes.quantity import NANO
from tensorfusion_dra.core.observed.other_capacities import OtherCapacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Compute and memory of a card, or of a part of it.

    Attributes:
        nano_tflops: Dense FP16 compute, in billionths of a TFLOPS.
        vram_bytes: Device memory.
    """

    nano_tflops: int = 0
    vram_bytes: int = 0

    @property
    def tflops(self) -> float:
        """The compute in TFLOPS, for display."""
        return self.nano_tflops / NANO

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(
            nano_tflops=self.nano_tflops + other.nano_tflops,
            vram_bytes=self.vram_bytes + other.vram_bytes,
        )

    def left_of(self, total: "Amounts") -> "Amounts":
        """Return what is left of a total; 0 where more is taken than there is."""
        return Amounts(
            nano_tflops=max(0, total.nano_tflops - self.nano_tflops),
            vram_bytes=max(0, total.vram_bytes - self.vram_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class XidCount:
    """Reports of one XID by the NVIDIA driver about one card since this process started.

    Attributes:
        text: What the XID means.
        marks_card: True if this XID makes the card unhealthy.
        last_at: Time of the last report.
    """

    code: int
    text: str
    marks_card: bool
    count: int
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CardView:
    """One card that is published, with what is taken of it.

    Attributes:
        device: The device's name in the slice.
        uuid: In NVML's casing.
        physical: What containers can allocate of the card itself.
        total_vram_bytes: Memory as NVML reports it, with what driver and firmware reserve.
        capacity: What its tenants divide: more than `physical` if the pool oversubscribes.
        is_virtual: True if `capacity` is that of an oversubscribed pool.
        consumed: What the shares count against `capacity`.
        free: What is left of `capacity`; nothing if a share has the card exclusively.
        sickness: None while the card is healthy.
        is_absent: True if the last reading did not find the card, or found it lost.
        others: Capacities that other packages give, in the order of their names.
    """

    device: str
    uuid: str
    index: int
    product_name: str
    model: str
    driver_version: str
    pci_bus_id: str
    is_simulated: bool
    physical: Amounts
    total_vram_bytes: int
    capacity: Amounts
    is_virtual: bool
    consumed: Amounts
    free: Amounts
    sickness: Sickness | None
    is_absent: bool
    xids: tuple[XidCount, ...] = ()
    others: tuple[OtherCapacity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareView:
    """One share of a prepared claim.

    Attributes:
        pods: Names of the pods that the claim was reserved for when it was prepared; they are in
            the claim's namespace.
        request: The claim's request that the share serves.
        gpu_uuid: In NVML's casing.
        requested: What the scheduler reserved; it counts against the card's capacity.
        limit: What the container may use; None if it has no limit.
        limit_nano_tflops: The compute limit in billionths of a TFLOPS; None without a limit, or if
            the card is not known.
        wanted: The limit that the share wants; None without a limit.
        enforcer: Name of what keeps the limit.
        is_exclusive: True if the share has the whole card.
        is_admin: True for admin access, which consumes nothing.
        enforcement: Whether the limit holds; None before the first look at it.
    """

    claim: ClaimRef
    pods: tuple[str, ...]
    request: str
    share_id: str | None
    device: str
    gpu_uuid: str
    requested: Amounts
    limit: Limit | None
    limit_nano_tflops: int | None
    wanted: Limit | None
    isolation: Isolation
    qos: Qos
    enforcer: str
    is_exclusive: bool
    is_admin: bool
    enforcement: Standing | None


class RegistrationState(StrEnum):
    """Whether the kubelet knows this instance."""

    WAITING = "waiting"
    REGISTERED = "registered"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationView:
    """What the kubelet last reported about the registration of this instance.

    Attributes:
        since: Time of the report; None while the kubelet has reported nothing.
        error: The kubelet's text if it refused.
    """

    state: RegistrationState = RegistrationState.WAITING
    since: datetime | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerView:
    """What this process last heard of the API server.

    Attributes:
        last_success_at: Time of the last answer or watch event; None before the first one.
        last_error_at: Time of the last failed request; None if none has failed.
        last_error: Text of that error, without credentials.
    """

    last_success_at: datetime | None = None
    last_error_at: datetime | None = None
    last_error: str = ""

    @property
    def is_failing(self) -> bool:
        """True if nothing has succeeded since the last error."""
        if self.last_error_at is None:
            return False
        return self.last_success_at is None or self.last_success_at < self.last_error_at


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishingView:
    """State of the loop that publishes the node's devices.

    Attributes:
        has_right: False while a newer instance on this node publishes.
        generation: Of the pool; None before slices were compared for the first time.
        slices: Number of slices in the pool.
        devices: Number of devices in them.
        confirmed_at: When the stored slices were last found or made the wanted ones; or None.
        written_at: Time of this instance's last write of a slice; None if it wrote none.
        writes: Number of slices that this process wrote or deleted, by reason; has every reason.
        dropped_gates: Feature gates that the API server has off, so that it drops their fields.
        error: Why the last round failed; "" if it did not.
        error_since: Start of the failures in a row; None if the last round did not fail.
    """

    has_right: bool = True
    generation: int | None = None
    slices: int = 0
    devices: int = 0
    confirmed_at: datetime | None = None
    written_at: datetime | None = None
    writes: Mapping[WriteReason, int] = field(default_factory=lambda: dict.fromkeys(WriteReason, 0))
    dropped_gates: tuple[str, ...] = ()
    error: str = ""
    error_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerView:
    """Damage of the ledger that was found and repaired since this process started.

    Attributes:
        quarantined: Damaged files that were moved away.
        restored: Records that were restored from their copies.
        lost: Records that could not be restored.
    """

    quarantined: int = 0
    restored: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationView:
    """One prepare or unprepare of one claim that has ended.

    Attributes:
        seconds: From the arrival of the kubelet's call to the end; the sum over all stages.
        stages: Seconds in each stage, the one entered first first.
        last_stage: The stage in which it ended; that of the error, if it failed.
        error: Text of the error; "" if it succeeded.
        from_record: True if the claim was prepared already, so that its record was the answer.
    """

    kind: OperationKind
    claim: ClaimRef
    ended_at: datetime
    seconds: float
    stages: Mapping[Stage, float]
    last_stage: Stage
    result: Result
    error: str = ""
    from_record: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """The node at one moment.

    Attributes:
        pool: Name of its resource pool; "" while that is not known.
        version: Of this driver.
        started_at: Start of this process.
        observed_at: The moment.
        enforcer: Whether limits would be enforced; None if nothing has to, or not looked at yet.
        cards: In the inventory's order; empty while they are not known.
        cards_missing: Why the cards are not known; "" once they are.
        left_out: Cards and devices that are not published, with the reason.
        shares: Of all prepared claims, sorted by claim; after an error those last read.
        shares_error: Why the ledger could not be read; "" if it could.
        operations: The newest first.
    """

    node: str
    pool: str
    version: str
    started_at: datetime
    observed_at: datetime
    registration: RegistrationView
    api_server: ApiServerView
    publishing: PublishingView
    ledger: LedgerView = LedgerView()
    enforcer: Standing | None = None
    cards: tuple[CardView, ...] = ()
    cards_missing: str = ""
    left_out: tuple[LeftOut, ...] = ()
    shares: tuple[ShareView, ...] = ()
    shares_error: str = ""
    operations: tuple[OperationView, ...] = ()

    @property
    def claims(self) -> int:
        """Number of prepared claims with shares."""
        return len({share.claim.uid for share in self.shares})
