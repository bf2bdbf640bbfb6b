"""Health of a card: when it becomes unhealthy, why, and when it recovers.

A card is healthy or sick. Trouble makes it sick at once; it recovers only after a quiet time. So a
card that keeps failing stays sick, and its taint changes no more often than the quiet time allows.

What makes a healthy card sick:

- a reading (`read`) that finds trouble, such as a lost card or a requested recovery action;
- an error that the NVIDIA driver reports (`reported`), such as a critical XID;
- several readings in a row that fail as a whole (`unread`), because a single one may be an
  accident.

A sick card becomes healthy when all of these are true:

- If a health source made it sick, in this process or an earlier one: every source answers for it.
- Its reported errors are cleared. Clearing takes a sign: the driver requests no recovery, the card
  was reset, or it was away and is back. Time alone clears an error only if `xid_clear_seconds` is
  set.
- `good_readings` readings in a row found no trouble.
- The last trouble is at least `quiet_seconds` ago.

While the card is sick, the reason gets worse but never better: XID 79 and then a lost card is
"lost", until the card is healthy again.

Example, with the default rules: XID 79 is reported at 0 s, so the card is sick. Readings at 60, 120
and 180 s find no trouble, and the driver requests no recovery. The card is healthy at 180 s: the
third good reading, and more than 120 s after the XID.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum, StrEnum

from tensorfusion_dra.core.devices import xids
from tensorfusion_dra.core.devices.xids import XidRules


class TroubleKind(IntEnum):
    """Kinds of trouble with a card, the worst last; SOURCE is what another package reports.

    REPLACED is none of the card's own: nothing may use its driver (driver/driver_replacement.py).
    """

    SOURCE = 0
    XID = 1
    MEMORY = 2
    RECOVERY = 3
    UNREADABLE = 4
    LOST = 5
    VANISHED = 6
    REPLACED = 7


AWAY = frozenset({TroubleKind.LOST, TroubleKind.VANISHED})
"""Kinds of trouble with which no container can use the card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that is wrong with a card.

    Attributes:
        reason: A Kubernetes label value, for taints: ``xid-79``.
        text: Description for people; the same as long as the trouble is the same.
    """

    kind: TroubleKind
    reason: str
    text: str


class EventKind(StrEnum):
    """Kinds of events that the NVIDIA driver reports."""

    XID = "xid"
    UNCORRECTABLE_ECC = "uncorrectable-ecc"
    FATAL_POISON = "fatal-poison"
    RETIREMENT_FAILED = "retirement-failed"
    UNAVAILABLE = "unavailable"
    RECOVERY_ACTION = "recovery-action"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardEvent:
    """One event that the NVIDIA driver reported about one card.

    Attributes:
        gpu_uuid: None if the driver does not report which card; then a reading has to find it.
        code: The XID; 0 for other kinds.
    """

    gpu_uuid: str | None
    kind: EventKind
    code: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time, on two clocks.

    Attributes:
        seconds: Monotonic clock, for durations.
        at: Wall clock; timezone-aware.
    """

    seconds: float
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """Thresholds for changes of a card's health.

    Attributes:
        failed_readings: Failed readings in a row after which a card is unhealthy.
        good_readings: Readings in a row without trouble before a card is healthy again.
        quiet_seconds: Least time without trouble before a card is healthy again.
        xid_clear_seconds: Time after which a reported error counts as cleared although nothing
            shows that the card was reset; 0 for never.
        xids: XIDs that mark a card.
    """

    failed_readings: int = 2
    good_readings: int = 3
    quiet_seconds: float = 120.0
    xid_clear_seconds: float = 0.0
    xids: XidRules = field(default_factory=XidRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one reading about one card.

    Attributes:
        troubles: Present troubles.
        needs_nothing: True if the driver reports that the card needs no recovery. False for an
            older driver, which reports nothing about it.
        was_reset: True if there is a sign that the card was reset since the last reading.
        is_partial: True if a health source has not answered for the card.
    """

    troubles: tuple[Trouble, ...] = ()
    needs_nothing: bool = False
    was_reset: bool = False
    is_partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sickness:
    """Unhealthy state of a card: its reason and its start.

    Attributes:
        worst: The worst trouble since then, the first of its kind.
    """

    worst: Trouble
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHealth:
    """A card's health; a new card is healthy.

    Attributes:
        sick: None while the card is healthy.
        reported: Errors that the driver reported and that are not cleared yet.
        reported_at: Time of the last reported error, in Moment.seconds.
        trouble_at: Time of the last trouble of any kind, in Moment.seconds.
        good_readings: Readings without trouble in a row, up to the last one.
        failed_readings: Failed readings in a row, up to the last one.
        was_away: True if the card was lost or had vanished since it became sick.
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
    """Return the trouble that an event means for its card; None if it means none."""
    if event.kind is not EventKind.XID:
        return _TROUBLES.get(event.kind)
    if not rules.xids.marks_card(event.code):
        return None
    text = xids.description(event.code)
    return Trouble(kind=TroubleKind.XID, reason=f"xid-{event.code}", text=text)


def recovery_trouble(action: int | None) -> Trouble | None:
    """Return the trouble for a value of nvmlDeviceGpuRecoveryAction_t.

    None if the card needs nothing, or if an older NVIDIA driver does not report the action.
    """
    if not action:
        return None
    reason, text = _RECOVERY.get(
        action,
        (f"recovery-action-{action}", f"the NVIDIA driver requests recovery action {action}"),
    )
    return Trouble(kind=TroubleKind.RECOVERY, reason=reason, text=text)


def reported(health: CardHealth, trouble: Trouble, now: Moment) -> CardHealth:
    """Return the health after the driver reported an error: sick until the error is cleared."""
    known = {each.reason: each for each in (*health.reported, trouble)}
    health = replace(health, reported=tuple(known.values()), reported_at=now.seconds)
    return _troubled(health, (trouble,), now)


def read(health: CardHealth, finding: Finding, now: Moment, rules: HealthRules) -> CardHealth:
    """Return the health after a reading that has a finding about the card."""
    health = replace(health, failed_readings=0)
    if finding.troubles:
        return _troubled(health, finding.troubles, now)
    if health.sick is None:
        return health
    if finding.is_partial and health.sick.worst.kind is TroubleKind.SOURCE:
        return replace(health, good_readings=0)
    is_old = 0 < rules.xid_clear_seconds <= now.seconds - health.reported_at
    is_cleared = finding.needs_nothing or finding.was_reset or health.was_away or is_old
    if health.reported and not is_cleared:
        return replace(health, good_readings=0)
    # Cleared stays cleared: the next reading may not show the sign of it any more.
    health = replace(health, reported=(), good_readings=health.good_readings + 1)
    rested = now.seconds - health.trouble_at >= rules.quiet_seconds
    return HEALTHY if rested and health.good_readings >= rules.good_readings else health


def unread(health: CardHealth, trouble: Trouble, now: Moment, rules: HealthRules) -> CardHealth:
    """Return the health after a reading that failed as a whole; a single one may be an accident."""
    failed = health.failed_readings + 1
    health = replace(health, failed_readings=failed, good_readings=0)
    if failed < rules.failed_readings:
        return health
    return _troubled(health, (trouble,), now)


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


_TROUBLES = {
    event: Trouble(kind=kind, reason=event.value, text=text)
    for event, kind, text in (
        (EventKind.UNCORRECTABLE_ECC, TroubleKind.MEMORY, "uncorrectable ECC error"),
        (EventKind.FATAL_POISON, TroubleKind.MEMORY, "uncontained memory error (poison)"),
        (EventKind.RETIREMENT_FAILED, TroubleKind.MEMORY, "bad memory could not be retired"),
        (
            EventKind.UNAVAILABLE,
            TroubleKind.XID,
            "the NVIDIA driver reports the GPU as unavailable",
        ),
    )
}
_RECOVERY = {
    1: ("gpu-reset-required", "the NVIDIA driver requests a reset of the GPU"),
    2: ("node-reboot-required", "the NVIDIA driver requests a reboot of the node"),
    3: ("drain-p2p-required", "the NVIDIA driver requests draining of peer-to-peer traffic"),
    4: ("drain-and-reset-required", "the NVIDIA driver requests draining and a reset of the GPU"),
    5: ("recover-imex-domain-required", "the NVIDIA driver requests recovery of the IMEX domain"),
    6: ("bus-reset-required", "the NVIDIA driver requests a reset of the GPU's bus"),
    7: ("system-reboot-required", "the NVIDIA driver requests a reboot of the system"),
}
