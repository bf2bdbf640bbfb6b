"""When a card counts as unhealthy, why, and when as healthy again.

Bad news counts at once, good news only after a while: so a card that is now good and now bad is
bad, and whoever is told of each change is told no oftener than the quiet time allows.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum, StrEnum

from tensorfusion_dra.core.devices import xids
from tensorfusion_dra.core.devices.xids import XidRules


class Kind(IntEnum):
    """What can be wrong with a card, the worst last."""

    XID = 1
    MEMORY = 2
    RECOVERY = 3
    UNREADABLE = 4
    LOST = 5
    VANISHED = 6


AWAY = frozenset({Kind.LOST, Kind.VANISHED})
"""No container can use such a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that is wrong with a card.

    Attributes:
        reason: A label value (Kubernetes), for taints: ``xid-79``.
        text: For people; the same as long as the trouble is the same.
    """

    kind: Kind
    reason: str
    text: str


class EventKind(StrEnum):
    """What a driver reports by itself."""

    XID = "xid"
    UNCORRECTABLE_ECC = "uncorrectable-ecc"
    FATAL_POISON = "fatal-poison"
    RETIREMENT_FAILED = "retirement-failed"
    UNAVAILABLE = "unavailable"
    RECOVERY_ACTION = "recovery-action"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardEvent:
    """One report of the driver about one card.

    Attributes:
        gpu_uuid: None if the driver does not tell which card; then a reading has to.
        code: The XID, or 0.
    """

    gpu_uuid: str | None
    kind: EventKind
    code: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, on two clocks.

    Attributes:
        seconds: On a clock that never jumps, for durations.
        at: On the clock on the wall, aware of its time zone.
    """

    seconds: float
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """How fast a card's health changes.

    Attributes:
        failed_readings: Readings in a row without any answer, after which a card is unhealthy.
        good_readings: Readings in a row without trouble, before it is healthy again.
        quiet_seconds: The least time without trouble, before it is healthy again.
        xid_clear_seconds: After so long a reported error counts as cleared although nothing
            shows that the card was reset; 0 for never.
    """

    failed_readings: int = 2
    good_readings: int = 3
    quiet_seconds: float = 120.0
    xid_clear_seconds: float = 0.0
    xids: XidRules = field(default_factory=XidRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one reading found about a card.

    Attributes:
        troubles: What is wrong now.
        needs_nothing: The driver itself says that the card needs no recovery; an older one says
            nothing about it.
        was_reset: Something shows that the card was reset since the last reading.
    """

    troubles: tuple[Trouble, ...] = ()
    needs_nothing: bool = False
    was_reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sickness:
    """Why and since when a card is unhealthy.

    Attributes:
        worst: The worst trouble since then, the first of its kind.
    """

    worst: Trouble
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHealth:
    """A card's health; a new card is healthy.

    Attributes:
        sick: None while it is healthy.
        reported: Errors that the driver reported and that only a reset clears.
        reported_at: When the last of them was, in Moment.seconds.
        trouble_at: When there last was any trouble, in Moment.seconds.
        good_readings: In a row, up to the last one.
        failed_readings: In a row, up to the last one.
        was_away: It was lost or had vanished since it became sick.
    """

    sick: Sickness | None = None
    reported: tuple[Trouble, ...] = ()
    reported_at: float = 0.0
    trouble_at: float = 0.0
    good_readings: int = 0
    failed_readings: int = 0
    was_away: bool = False


HEALTHY = CardHealth()


def trouble_of(event: CardEvent, rules: HealthRules) -> Trouble | None:
    """What an event means for its card; None if it says nothing against it."""
    match event.kind:
        case EventKind.XID if rules.xids.marks_card(event.code):
            text = xids.description(event.code)
            return Trouble(kind=Kind.XID, reason=f"xid-{event.code}", text=text)
        case EventKind.UNCORRECTABLE_ECC:
            return _memory("uncorrectable-ecc", "uncorrectable ECC error")
        case EventKind.FATAL_POISON:
            return _memory("fatal-poison", "uncontained memory error (poison)")
        case EventKind.RETIREMENT_FAILED:
            return _memory("retirement-failed", "bad memory could not be retired")
        case EventKind.UNAVAILABLE:
            text = "the driver reports the GPU as unavailable"
            return Trouble(kind=Kind.XID, reason="unavailable", text=text)
        case _:
            return None


def recovery_trouble(action: int) -> Trouble | None:
    """What nvmlDeviceGpuRecoveryAction_t means for a card; None if no recovery is needed."""
    if action == 0:
        return None
    reason, text = _RECOVERY.get(
        action, (f"recovery-action-{action}", f"the driver asks for recovery action {action}")
    )
    return Trouble(kind=Kind.RECOVERY, reason=reason, text=text)


def reported(health: CardHealth, trouble: Trouble, now: Moment) -> CardHealth:
    """The health after the driver reported an error: sick until it is cleared."""
    known = {each.reason: each for each in (*health.reported, trouble)}
    health = replace(health, reported=tuple(known.values()), reported_at=now.seconds)
    return _troubled(health, (trouble,), now)


def read(health: CardHealth, finding: Finding, now: Moment, rules: HealthRules) -> CardHealth:
    """The health after a reading that told of the card."""
    health = replace(health, failed_readings=0)
    if finding.troubles:
        return _troubled(health, finding.troubles, now)
    if health.sick is None:
        return health
    if health.reported and not _is_cleared(health, finding, now, rules):
        return replace(health, good_readings=0)
    # Cleared stays cleared: what showed it may not be there at the next reading.
    health = replace(health, reported=(), good_readings=health.good_readings + 1)
    rested = now.seconds - health.trouble_at >= rules.quiet_seconds
    return HEALTHY if rested and health.good_readings >= rules.good_readings else health


def unread(health: CardHealth, trouble: Trouble, now: Moment, rules: HealthRules) -> CardHealth:
    """The health after a reading that failed as a whole; a single one may be an accident."""
    failed = health.failed_readings + 1
    health = replace(health, failed_readings=failed, good_readings=0)
    if failed < rules.failed_readings:
        return health
    return _troubled(health, (trouble,), now)


def restored(
    sick: Sickness, reported: tuple[Trouble, ...], *, was_away: bool, now: Moment
) -> CardHealth:
    """The health of a card that an earlier process saw sick; its quiet time begins anew."""
    return CardHealth(
        sick=sick,
        reported=reported,
        reported_at=now.seconds,
        trouble_at=now.seconds,
        was_away=was_away,
    )


def _troubled(health: CardHealth, troubles: tuple[Trouble, ...], now: Moment) -> CardHealth:
    worst = max(troubles, key=lambda each: each.kind)
    sick = health.sick or Sickness(worst=worst, since=now.at)
    if worst.kind > sick.worst.kind:
        sick = replace(sick, worst=worst)
    return replace(
        health,
        sick=sick,
        trouble_at=now.seconds,
        good_readings=0,
        was_away=health.was_away or worst.kind in AWAY,
    )


def _is_cleared(health: CardHealth, finding: Finding, now: Moment, rules: HealthRules) -> bool:
    """Whether the errors that the driver reported hold no more."""
    if finding.needs_nothing or finding.was_reset or health.was_away:
        return True
    waited = now.seconds - health.reported_at
    return 0 < rules.xid_clear_seconds <= waited


def _memory(reason: str, text: str) -> Trouble:
    return Trouble(kind=Kind.MEMORY, reason=reason, text=text)


_RECOVERY = {
    1: ("gpu-reset-required", "the driver asks for a reset of the GPU"),
    2: ("node-reboot-required", "the driver asks for a reboot of the node"),
    3: ("drain-p2p-required", "the driver asks to drain peer-to-peer traffic"),
    4: ("drain-and-reset-required", "the driver asks to drain and reset the GPU"),
    5: ("recover-imex-domain-required", "the driver asks to recover the IMEX domain"),
    6: ("bus-reset-required", "the driver asks for a reset of the GPU's bus"),
    7: ("system-reboot-required", "the driver asks for a reboot of the system"),
}
