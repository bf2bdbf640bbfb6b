"""The cards that this node has or had, with their health, and which of them others are to see."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices import health
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory, LeftOut, LostCard
from tensorfusion_dra.core.devices.health import (
    HEALTHY,
    CardHealth,
    Finding,
    HealthRules,
    Kind,
    Moment,
    Sickness,
    Trouble,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCards:
    """What is remembered of the node's cards.

    Attributes:
        cards: By UUID, as they were last read.
        health: By UUID; a card that is missing here is healthy.
        absent: UUIDs of the cards that the last reading did not find, or found lost.
    """

    cards: Mapping[str, Gpu] = field(default_factory=dict)
    health: Mapping[str, CardHealth] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()

    def sick(self) -> Mapping[str, Sickness]:
        """The unhealthy cards by UUID."""
        return {
            uuid: health.sick for uuid, health in self.health.items() if health.sick is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleCards:
    """What others are to see of the node's cards.

    Attributes:
        inventory: With the absent cards that claims hold, as those cards last were.
        sick: By device name, also of cards that are not in the inventory any more.
        absent: Names of devices without a card that works.
    """

    inventory: Inventory
    sick: Mapping[str, Sickness]
    absent: frozenset[str]


def after_reading(
    known: KnownCards, inventory: Inventory, now: Moment, rules: HealthRules
) -> KnownCards:
    """What is known after the driver told of its cards."""
    found = {gpu.uuid: gpu for gpu in inventory.gpus}
    findings = {
        uuid: _finding(gpu, known.cards.get(uuid), inventory) for uuid, gpu in found.items()
    }
    missing = {uuid: gpu for uuid, gpu in known.cards.items() if uuid not in found}
    for uuid, trouble in _absences(missing, inventory).items():
        findings[uuid] = Finding(troubles=(trouble,))
    judged = {
        uuid: health.read(known.health.get(uuid, HEALTHY), finding, now, rules)
        for uuid, finding in findings.items()
    }
    return KnownCards(
        cards={**known.cards, **found},
        health=_unlike_healthy(judged),
        absent=frozenset(missing),
    )


def after_failure(
    known: KnownCards, trouble: Trouble, now: Moment, rules: HealthRules
) -> KnownCards:
    """What is known after the driver told nothing at all."""
    judged = {
        uuid: health.unread(known.health.get(uuid, HEALTHY), trouble, now, rules)
        for uuid in known.cards
    }
    return replace(known, health=_unlike_healthy(judged))


def after_report(known: KnownCards, uuid: str, trouble: Trouble, now: Moment) -> KnownCards:
    """What is known after the driver reported an error of one card."""
    judged = health.reported(known.health.get(uuid, HEALTHY), trouble, now)
    return replace(known, health={**known.health, uuid: judged})


def visible(known: KnownCards, inventory: Inventory, held: Collection[str]) -> VisibleCards:
    """What others are to see, so that the claims on an absent card stay explainable.

    An absent card without claims is not shown. Once it was away, it is shown again when it is
    healthy, and not each time it comes back for a moment.

    Args:
        inventory: As last read.
        held: Names of devices on which there are claims.
    """
    sick = known.sick()
    hidden = {
        uuid
        for uuid, state in known.health.items()
        if state.was_away and devices.device_name(uuid) not in held
    }
    gpus = [gpu for gpu in inventory.gpus if gpu.uuid not in hidden]
    waiting = tuple(
        LeftOut(subject=gpu.uuid, reason="was away and has to stay healthy for a while")
        for gpu in inventory.gpus
        if gpu.uuid in hidden
    )
    kept = [known.cards[uuid] for uuid in sorted(known.absent - hidden)]
    if kept:
        # Where they were: NVML lists cards by their place on the bus.
        gpus = sorted([*gpus, *kept], key=lambda gpu: gpu.pci_bus_id or "~")
    counted = {gpu.uuid for gpu in kept} | _subjects(kept, known, inventory)
    left_out = tuple(each for each in inventory.left_out if each.subject not in counted)
    return VisibleCards(
        inventory=replace(inventory, gpus=tuple(gpus), left_out=(*left_out, *waiting)),
        sick={devices.device_name(uuid): sickness for uuid, sickness in sick.items()},
        absent=frozenset(map(devices.device_name, known.absent)),
    )


def _finding(gpu: Gpu, before: Gpu | None, inventory: Inventory) -> Finding:
    action = inventory.recovery.get(gpu.uuid)
    trouble = None if action is None else health.recovery_trouble(action)
    return Finding(
        troubles=(trouble,) if trouble else (),
        needs_nothing=action == 0,
        # Another version of the driver was loaded, which resets the cards.
        was_reset=before is not None and before.driver_version != gpu.driver_version,
    )


def _absences(missing: Mapping[str, Gpu], inventory: Inventory) -> Mapping[str, Trouble]:
    lost = _matched(missing, inventory.lost)
    unusable = {each.subject: each.reason for each in inventory.left_out}
    absences = {}
    for uuid in missing:
        if uuid in lost:
            text = f"the GPU is lost: {lost[uuid].text}"
            absences[uuid] = Trouble(kind=Kind.LOST, reason="lost", text=text)
        elif uuid in unusable:
            text = f"the GPU cannot be used: {unusable[uuid]}"
            absences[uuid] = Trouble(kind=Kind.VANISHED, reason="unusable", text=text)
        else:
            text = "the GPU is gone from the node"
            absences[uuid] = Trouble(kind=Kind.VANISHED, reason="vanished", text=text)
    return absences


def _matched(missing: Mapping[str, Gpu], lost: Sequence[LostCard]) -> Mapping[str, LostCard]:
    """The lost cards by the UUID that each had: by itself, by its place, else any that is left."""
    found: dict[str, LostCard] = {}
    nameless: list[LostCard] = []
    places = {gpu.pci_bus_id: uuid for uuid, gpu in missing.items() if gpu.pci_bus_id}
    for card in lost:
        uuid = card.uuid or places.get(card.pci_bus_id or "")
        if uuid is None:
            nameless.append(card)
        elif uuid in missing:
            found[uuid] = card
    rest = (uuid for uuid in missing if uuid not in found)
    found.update(zip(rest, nameless, strict=False))
    return found


def _subjects(kept: Sequence[Gpu], known: KnownCards, inventory: Inventory) -> set[str]:
    missing = {uuid: known.cards[uuid] for uuid in known.absent}
    matched = _matched(missing, inventory.lost)
    return {matched[gpu.uuid].subject for gpu in kept if gpu.uuid in matched}


def _unlike_healthy(judged: Mapping[str, CardHealth]) -> Mapping[str, CardHealth]:
    return {uuid: state for uuid, state in judged.items() if state != HEALTHY}
