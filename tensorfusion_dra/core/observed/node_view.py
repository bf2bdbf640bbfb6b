"""The node as an administrator sees it at one moment: cards, shares, and how the driver fares.

cards() and shares() build the views of cards and shares from devices and the records of prepared
claims; count_xid() counts what the NVIDIA driver reports.

The status page, its JSON and the metrics are made of this view. It repeats no rule: each value
follows from the catalog, the records of claims, the verdicts about limits, or the state of a loop.

Amounts are exact: compute in billionths of a TFLOPS (the resolution of a Kubernetes quantity),
memory in bytes, time as timezone-aware moments or in seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.operation import EndedOperation
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.use import Used
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices import xids as xid_descriptions
from tensorfusion_dra.core.devices.capacity import VIRTUAL_OF
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.gpu import Isolation, LeftOut, Qos
from tensorfusion_dra.core.devices.health import CardEvent, EventKind, HealthRules, Unhealthy
from tensorfusion_dra.core.devices.slices import WriteReason
from tensorfusion_dra.core.kubernetes.quantity import NANO, Quantity


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
class OtherCapacity:
    """One capacity of a card.

    Attributes:
        name: As in the slice, such as example.com/encoder_sessions.
        quantity: What all shares together may consume.
        consumed: What the prepared shares consume of it.
    """

    name: str
    quantity: Quantity
    consumed: Quantity


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
        unhealthy: None while the card is healthy.
        is_absent: True if the last reading did not find the card, or found it lost.
        others: Capacities that other packages give, in the order of their names.
        foreign: What processes outside of all shares use; None if there are none, or not known.
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
    unhealthy: Unhealthy | None
    is_absent: bool
    xids: tuple[XidCount, ...] = ()
    others: tuple[OtherCapacity, ...] = ()
    foreign: Used | None = None


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
        enforcement: Whether the limit holds; None before the first check.
        used: What its processes use; None if it is not known.
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
    enforcement: CurrentVerdict | None
    used: Used | None = None


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
        holds_lease: False while a newer instance on this node publishes.
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

    holds_lease: bool = True
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
    """Damage to the records of prepared claims.

    Attributes:
        restored: Records that were written again, or rebuilt, since this process started.
        damaged: Records that cannot be read now.
    """

    restored: int = 0
    damaged: int = 0


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
        shares_error: Why the records could not be read; "" if it could.
        use_error: Why nobody knows what the shares use; "" if it is known, or not observed.
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
    enforcer: CurrentVerdict | None = None
    cards: tuple[CardView, ...] = ()
    cards_missing: str = ""
    left_out: tuple[LeftOut, ...] = ()
    shares: tuple[ShareView, ...] = ()
    shares_error: str = ""
    use_error: str = ""
    operations: tuple[EndedOperation, ...] = ()

    @property
    def claims(self) -> int:
        """Number of prepared claims with shares."""
        return len({share.claim.uid for share in self.shares})


XidCounts = Mapping[str, tuple[XidCount, ...]]
"""By GPU UUID; the counts of a card are sorted by XID."""


def count_xid(known: XidCounts, event: CardEvent, rules: HealthRules, at: datetime) -> XidCounts:
    """Return the counts after one more event; other events than XIDs of a card do not count."""
    if event.kind is not EventKind.XID or event.gpu_uuid is None:
        return known
    of_card = {each.code: each for each in known.get(event.gpu_uuid, ())}
    new = XidCount(
        code=event.code,
        text=xid_descriptions.description(event.code),
        marks_card=rules.xids.marks_card(event.code),
        count=0,
        last_at=at,
    )
    before = of_card.get(event.code, new)
    of_card[event.code] = replace(before, count=before.count + 1, last_at=at)
    return {**known, event.gpu_uuid: tuple(of_card[code] for code in sorted(of_card))}


_PERCENT_OF_MILLI: Final = 10_000
"""Billionths of a TFLOPS in one percent of a thousandth of a TFLOPS."""


def cards(
    devices: Iterable[Device],
    claims: Iterable[PreparedClaim],
    *,
    unhealthy: Mapping[str, Unhealthy],
    absent: AbstractSet[str],
    xids: Mapping[str, Sequence[XidCount]],
    foreign: Mapping[str, Used],
) -> tuple[CardView, ...]:
    """Return a view of each device, in their order.

    Args:
        devices: As they are published.
        claims: All prepared claims.
        unhealthy: Unhealthy devices, by device name.
        absent: Names of devices whose card is absent.
        xids: Reports of XIDs, by GPU UUID.
        foreign: What processes outside of all shares use, by GPU UUID.
    """
    held: dict[str, list[PreparedShare]] = {}
    for claim in claims:
        for share in claim.shares:
            held.setdefault(share.device, []).append(share)
    return tuple(
        _card(
            device,
            held.get(device.name, ()),
            unhealthy=unhealthy.get(device.name),
            is_absent=device.name in absent,
            xids=tuple(xids.get(device.gpu.uuid, ())),
            foreign=foreign.get(device.gpu.uuid),
        )
        for device in devices
    )


def shares(
    claim: PreparedClaim,
    devices: Mapping[str, Device],
    current: Sequence[CurrentVerdict],
    used: Sequence[Used | None] = (),
) -> tuple[ShareView, ...]:
    """Return a view of each share of a claim, in their order.

    Args:
        claim: As it is prepared.
        devices: By name; a share of another device is shown without its limit in TFLOPS.
        current: The verdict about each share; of another number before the first check of the
            claim's present limits.
        used: What each share uses; of another number before the claim was observed.
    """
    verdicts = current if len(current) == len(claim.shares) else [None] * len(claim.shares)
    uses = used if len(used) == len(claim.shares) else [None] * len(claim.shares)
    return tuple(
        _share(claim, share, devices.get(share.device), verdict, use)
        for share, verdict, use in zip(claim.shares, verdicts, uses, strict=True)
    )


def _card(
    device: Device,
    held: Sequence[PreparedShare],
    *,
    unhealthy: Unhealthy | None,
    is_absent: bool,
    xids: tuple[XidCount, ...],
    foreign: Used | None,
) -> CardView:
    gpu = device.gpu
    total = _amounts(
        capacity.divided_capacity(device.capacity, names.CAPACITY_TFLOPS).value,
        capacity.divided_capacity(device.capacity, names.CAPACITY_VRAM).value,
    )
    consumed = _consumed(device, held, total)
    return CardView(
        device=device.name,
        uuid=gpu.uuid,
        index=gpu.index,
        product_name=gpu.product_name,
        model=gpu.model,
        driver_version=gpu.driver_version,
        pci_bus_id=gpu.pci_bus_id or "",
        is_simulated=gpu.simulated,
        physical=_amounts(
            device.capacity[names.CAPACITY_TFLOPS].value, device.capacity[names.CAPACITY_VRAM].value
        ),
        total_vram_bytes=gpu.vram_bytes,
        capacity=total,
        is_virtual=any(virtual in device.capacity for virtual in VIRTUAL_OF.values()),
        consumed=consumed,
        free=consumed.left_of(total),
        unhealthy=unhealthy,
        is_absent=is_absent,
        xids=xids,
        others=tuple(
            OtherCapacity(
                name=name,
                quantity=device.capacity[name].value,
                consumed=sum(
                    (
                        capacity.counted_amount(each.consumed, name, device.capacity)
                        for each in held
                    ),
                    start=Quantity(0, device.capacity[name].value.family),
                ),
            )
            for name in sorted(device.capacity.keys() - names.CAPACITIES)
        ),
        foreign=foreign,
    )


def _consumed(device: Device, held: Iterable[PreparedShare], total: Amounts) -> Amounts:
    """Return what the shares count against the device; an exclusive one counts as all of it."""
    consumed, is_whole = Amounts(), False
    tflops, vram = (
        VIRTUAL_OF[name] if VIRTUAL_OF[name] in device.capacity else name
        for name in (names.CAPACITY_TFLOPS, names.CAPACITY_VRAM)
    )
    for share in held:
        is_whole = is_whole or (share.exclusive and not share.admin_access)
        if share.consumed:
            consumed += _amounts(
                capacity.counted_amount(share.consumed, tflops, device.capacity),
                capacity.counted_amount(share.consumed, vram, device.capacity),
            )
    if not is_whole:
        return consumed
    # Under another pool's ratios the same card had other amounts.
    return Amounts(
        nano_tflops=max(consumed.nano_tflops, total.nano_tflops),
        vram_bytes=max(consumed.vram_bytes, total.vram_bytes),
    )


def _share(
    claim: PreparedClaim,
    share: PreparedShare,
    device: Device | None,
    current: CurrentVerdict | None,
    used: Used | None,
) -> ShareView:
    limit = None if share.admin_access else share.limit
    requested = Amounts()
    if share.consumed:
        requested = _amounts(
            capacity.consumed_amount(share.consumed, names.CAPACITY_TFLOPS),
            capacity.consumed_amount(share.consumed, names.CAPACITY_VRAM),
        )
    compute = None
    if limit is not None and device is not None:
        compute = device.gpu.milli_tflops * limit.sm_percent * _PERCENT_OF_MILLI
    return ShareView(
        claim=claim.ref,
        pods=tuple(pod.name for pod in claim.pods),
        request=share.request,
        share_id=share.share_id,
        device=share.device,
        gpu_uuid=share.gpu_uuid,
        requested=requested,
        limit=limit,
        limit_nano_tflops=compute,
        wanted=None
        if limit is None
        else Limit(sm_percent=share.wanted_sm_percent, vram_bytes=share.wanted_vram_bytes),
        isolation=share.isolation,
        qos=share.qos,
        enforcer=claim.enforcer,
        is_exclusive=share.exclusive,
        is_admin=share.admin_access,
        enforcement=current,
        used=used,
    )


def _amounts(tflops: Quantity, vram: Quantity) -> Amounts:
    return Amounts(nano_tflops=tflops.nano, vram_bytes=vram.ceil())
