"""Cards that this node has or had, with their health, and which of them are published.

The node remembers every card that it has read, by UUID. A card that the last reading did not find,
or found lost, is absent, and therefore sick. Whether a card is published depends on its health and
on the claims that use it:

- A present card is published, healthy or sick, unless the next rules leave it out.
- An absent card is published as it was last read while it has claims, so that users can see why
  these claims are in trouble. Without claims it is left out.
- A card that was absent and is back is left out until it is healthy, unless it has claims. So a
  card that appears for a moment now and then does not change the slices each time.

as_json() and from_json() are the record of the known cards on disk, so that a restart neither heals
nor forgets a card.

Example: card B falls off the bus while a claim uses it. B stays in the slice as it was, sick with
the reason "lost". When the claim ends, B leaves the slice. When B works again, it returns to the
slice after its quiet time (see health.py).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices import health
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory, LeftOut, LostCard, TflopsSource
from tensorfusion_dra.core.devices.health import (
    HEALTHY,
    CardHealth,
    Finding,
    HealthRules,
    Moment,
    Sickness,
    Trouble,
    TroubleKind,
)

_VERSION: Final = 1
"""Of the record on disk."""

Json = dict[str, Any]


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

    def sick(self) -> Mapping[str, Sickness]:
        """Return the unhealthy cards by UUID."""
        return {
            uuid: health.sick for uuid, health in self.health.items() if health.sick is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCards:
    """The node's cards as they are published.

    Attributes:
        inventory: Includes absent cards with claims, as they were last read.
        sick: By device name; includes cards that are no longer in the inventory.
        absent: Names of devices whose card is absent.
    """

    inventory: Inventory
    sick: Mapping[str, Sickness]
    absent: frozenset[str]


def after_reading(
    known: KnownCards,
    inventory: Inventory,
    now: Moment,
    rules: HealthRules,
    *,
    reported: Mapping[str, Sequence[Trouble]],
) -> KnownCards:
    """Return the known cards after a successful reading.

    Args:
        reported: Troubles by GPU UUID, as health sources of other packages report them; a card is
            missing if one has not answered for it.
    """
    found = {gpu.uuid: gpu for gpu in inventory.gpus}
    findings = {
        uuid: _finding(gpu, known.cards.get(uuid), inventory, reported.get(uuid))
        for uuid, gpu in found.items()
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
        health=_without_healthy(judged),
        absent=frozenset(missing),
    )


def after_failure(
    known: KnownCards, trouble: Trouble, now: Moment, rules: HealthRules
) -> KnownCards:
    """Return the known cards after a reading that failed as a whole."""
    judged = {
        uuid: health.unread(known.health.get(uuid, HEALTHY), trouble, now, rules)
        for uuid in known.cards
    }
    return replace(known, health=_without_healthy(judged))


def after_report(known: KnownCards, uuid: str, trouble: Trouble, now: Moment) -> KnownCards:
    """Return the known cards after the driver reported an error of one card."""
    judged = health.reported(known.health.get(uuid, HEALTHY), trouble, now)
    return replace(known, health={**known.health, uuid: judged})


def published(
    known: KnownCards,
    inventory: Inventory,
    claimed: Collection[str],
    replaced: Sickness | None = None,
) -> PublishedCards:
    """Return the cards to publish, by the rules above.

    Args:
        inventory: The last reading.
        claimed: Names of devices with claims.
        replaced: Sickness of all cards while the NVIDIA driver is being replaced, which hides their
            own; else None.
    """
    sick = dict.fromkeys(known.cards, replaced) if replaced else known.sick()
    hidden = {
        uuid
        for uuid, state in known.health.items()
        if state.was_away and devices.device_name(uuid) not in claimed
    }
    gpus = [gpu for gpu in inventory.gpus if gpu.uuid not in hidden]
    waiting = tuple(
        LeftOut(subject=gpu.uuid, reason="was away and has to stay healthy for a while")
        for gpu in inventory.gpus
        if gpu.uuid in hidden
    )
    kept = [known.cards[uuid] for uuid in sorted(known.absent - hidden)]
    if kept:
        # At their former position: NVML lists cards in the order of the PCI bus.
        gpus = sorted([*gpus, *kept], key=lambda gpu: gpu.pci_bus_id or "~")
    lost = _matched({uuid: known.cards[uuid] for uuid in known.absent}, inventory.lost)
    subjects = {lost[gpu.uuid].subject for gpu in kept if gpu.uuid in lost}
    counted = {gpu.uuid for gpu in kept} | subjects
    left_out = tuple(each for each in inventory.left_out if each.subject not in counted)
    return PublishedCards(
        inventory=replace(inventory, gpus=tuple(gpus), left_out=(*left_out, *waiting)),
        sick={devices.device_name(uuid): sickness for uuid, sickness in sick.items()},
        absent=frozenset(map(devices.device_name, known.absent)),
    )


def as_json(known: KnownCards, *, boot_id: str) -> Json:
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
                "since": state.sick.since.isoformat(),
                "worst": _trouble_json(state.sick.worst),
                "reported": [_trouble_json(trouble) for trouble in state.reported],
                "wasAway": state.was_away,
            }
            for uuid, state in sorted(known.health.items())
            if state.sick is not None
        },
    }


def from_json(
    kept: Mapping[str, Any], *, boot_id: str, claimed: Collection[str], now: Moment
) -> KnownCards:
    """Return the known cards of a record, as far as the record still applies.

    A reboot resets the cards, so their sickness before it no longer counts. Cards that were absent,
    and after a reboot all cards, are remembered only while they have claims.

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
        cards = {gpu.uuid: gpu for gpu in map(_gpu, kept["cards"])}
        sick = {uuid: _card_health(state, now) for uuid, state in kept["sick"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"found {error!r}, expected a record of known cards") from error
    cards = {
        uuid: gpu
        for uuid, gpu in cards.items()
        if (same_boot and uuid not in absent) or devices.device_name(uuid) in claimed
    }
    return KnownCards(
        cards=cards,
        health={uuid: state for uuid, state in sick.items() if same_boot and uuid in cards},
    )


def _finding(
    gpu: Gpu, before: Gpu | None, inventory: Inventory, reported: Sequence[Trouble] | None
) -> Finding:
    action = inventory.recovery.get(gpu.uuid)
    requested = health.recovery_trouble(action)
    return Finding(
        troubles=(*((requested,) if requested else ()), *(reported or ())),
        needs_nothing=action == 0,
        # Loading another version of the driver resets the cards.
        was_reset=before is not None and before.driver_version != gpu.driver_version,
        is_partial=reported is None,
    )


def _absences(missing: Mapping[str, Gpu], inventory: Inventory) -> Mapping[str, Trouble]:
    lost = _matched(missing, inventory.lost)
    unusable = {each.subject: each.reason for each in inventory.left_out}
    absences = {}
    for uuid in missing:
        kind, reason, text = TroubleKind.VANISHED, "vanished", "the GPU is gone from the node"
        if uuid in lost:
            kind, reason, text = TroubleKind.LOST, "lost", f"the GPU is lost: {lost[uuid].text}"
        elif uuid in unusable:
            reason, text = "unusable", f"the GPU cannot be used: {unusable[uuid]}"
        absences[uuid] = Trouble(kind=kind, reason=reason, text=text)
    return absences


def _matched(missing: Mapping[str, Gpu], lost: Sequence[LostCard]) -> Mapping[str, LostCard]:
    """Return the lost cards by UUID of the missing card.

    A lost card is matched by its UUID, else by its PCI bus ID, else with any missing card left.
    """
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


def _without_healthy(judged: Mapping[str, CardHealth]) -> Mapping[str, CardHealth]:
    return {uuid: state for uuid, state in judged.items() if state != HEALTHY}


def _card_health(kept: Mapping[str, Any], now: Moment) -> CardHealth:
    """Return the health of a card that was sick in an earlier process; its quiet time restarts."""
    since = datetime.fromisoformat(kept["since"])
    return CardHealth(
        sick=Sickness(worst=_trouble(kept["worst"]), since=since),
        reported=tuple(map(_trouble, kept["reported"])),
        reported_at=now.seconds,
        trouble_at=now.seconds,
        was_away=kept["wasAway"],
    )


def _trouble_json(trouble: Trouble) -> Json:
    return {"kind": trouble.kind.name, "reason": trouble.reason, "text": trouble.text}


def _trouble(kept: Mapping[str, Any]) -> Trouble:
    return Trouble(kind=TroubleKind[kept["kind"]], reason=kept["reason"], text=kept["text"])


def _gpu(kept: Mapping[str, Any]) -> Gpu:
    pairs = {name: tuple(kept[name]) for name in ("compute_capability", "cuda_driver_version")}
    return Gpu(**{**kept, **pairs, "tflops_source": TflopsSource(kept["tflops_source"])})
