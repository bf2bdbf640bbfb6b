"""Record of the known cards on disk, so that a restart neither heals nor forgets a card."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices import health
from tensorfusion_dra.core.devices.gpu import Gpu, TflopsSource
from tensorfusion_dra.core.devices.health import CardHealth, Kind, Moment, Sickness, Trouble
from tensorfusion_dra.core.devices.known_cards import KnownCards

_VERSION: Final = 1

Json = dict[str, Any]


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
            uuid: _sick_json(state, state.sick)
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


def _sick_json(state: CardHealth, sick: Sickness) -> Json:
    return {
        "since": sick.since.isoformat(),
        "worst": _trouble_json(sick.worst),
        "reported": [_trouble_json(trouble) for trouble in state.reported],
        "wasAway": state.was_away,
    }


def _card_health(kept: Mapping[str, Any], now: Moment) -> CardHealth:
    since = datetime.fromisoformat(kept["since"])
    if since.tzinfo is None:
        raise ValueError(f"since: found {kept['since']!r}, expected a time zone")
    return health.restored(
        Sickness(worst=_trouble(kept["worst"]), since=since),
        tuple(map(_trouble, kept["reported"])),
        was_away=bool(kept["wasAway"]),
        now=now,
    )


def _trouble_json(trouble: Trouble) -> Json:
    return {"kind": trouble.kind.name, "reason": trouble.reason, "text": trouble.text}


def _trouble(kept: Mapping[str, Any]) -> Trouble:
    return Trouble(kind=Kind[kept["kind"]], reason=str(kept["reason"]), text=str(kept["text"]))


def _gpu(kept: Mapping[str, Any]) -> Gpu:
    fields = dict(kept)
    for name in ("compute_capability", "cuda_driver_version"):
        major, minor = fields[name]
        fields[name] = (int(major), int(minor))
    fields["tflops_source"] = TflopsSource(fields["tflops_source"])
    return Gpu(**fields)
