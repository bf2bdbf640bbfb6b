"""Cards that this node has or had, their health, and which of them are published.

A card is healthy or unhealthy. A problem makes it unhealthy at once; it recovers only after a quiet
time. So a card that keeps failing stays unhealthy, and its taint changes no more often than the
quiet time allows.

What makes a healthy card unhealthy:

- a reading that finds a problem, such as a lost card or a requested recovery action;
- an error that the NVIDIA driver reports, such as a critical XID;
- several readings in a row that fail as a whole, because a single one may be an accident.

An unhealthy card becomes healthy when all of these are true:

- If a health source made it unhealthy, in this process or an earlier one: every source answers for
  it.
- Its reported errors are cleared. That takes evidence: the driver requests no recovery, the card
  was reset, or it was away and is back. Time alone clears an error only if `xid_clear_seconds` is
  set.
- `good_readings` readings in a row found no problem.
- The last problem is at least `quiet_seconds` ago.

While the card is unhealthy, the reason gets worse but never better: XID 79 and then a lost card is
"lost", until the card is healthy again.

Example, with the default rules: XID 79 is reported at 0 s, so the card is unhealthy. Readings at
60, 120 and 180 s find no problem, and the driver requests no recovery. The card is healthy at
180 s: the third good reading, and more than 120 s after the XID.

Partitions of a card in MIG mode follow the same rules: a problem of the card is one of each of its
partitions. But an administrator may change partitions, which is no fault. So a partition that is
gone from a working card, or a card that is divided into partitions now, is forgotten unless it has
claims.

The node remembers every card that it has read, by UUID (KnownCards). A card that the last reading
did not find, or found lost, is absent, and therefore unhealthy. Whether a card is published depends
on its health and on the claims that use it:

- A present card is published, healthy or not, unless the next rules leave it out.
- An absent card is published as it was last read while it has claims, so that users can see why
  these claims do not work. Without claims it is left out.
- A card that was absent and is back is left out until it is healthy, unless it has claims. So a
  card that appears for a moment now and then does not change the slices each time.

Example: card B falls off the bus while a claim uses it. B stays in the slice as it was, unhealthy
with the reason "lost". When the claim ends, B leaves the slice. When B works again, it returns to
the slice after its quiet time.

as_json() and from_json() are the record of the known cards on disk, so that a restart neither heals
nor forgets a card.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, Final

from tensorfusion_dra.core.devices import xids
from tensorfusion_dra.core.devices.gpu import (
    Gpu,
    Inventory,
    LeftOut,
    LostCard,
    TflopsSource,
    device_name,
)
from tensorfusion_dra.core.devices.xids import XidRules

_VERSION: Final = 1
"""Of the record on disk."""


class ProblemKind(IntEnum):
    """Kinds of problems of a card, the worst last.

    SOURCE is a report of another package. REPLACED is no fault of the card: the NVIDIA driver is
    being replaced, so nothing may use it (driver/driver_replacement.py).
    """

    SOURCE = 0
    XID = 1
    MEMORY = 2
    RECOVERY = 3
    UNREADABLE = 4
    LOST = 5
    VANISHED = 6
    REPLACED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong with a card, as a health source of another package reports it.

    Attributes:
        reason: Value of the device's taint, a Kubernetes label value: ``fan-stopped``.
        text: Description for people, at most 256 characters; the same as long as the problem is
            the same.
    """

    reason: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthProblem:
    """Something that is wrong with a card.

    Attributes:
        reason: A Kubernetes label value, for taints: ``xid-79``.
        text: Description for people; the same as long as the problem is the same.
    """

    kind: ProblemKind
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
    PARTITIONS_CHANGED = "partitions-changed"


_AWAY: Final = frozenset({ProblemKind.LOST, ProblemKind.VANISHED})
"""Problems with which no container can use the card."""
_OF_EVENT: Final = {
    EventKind.UNCORRECTABLE_ECC: (ProblemKind.MEMORY, "uncorrectable ECC error"),
    EventKind.FATAL_POISON: (ProblemKind.MEMORY, "uncontained memory error (poison)"),
    EventKind.RETIREMENT_FAILED: (ProblemKind.MEMORY, "bad memory could not be retired"),
    EventKind.UNAVAILABLE: (
        ProblemKind.XID,
        "the NVIDIA driver reports the GPU as unavailable",
    ),
}
_RECOVERY: Final = {
    1: ("gpu-reset-required", "the NVIDIA driver requests a reset of the GPU"),
    2: ("node-reboot-required", "the NVIDIA driver requests a reboot of the node"),
    3: ("drain-p2p-required", "the NVIDIA driver requests draining of peer-to-peer traffic"),
    4: ("drain-and-reset-required", "the NVIDIA driver requests draining and a reset of the GPU"),
    5: ("recover-imex-domain-required", "the NVIDIA driver requests recovery of the IMEX domain"),
    6: ("bus-reset-required", "the NVIDIA driver requests a reset of the GPU's bus"),
    7: ("system-reboot-required", "the NVIDIA driver requests a reboot of the system"),
}
"""Reason and text by nvmlDeviceGpuRecoveryAction_t; 0 is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardEvent:
    """One event that the NVIDIA driver reported about one card.

    Attributes:
        gpu_uuid: None if the driver does not report which card; then a reading has to find it.
        code: The XID; 0 for other kinds.
        gpu_instance: The GPU instance that alone is concerned; None for the whole card.
    """

    gpu_uuid: str | None
    kind: EventKind
    code: int = 0
    gpu_instance: int | None = None

    def concerns(self, gpu: Gpu) -> bool:
        """Return True if it is about this card, or about this partition of a card."""
        of_all = None in (self.gpu_instance, gpu.gpu_instance)
        return gpu.card_uuid == self.gpu_uuid and (of_all or self.gpu_instance == gpu.gpu_instance)


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
        good_readings: Readings in a row without a problem before a card is healthy again.
        quiet_seconds: Least time without a problem before a card is healthy again.
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
class CardReading:
    """Result of one reading about one card.

    Attributes:
        problems: Present problems.
        needs_nothing: True if the driver reports that the card needs no recovery. False for an
            older driver, which reports nothing about it.
        was_reset: True if there is evidence that the card was reset since the last reading.
        is_partial: True if a health source has not answered for the card.
    """

    problems: tuple[HealthProblem, ...] = ()
    needs_nothing: bool = False
    was_reset: bool = False
    is_partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unhealthy:
    """State of an unhealthy card: its reason and its start.

    Attributes:
        worst: The worst problem since then, the first of its kind.
    """

    worst: HealthProblem
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHealth:
    """A card's health; a new card is healthy.

    Attributes:
        unhealthy: None while the card is healthy.
        reported: Errors that the driver reported and that are not cleared yet.
        reported_at: Time of the last reported error, in Moment.seconds.
        problem_at: Time of the last problem of any kind, in Moment.seconds.
        good_readings: Readings without a problem in a row, up to the last one.
        failed_readings: Failed readings in a row, up to the last one.
        was_away: True if the card was lost or had vanished since it became unhealthy.
    """

    unhealthy: Unhealthy | None = None
    reported: tuple[HealthProblem, ...] = ()
    reported_at: float = 0.0
    problem_at: float = 0.0
    good_readings: int = 0
    failed_readings: int = 0
    was_away: bool = False


HEALTHY: Final = CardHealth()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCards:
    """The node's cards as remembered.

    Attributes:
        cards: By UUID, as they were last read.
        health: By UUID; a card that is missing here is healthy.
        absent: UUIDs of cards that the last reading did not find or found lost.
    """

    cards: Mapping[str, Gpu] = field(default_factory=dict)
    health: Mapping[str, CardHealth] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()

    def unhealthy(self) -> Mapping[str, Unhealthy]:
        """Return the unhealthy cards by UUID."""
        return {
            uuid: state.unhealthy
            for uuid, state in self.health.items()
            if state.unhealthy is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CardsToPublish:
    """The node's cards as they are published.

    Attributes:
        inventory: Includes absent cards with claims, as they were last read.
        unhealthy: By device name; includes cards that are no longer in the inventory.
        absent: Names of devices whose card is absent.
    """

    inventory: Inventory
    unhealthy: Mapping[str, Unhealthy]
    absent: frozenset[str]


def problem_of(event: CardEvent, rules: HealthRules) -> HealthProblem | None:
    """Return the problem that an event means for its card; None if it means none."""
    if event.kind is EventKind.XID and rules.xids.marks_card(event.code):
        text = xids.description(event.code)
        return HealthProblem(kind=ProblemKind.XID, reason=f"xid-{event.code}", text=text)
    if event.kind not in _OF_EVENT:
        return None
    kind, text = _OF_EVENT[event.kind]
    return HealthProblem(kind=kind, reason=event.kind.value, text=text)


def with_report(health: CardHealth, problem: HealthProblem, now: Moment) -> CardHealth:
    """Return the health after the driver reported an error: unhealthy until it is cleared."""
    known = {each.reason: each for each in (*health.reported, problem)}
    health = replace(health, reported=tuple(known.values()), reported_at=now.seconds)
    return _with_problems(health, (problem,), now)


def with_reading(
    health: CardHealth, reading: CardReading, now: Moment, rules: HealthRules
) -> CardHealth:
    """Return the health after a reading of the card."""
    health = replace(health, failed_readings=0)
    if reading.problems:
        return _with_problems(health, reading.problems, now)
    if health.unhealthy is None:
        return health
    is_old = 0 < rules.xid_clear_seconds <= now.seconds - health.reported_at
    is_cleared = reading.needs_nothing or reading.was_reset or health.was_away or is_old
    is_unknown = reading.is_partial and health.unhealthy.worst.kind is ProblemKind.SOURCE
    if is_unknown or (health.reported and not is_cleared):
        return replace(health, good_readings=0)
    # Cleared stays cleared: the next reading may no longer show why.
    health = replace(health, reported=(), good_readings=health.good_readings + 1)
    rested = now.seconds - health.problem_at >= rules.quiet_seconds
    return HEALTHY if rested and health.good_readings >= rules.good_readings else health


def with_failed_reading(
    health: CardHealth, problem: HealthProblem, now: Moment, rules: HealthRules
) -> CardHealth:
    """Return the health after a reading that failed as a whole; a single one may be an accident."""
    failed = health.failed_readings + 1
    health = replace(health, failed_readings=failed, good_readings=0)
    if failed < rules.failed_readings:
        return health
    return _with_problems(health, (problem,), now)


def _with_problems(
    health: CardHealth, problems: tuple[HealthProblem, ...], now: Moment
) -> CardHealth:
    worst = max(problems, key=lambda each: each.kind)
    unhealthy = health.unhealthy or Unhealthy(worst=worst, since=now.at)
    if worst.kind > unhealthy.worst.kind:
        unhealthy = replace(unhealthy, worst=worst)
    return replace(
        health,
        unhealthy=unhealthy,
        problem_at=now.seconds,
        good_readings=0,
        was_away=health.was_away or worst.kind in _AWAY,
    )


def after_reading(
    known: KnownCards,
    inventory: Inventory,
    now: Moment,
    rules: HealthRules,
    *,
    reported: Mapping[str, Sequence[HealthProblem]],
    claimed: Collection[str] = (),
) -> KnownCards:
    """Return the known cards after a successful reading.

    Args:
        reported: Problems by GPU UUID, as health sources of other packages report them; a card is
            missing if one has not answered for it.
        claimed: Names of devices with claims, whose partitions are not forgotten when they go.
    """
    found = {gpu.uuid: gpu for gpu in inventory.gpus}
    divided = {gpu.parent_uuid for gpu in inventory.gpus}
    readings = {}
    for uuid, gpu in found.items():
        action, before = inventory.recovery.get(uuid), known.cards.get(uuid)
        problems = list(reported.get(uuid, ()))
        if action:
            text = f"the NVIDIA driver requests recovery action {action}"
            reason, text = _RECOVERY.get(action, (f"recovery-action-{action}", text))
            problem = HealthProblem(kind=ProblemKind.RECOVERY, reason=reason, text=text)
            problems.insert(0, problem)
        readings[uuid] = CardReading(
            problems=tuple(problems),
            needs_nothing=action == 0,
            # Loading another version of the driver resets the cards.
            was_reset=before is not None and before.driver_version != gpu.driver_version,
            is_partial=uuid not in reported,
        )
    absent = {uuid: gpu for uuid, gpu in known.cards.items() if uuid not in found}
    lost = _matched(absent, inventory.lost)
    forgotten = {
        uuid
        for uuid, gpu in absent.items()
        if (gpu.partition or uuid in divided)
        and uuid not in lost
        and device_name(uuid) not in claimed
    }
    absent = {uuid: gpu for uuid, gpu in absent.items() if uuid not in forgotten}
    unusable = {each.subject: each.reason for each in inventory.left_out}
    for uuid, gpu in absent.items():
        readings[uuid] = CardReading(
            problems=(_absence(gpu, uuid in divided, lost.get(uuid), unusable.get(uuid)),)
        )
    health = {
        uuid: with_reading(known.health.get(uuid, HEALTHY), reading, now, rules)
        for uuid, reading in readings.items()
    }
    return KnownCards(
        cards={**{u: gpu for u, gpu in known.cards.items() if u not in forgotten}, **found},
        health={uuid: state for uuid, state in health.items() if state != HEALTHY},
        absent=frozenset(absent),
    )


def _absence(
    gpu: Gpu, is_divided: bool, lost: LostCard | None, unusable: str | None
) -> HealthProblem:
    """Return the problem of a known card that a reading did not find, or not as a usable one."""
    kind, reason, text = ProblemKind.VANISHED, "vanished", "the GPU is gone from the node"
    if gpu.partition:
        text = f"the partition {gpu.partition} is gone from GPU {gpu.parent_uuid}"
    if is_divided:
        reason, text = "partitioned", "the GPU is in MIG mode by now, divided into partitions"
    if lost is not None:
        kind, reason, text = ProblemKind.LOST, "lost", f"the GPU is lost: {lost.text}"
    elif unusable is not None:
        reason, text = "unusable", f"the GPU cannot be used: {unusable}"
    return HealthProblem(kind=kind, reason=reason, text=text)


def after_failure(
    known: KnownCards, problem: HealthProblem, now: Moment, rules: HealthRules
) -> KnownCards:
    """Return the known cards after a reading that failed as a whole."""
    return replace(
        known,
        health={
            uuid: with_failed_reading(known.health.get(uuid, HEALTHY), problem, now, rules)
            for uuid in known.cards
        },
    )


def after_report(known: KnownCards, uuid: str, problem: HealthProblem, now: Moment) -> KnownCards:
    """Return the known cards after the driver reported an error of one card."""
    state = with_report(known.health.get(uuid, HEALTHY), problem, now)
    return replace(known, health={**known.health, uuid: state})


def published(
    known: KnownCards,
    inventory: Inventory,
    claimed: Collection[str],
    replaced: Unhealthy | None = None,
) -> CardsToPublish:
    """Return the cards to publish, by the rules above.

    Args:
        inventory: The last reading.
        claimed: Names of devices with claims.
        replaced: State of all cards while the NVIDIA driver is being replaced, which hides their
            own; else None.
    """
    unhealthy = dict.fromkeys(known.cards, replaced) if replaced else known.unhealthy()
    hidden = {
        uuid
        for uuid, state in known.health.items()
        if state.was_away and device_name(uuid) not in claimed
    }
    waiting = tuple(
        LeftOut(subject=gpu.card_uuid, reason="was away and has to stay healthy for a while")
        for gpu in inventory.gpus
        if gpu.uuid in hidden
    )
    gpus = [gpu for gpu in inventory.gpus if gpu.uuid not in hidden]
    kept = [known.cards[uuid] for uuid in sorted(known.absent - hidden)]
    counted = {gpu.uuid for gpu in kept}
    if kept:
        # At their former position: NVML lists cards in the order of the PCI bus.
        gpus = sorted([*gpus, *kept], key=lambda gpu: gpu.pci_bus_id or "~")
        lost = _matched({uuid: known.cards[uuid] for uuid in known.absent}, inventory.lost)
        counted |= {lost[gpu.uuid].subject for gpu in kept if gpu.uuid in lost}
    left_out = tuple(each for each in inventory.left_out if each.subject not in counted)
    return CardsToPublish(
        inventory=replace(inventory, gpus=tuple(gpus), left_out=(*left_out, *waiting)),
        unhealthy={device_name(uuid): state for uuid, state in unhealthy.items()},
        absent=frozenset(map(device_name, known.absent)),
    )


def _matched(missing: Mapping[str, Gpu], lost: Sequence[LostCard]) -> Mapping[str, LostCard]:
    """Return the lost cards by UUID of the missing card.

    A lost card is matched by its UUID, else by its PCI bus ID, else with any missing card left.
    With a card, all of its partitions are lost.
    """
    places = {gpu.pci_bus_id: gpu.card_uuid for gpu in missing.values() if gpu.pci_bus_id}
    by_uuid = [(card.uuid or places.get(card.pci_bus_id or ""), card) for card in lost]
    cards = {uuid: card for uuid, card in by_uuid if uuid is not None}
    found = {u: cards[gpu.card_uuid] for u, gpu in missing.items() if gpu.card_uuid in cards}
    rest = (uuid for uuid in missing if uuid not in found)
    nameless = (card for uuid, card in by_uuid if uuid is None)
    return {**found, **dict(zip(rest, nameless, strict=False))}


def as_json(known: KnownCards, *, boot_id: str) -> dict[str, Any]:
    """Return the record of the known cards, without counts of readings.

    Args:
        boot_id: ID of this boot of the machine.
    """
    return {
        "version": _VERSION,
        "bootID": boot_id,
        "cards": [asdict(gpu) for gpu in known.cards.values()],
        "absent": sorted(known.absent),
        "sick": {
            uuid: {
                "since": state.unhealthy.since.isoformat(),
                "worst": _problem_json(state.unhealthy.worst),
                "reported": [_problem_json(problem) for problem in state.reported],
                "wasAway": state.was_away,
            }
            for uuid, state in sorted(known.health.items())
            if state.unhealthy is not None
        },
    }


def from_json(
    kept: Mapping[str, Any], *, boot_id: str, claimed: Collection[str], now: Moment
) -> KnownCards:
    """Return the known cards of a record, as far as the record still applies.

    A reboot resets the cards, so their problems before it no longer count. Cards that were absent,
    and after a reboot all cards, are remembered only while they have claims. The quiet time of an
    unhealthy card begins again.

    Args:
        claimed: Names of devices with claims.

    Raises:
        ValueError: The value is not a record that as_json() wrote.
    """
    try:
        if kept["version"] != _VERSION:
            raise ValueError(f"version: found {kept['version']!r}, expected {_VERSION}")
        same_boot = kept["bootID"] == boot_id
        absent = set(kept["absent"])
        cards = {}
        for card in kept["cards"]:
            pairs = {
                name: tuple(card.get(name, ()))
                for name in ("compute_capability", "cuda_driver_version", "capability_minors")
            }
            source = TflopsSource(card["tflops_source"])
            cards[card["uuid"]] = Gpu(**{**card, **pairs, "tflops_source": source})
        health = {
            uuid: CardHealth(
                unhealthy=Unhealthy(
                    worst=_problem(state["worst"]), since=datetime.fromisoformat(state["since"])
                ),
                reported=tuple(map(_problem, state["reported"])),
                reported_at=now.seconds,
                problem_at=now.seconds,
                was_away=state["wasAway"],
            )
            for uuid, state in kept["sick"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"found {error!r}, expected a record of known cards") from error
    cards = {
        uuid: gpu
        for uuid, gpu in cards.items()
        if (same_boot and uuid not in absent) or device_name(uuid) in claimed
    }
    return KnownCards(
        cards=cards,
        health={uuid: state for uuid, state in health.items() if same_boot and uuid in cards},
    )


def _problem_json(problem: HealthProblem) -> dict[str, str]:
    return {"kind": problem.kind.name, "reason": problem.reason, "text": problem.text}


def _problem(kept: Mapping[str, Any]) -> HealthProblem:
    return HealthProblem(kind=ProblemKind[kept["kind"]], reason=kept["reason"], text=kept["text"])
