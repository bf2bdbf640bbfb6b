"""The node at one moment, for administrators: cards, shares, and the state of the driver.

cards() and shares() build the views of cards and shares from devices and the records of prepared
claims; count_xid() counts what the NVIDIA driver reports. The status page, its JSON and the metrics
are made of this view. It repeats no rule: each value follows from the catalog, the records of
claims, the verdicts about limits, or the state of a loop.

Amounts are exact: compute in billionths of a TFLOPS (the resolution of a Kubernetes quantity),
memory in bytes, time as timezone-aware moments or in seconds.

as_json() returns the view as JSON: /status.json, which docs/status-page.md documents. Within one
format, fields are added but neither removed nor changed in their meaning. There compute is in
TFLOPS, memory in bytes, durations in seconds, moments in RFC 3339 with a time zone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.claims.operation import EndedOperation
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.resize import Resize
from tensorfusion_dra.core.claims.use import Used
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices import xids as xid_descriptions
from tensorfusion_dra.core.devices.capacity import VIRTUAL_OF
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.gpu import LeftOut
from tensorfusion_dra.core.devices.health import CardEvent, EventKind, HealthRules, Unhealthy
from tensorfusion_dra.core.devices.slices import WriteReason
from tensorfusion_dra.core.kubernetes.quantity import NANO, Quantity

Json = dict[str, Any]

FORMAT: Final = 1
NO_ANSWER: Final = "none"
"""In place of the status of a request without a complete answer."""
_MAX_TEXT: Final = 1000
_PERCENT_OF_MILLI: Final = 10_000
"""Billionths of a TFLOPS in one percent of a thousandth of a TFLOPS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardAmounts:
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
        device: As it is published.
        physical: What containers can allocate of the card itself.
        capacity: What its tenants divide: more than `physical` if the pool oversubscribes.
        is_virtual: True if `capacity` is that of an oversubscribed pool.
        consumed: What the shares count against `capacity`; all of it if one has the card
            exclusively.
        unhealthy: None while the card is healthy.
        is_absent: True if the last reading did not find the card, or found it lost.
        others: Capacities that other packages give, in the order of their names.
        foreign: What processes outside of all shares use; None if there are none, or not known.
        taints: Of the device, and of DeviceTaintRules, as the API has them.
    """

    device: Device
    physical: CardAmounts
    capacity: CardAmounts
    is_virtual: bool
    consumed: CardAmounts
    unhealthy: Unhealthy | None
    is_absent: bool
    xids: tuple[XidCount, ...] = ()
    others: tuple[OtherCapacity, ...] = ()
    foreign: Used | None = None
    taints: tuple[Mapping[str, object], ...] = ()

    @property
    def free(self) -> CardAmounts:
        """Rest of `capacity`; 0 where more is taken than there is."""
        return CardAmounts(
            nano_tflops=max(0, self.capacity.nano_tflops - self.consumed.nano_tflops),
            vram_bytes=max(0, self.capacity.vram_bytes - self.consumed.vram_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareView:
    """One share of a prepared claim.

    Attributes:
        device: As it is published; None if it is not.
        enforcement: Whether the limit holds; None before the first check.
        used: What its processes use; None if it is not known.
        raised_percent: Part of the card that it may use for the moment, because the other tenants
            are idle; 0 if that is no more than its limit.
        resize: What the claim asks for while it runs; None if nothing.
    """

    claim: PreparedClaim
    share: PreparedShare
    device: Device | None
    enforcement: CurrentVerdict | None
    used: Used | None = None
    raised_percent: int = 0
    resize: Resize | None = None

    @property
    def requested(self) -> CardAmounts:
        """Amounts that the scheduler reserved; they count against the card's capacity."""
        if not self.share.consumed:
            return CardAmounts()
        return _amounts(
            capacity.consumed_amount(self.share.consumed, names.CAPACITY_TFLOPS),
            capacity.consumed_amount(self.share.consumed, names.CAPACITY_VRAM),
        )

    @property
    def limit(self) -> Limit | None:
        """Limit of the container; None if it has none."""
        return None if self.share.admin_access else self.share.limit

    @property
    def limit_nano_tflops(self) -> int | None:
        """The compute limit; None without a limit, or if the card is not known."""
        if self.limit is None or self.device is None:
            return None
        return self.device.gpu.milli_tflops * self.limit.sm_percent * _PERCENT_OF_MILLI


class RegistrationState(StrEnum):
    """State of this instance at the kubelet."""

    WAITING = "waiting"
    REGISTERED = "registered"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationView:
    """Last report of the kubelet about the registration of this instance.

    Attributes:
        since: Time of the report; None while the kubelet has reported nothing.
        error: The kubelet's text if it refused.
    """

    state: RegistrationState = RegistrationState.WAITING
    since: datetime | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerView:
    """Record of the requests to the API server.

    Attributes:
        last_success_at: Time of the last answer or watch event; None before the first one.
        last_error_at: Time of the last failed request; None if none has failed.
        last_error: Text of that error, without credentials.
        requests: Numbers by Kubernetes' verb, resource and code: the HTTP status or NO_ANSWER.
    """

    last_success_at: datetime | None = None
    last_error_at: datetime | None = None
    last_error: str = ""
    requests: Mapping[tuple[str, str, str], int] = field(default_factory=dict)

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
class StoreView:
    """Damage to the records of prepared claims.

    Attributes:
        restored: Records that were written again, or rebuilt, since this process started.
        damaged: Records that are damaged or missing now.
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
        keepers: What keeps limits, for texts, by the name of the enforcer.
        cards: In the inventory's order; empty while they are not known.
        cards_missing: Why the cards are not known; "" once they are.
        left_out: Cards and devices that are not published, with the reason.
        shares: Of all prepared claims, sorted by claim; after an error those last read.
        shares_error: Why the records could not be read; "" if it could.
        use_error: Why the use of the shares is not known; "" if it is known, or not observed.
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
    store: StoreView = StoreView()
    enforcer: CurrentVerdict | None = None
    keepers: Mapping[str, str] = field(default_factory=dict)
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
        return len({share.claim.ref.uid for share in self.shares})


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


def cards(
    devices: Iterable[Device],
    claims: Iterable[PreparedClaim],
    *,
    unhealthy: Mapping[str, Unhealthy],
    absent: AbstractSet[str],
    xids: Mapping[str, Sequence[XidCount]],
    foreign: Mapping[str, Used],
    rules_of: Callable[[Device], Iterable[Mapping[str, object]]] = lambda _: (),
) -> tuple[CardView, ...]:
    """Return a view of each device, in their order.

    Args:
        devices: As they are published.
        claims: All prepared claims.
        unhealthy: Unhealthy devices, by device name.
        absent: Names of devices whose card is absent.
        xids: Reports of XIDs, by GPU UUID.
        foreign: What processes outside of all shares use, by GPU UUID.
        rules_of: Returns the taints that DeviceTaintRules add to a device.
    """
    held: dict[str, list[PreparedShare]] = {}
    for claim in claims:
        for share in claim.shares:
            held.setdefault(share.device, []).append(share)
    found = []
    for device in devices:
        shares = held.get(device.name, ())
        total = _amounts(
            capacity.divided_capacity(device.capacity, names.CAPACITY_TFLOPS).value,
            capacity.divided_capacity(device.capacity, names.CAPACITY_VRAM).value,
        )
        found.append(
            CardView(
                device=device,
                physical=_amounts(
                    device.capacity[names.CAPACITY_TFLOPS].value,
                    device.capacity[names.CAPACITY_VRAM].value,
                ),
                capacity=total,
                is_virtual=any(virtual in device.capacity for virtual in VIRTUAL_OF.values()),
                consumed=_consumed(device, shares, total),
                unhealthy=unhealthy.get(device.name),
                is_absent=device.name in absent,
                xids=tuple(xids.get(device.gpu.card_uuid, ())),
                others=tuple(
                    OtherCapacity(
                        name=name,
                        quantity=device.capacity[name].value,
                        consumed=sum(
                            (
                                capacity.counted_amount(each.consumed, name, device.capacity)
                                for each in shares
                            ),
                            start=Quantity(0, device.capacity[name].value.family),
                        ),
                    )
                    for name in sorted(device.capacity.keys() - names.CAPACITIES)
                ),
                foreign=foreign.get(device.gpu.uuid),
                taints=(*(each.as_api() for each in device.taints), *rules_of(device)),
            )
        )
    return tuple(found)


def shares(
    claims: Iterable[PreparedClaim],
    devices: Mapping[str, Device],
    *,
    verdicts: Mapping[str, Sequence[CurrentVerdict]],
    used: Mapping[str, Sequence[Used | None]],
    raised: Mapping[str, int] = {},
    resized: Mapping[str, Resize] = {},
) -> tuple[ShareView, ...]:
    """Return a view of each share, sorted by claim and then in the claim's order.

    Args:
        claims: As they are prepared.
        devices: By name.
        verdicts: About each share, by claim UID; of another number before the first check of the
            claim's present limits.
        used: What each share uses, by claim UID; of another number before the claim was observed.
        raised: Claims whose compute limits are raised, in percent by claim UID.
        resized: What claims ask for while they run, by claim UID.
    """
    found = []
    for claim in sorted(claims, key=lambda each: (str(each.ref), each.ref.uid)):
        unknown = [None] * len(claim.shares)
        of_claim, uses = verdicts.get(claim.ref.uid, ()), used.get(claim.ref.uid, ())
        found += [
            ShareView(
                claim=claim,
                share=share,
                device=devices.get(share.device),
                enforcement=verdict,
                used=use,
                raised_percent=raised.get(claim.ref.uid, 0),
                resize=resized.get(claim.ref.uid),
            )
            for share, verdict, use in zip(
                claim.shares,
                of_claim if len(of_claim) == len(unknown) else unknown,
                uses if len(uses) == len(unknown) else unknown,
                strict=True,
            )
        ]
    return tuple(found)


def _consumed(device: Device, held: Sequence[PreparedShare], total: CardAmounts) -> CardAmounts:
    """Return what the shares count against the device; an exclusive one counts as all of it."""
    tflops, vram = (
        VIRTUAL_OF[name] if VIRTUAL_OF[name] in device.capacity else name
        for name in (names.CAPACITY_TFLOPS, names.CAPACITY_VRAM)
    )
    counted = [share.consumed for share in held if share.consumed]
    nano_tflops = sum(capacity.counted_amount(c, tflops, device.capacity).nano for c in counted)
    vram_bytes = sum(capacity.counted_amount(c, vram, device.capacity).ceil() for c in counted)
    if any(share.exclusive and not share.admin_access for share in held):
        # Under another pool's ratios the same card had other amounts.
        nano_tflops = max(nano_tflops, total.nano_tflops)
        vram_bytes = max(vram_bytes, total.vram_bytes)
    return CardAmounts(nano_tflops=nano_tflops, vram_bytes=vram_bytes)


def _amounts(tflops: Quantity, vram: Quantity) -> CardAmounts:
    return CardAmounts(nano_tflops=tflops.nano, vram_bytes=vram.ceil())


def as_json(view: NodeView) -> Json:
    """Return the view as JSON."""
    return {
        "format": FORMAT,
        "observedAt": _moment(view.observed_at),
        "node": {
            "name": _text(view.node),
            "pool": _text(view.pool),
            "version": view.version,
            "startedAt": _moment(view.started_at),
        },
        "registration": {
            "state": view.registration.state.value,
            "since": _moment(view.registration.since),
            "error": _text(view.registration.error),
        },
        "apiServer": {
            "failing": view.api_server.is_failing,
            "lastSuccessAt": _moment(view.api_server.last_success_at),
            "lastErrorAt": _moment(view.api_server.last_error_at),
            "lastError": _text(view.api_server.last_error),
        },
        "publishing": {
            "publishes": view.publishing.holds_lease,
            "generation": view.publishing.generation,
            "slices": view.publishing.slices,
            "devices": view.publishing.devices,
            "confirmedAt": _moment(view.publishing.confirmed_at),
            "writtenAt": _moment(view.publishing.written_at),
            "droppedGates": list(view.publishing.dropped_gates),
            "error": _text(view.publishing.error),
            "errorSince": _moment(view.publishing.error_since),
        },
        "store": {
            "restored": view.store.restored,
            "damaged": view.store.damaged,
        },
        "enforcer": _enforcement(view.enforcer),
        "keepers": [[name, _text(keeper)] for name, keeper in view.keepers.items()],
        "cards": [_card_json(card) for card in view.cards],
        "cardsMissing": _text(view.cards_missing),
        "leftOut": [
            {"subject": _text(each.subject), "reason": _text(each.reason)} for each in view.left_out
        ],
        "shares": [_share_json(share) for share in view.shares],
        "sharesError": _text(view.shares_error),
        "useError": _text(view.use_error),
        "operations": [
            {
                "operation": each.kind.value,
                "namespace": _text(each.claim.namespace),
                "claim": _text(each.claim.name),
                "claimUID": _text(each.claim.uid),
                "endedAt": _moment(each.ended_at),
                "seconds": round(each.seconds, 6),
                "stages": [
                    {"stage": stage.value, "seconds": round(seconds, 6)}
                    for stage, seconds in each.seconds_by_stage.items()
                ],
                "result": each.result.value,
                "lastStage": each.last_stage.value,
                "error": _text(each.error),
                "fromRecord": each.from_record,
            }
            for each in view.operations
        ],
    }


def _card_json(card: CardView) -> Json:
    gpu = card.device.gpu
    return {
        "device": _text(card.device.name),
        "uuid": _text(gpu.uuid),
        "index": gpu.index,
        "productName": _text(f"{gpu.product_name} {gpu.partition}".strip()),
        "model": _text(gpu.model),
        "driverVersion": _text(gpu.driver_version),
        "pciBusID": _text(gpu.pci_bus_id or ""),
        "simulated": gpu.simulated,
        "physical": _amounts_json(card.physical),
        "totalVramBytes": gpu.vram_bytes,
        "capacity": _amounts_json(card.capacity),
        "oversubscribed": card.is_virtual,
        "consumed": _amounts_json(card.consumed),
        "free": _amounts_json(card.free),
        "health": {
            "healthy": card.unhealthy is None,
            "absent": card.is_absent,
            "reason": _text(card.unhealthy.worst.reason) if card.unhealthy else "",
            "message": _text(card.unhealthy.worst.text) if card.unhealthy else "",
            "since": _moment(card.unhealthy.since) if card.unhealthy else None,
        },
        "taints": [
            {key: _text(str(each.get(key, ""))) for key in ("key", "value", "effect")}
            for each in card.taints
        ],
        "xids": [
            {
                "xid": each.code,
                "message": _text(each.text),
                "marksCard": each.marks_card,
                "count": each.count,
                "lastAt": _moment(each.last_at),
            }
            for each in card.xids
        ],
        "foreign": None
        if card.foreign is None
        else {"vramBytes": card.foreign.vram_bytes, "processes": card.foreign.processes},
        "otherCapacities": [
            {
                "name": _text(each.name),
                "quantity": str(each.quantity),
                "consumed": str(each.consumed),
            }
            for each in card.others
        ],
    }


def _share_json(view: ShareView) -> Json:
    claim, share = view.claim, view.share
    limit = wanted = None
    if view.limit is not None:
        compute = view.limit_nano_tflops
        limit = {
            "computePercent": view.limit.sm_percent,
            "vramBytes": view.limit.vram_bytes,
            "tflops": None if compute is None else compute / NANO,
        }
        wanted = {
            "computePercent": share.wanted_sm_percent,
            "vramBytes": share.wanted_vram_bytes,
        }
    return {
        "namespace": _text(claim.ref.namespace),
        "claim": _text(claim.ref.name),
        "claimUID": _text(claim.ref.uid),
        "pods": [_text(pod.name) for pod in claim.pods],
        "request": _text(share.request),
        "shareID": share.share_id,
        "device": _text(share.device),
        "uuid": _text(share.gpu_uuid),
        "requested": _amounts_json(view.requested),
        "limit": limit,
        "wanted": wanted,
        "raisedPercent": view.raised_percent,
        "limitChanged": _changed(view),
        "isolation": share.isolation.value,
        "qos": share.qos.value,
        "enforcer": _text(claim.enforcer),
        "exclusive": share.exclusive,
        "adminAccess": share.admin_access,
        "enforcement": _enforcement(view.enforcement),
        "used": None
        if view.used is None
        else {
            "vramBytes": view.used.vram_bytes,
            "computePercent": view.used.sm_percent,
            "processes": view.used.processes,
            "nearLimit": view.used.is_near(view.limit),
        },
    }


def _changed(view: ShareView) -> Json | None:
    if view.resize is None or view.share.admin_access:
        return None
    reason, text = view.resize.outcome(view.share, view.used)
    return {"asked": dict(view.resize.asked), "reason": reason, "message": _text(text)}


def _enforcement(current: CurrentVerdict | None) -> Json | None:
    if current is None:
        return None
    return {
        "state": current.verdict.state.value,
        "reason": _text(current.verdict.reason),
        "message": _text(current.verdict.text),
        "limits": current.verdict.limits_json(),
        "since": _moment(current.since),
    }


def _amounts_json(amounts: CardAmounts) -> Json:
    return {"tflops": amounts.tflops, "vramBytes": amounts.vram_bytes}


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds")


def _text(text: str) -> str:
    """Return external text on one line and of bounded length."""
    line = printable.one_line(text)
    return line if len(line) <= _MAX_TEXT else f"{line[: _MAX_TEXT - 1]}…"
