"""Profiles of simulated nodes, from a shorthand such as ``8xA100-SXM4-80GB`` or a YAML file."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO, Quantity, QuantityError
from tensorfusion_dra.core.kubernetes.untyped_json import is_number, is_whole_number
from tensorfusion_dra.discovery import yaml_file
from tensorfusion_dra.discovery.simulated import cards
from tensorfusion_dra.discovery.simulated.cards import Card
from tensorfusion_dra.discovery.yaml_file import shown

MAX_GPUS: Final = 256
DRIVER_VERSION: Final = "580.95.05"

_SHORTHAND: Final = re.compile(r"(?P<count>[0-9]{1,4})x(?P<name>.+)")
_PATH: Final = re.compile(r"/|\.(?:ya?ml|json)$")
_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VERSION: Final = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){1,3}")
_MAX_SECONDS: Final = 86_400

NODE_FIELDS: Final = ("gpus", "driver_version", "driver_missing_for_seconds", "hangs")
GPU_FIELDS: Final = (
    "product",
    "count",
    "vram",
    "reserved",
    "tflops",
    "uuid",
    "fault",
    "xid",
    "recovery_action",
    "appears_after_seconds",
)
_MAX_NUMBER: Final = 2**31 - 1


class Fault(StrEnum):
    """Fault of a simulated card."""

    MIG = "mig"
    NO_MEMORY = "no-memory"
    LOST = "lost"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """One simulated card.

    Attributes:
        reserved_bytes: Memory that the driver reserves for itself.
        milli_tflops: None takes the compute from the model table.
        uuid: None derives it from the node's name and the card's position.
        xid: XID that is reported when it appears in the profile; None for none.
        recovery_action: Recovery action that the driver requires (nvmlDeviceGpuRecoveryAction_t).
        appears_after_seconds: Counted from the start of the simulation.
    """

    card: Card
    reserved_bytes: int = 0
    milli_tflops: int | None = None
    uuid: str | None = None
    fault: Fault | None = None
    xid: int | None = None
    recovery_action: int = 0
    appears_after_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfile:
    """The cards and the driver of one simulated node.

    Attributes:
        hangs: True if calls into the driver do not return.
    """

    gpus: tuple[GpuProfile, ...]
    driver_version: str = DRIVER_VERSION
    driver_missing_for_seconds: float = 0.0
    hangs: bool = False


def from_text(text: str) -> NodeProfile:
    """Return the profile of a shorthand or of the YAML file at this path.

    Raises:
        InputError: The text is neither, or contains an unknown field or name.
    """
    return from_file(Path(text)) if _PATH.search(text) else from_shorthand(text)


def from_shorthand(text: str) -> NodeProfile:
    """Return the profile of ``<count>x<card>[,<count>x<card>...]``.

    Raises:
        InputError: A part has another form, or its card is unknown.
    """
    gpus: list[GpuProfile] = []
    for part in text.split(","):
        match = _SHORTHAND.fullmatch(part.strip())
        if match is None:
            raise InputError(
                f"simulated GPUs: found {shown(part.strip())}, expected one like 8xA100-SXM4-80GB "
                f"or the path of a YAML file"
            )
        gpus.extend([GpuProfile(card=_card(match["name"], "simulated GPUs"))] * int(match["count"]))
    return NodeProfile(gpus=_checked(gpus, "simulated GPUs"))


def from_file(file: Path) -> NodeProfile:
    """Return the profile in a YAML file.

    Raises:
        InputError: The file cannot be read, or has an unknown field or an invalid value.
    """
    fields = _mapping(yaml_file.content(file), NODE_FIELDS, str(file))
    entries = fields.get("gpus")
    if not isinstance(entries, list):
        raise InputError(f"{file}: gpus: found {shown(entries)}, expected a list of cards")
    gpus: list[GpuProfile] = []
    for number, entry in enumerate(entries, start=1):
        gpus.extend(_gpus(entry, f"{file}: gpus: entry {number}"))
    version = fields.get("driver_version", DRIVER_VERSION)
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise InputError(
            f"{file}: driver_version: found {shown(version)}, expected a text such as '580.95.05'"
        )
    hangs = fields.get("hangs", False)
    if not isinstance(hangs, bool):
        raise InputError(f"{file}: hangs: found {shown(hangs)}, expected true or false")
    return NodeProfile(
        gpus=_checked(gpus, str(file)),
        hangs=hangs,
        driver_version=version,
        driver_missing_for_seconds=_seconds(fields, "driver_missing_for_seconds", str(file)),
    )


def _gpus(entry: object, where: str) -> Sequence[GpuProfile]:
    fields = _mapping(entry, GPU_FIELDS, where)
    count = fields.get("count", 1)
    if not is_whole_number(count) or not 0 <= count <= MAX_GPUS:
        raise InputError(f"{where}: count: found {shown(count)}, expected 0 to {MAX_GPUS}")
    uuid = fields.get("uuid")
    if uuid is not None and (not isinstance(uuid, str) or not _UUID.fullmatch(uuid)):
        raise InputError(f"{where}: uuid: found {shown(uuid)}, expected GPU- and a lower-case UUID")
    tflops = fields.get("tflops")
    card = _card_of(fields, where)
    gpu = GpuProfile(
        card=card,
        reserved_bytes=_reserved(fields.get("reserved"), card, where),
        milli_tflops=None if tflops is None else _milli(tflops, where),
        uuid=uuid,
        fault=_fault(fields.get("fault"), where),
        xid=None if fields.get("xid") is None else _number(fields, "xid", where),
        recovery_action=_number(fields, "recovery_action", where),
        appears_after_seconds=_seconds(fields, "appears_after_seconds", where),
    )
    return [gpu] * count


def _card_of(fields: Mapping[str, object], where: str) -> Card:
    product = fields.get("product")
    if not isinstance(product, str) or not product.strip():
        raise InputError(f"{where}: product: found {shown(product)}, expected a card's name")
    vram = fields.get("vram")
    if vram is None:
        return _card(product, where)
    size = _quantity(vram, f"{where}: vram").nano // NANO
    if size < MIB:
        raise InputError(f"{where}: vram: found {shown(vram)}, expected at least 1Mi")
    known = cards.named(product)
    return Card(
        product_name=known.product_name if known else " ".join(product.split()),
        vram_bytes=size,
        compute_capability=known.compute_capability if known else (0, 0),
    )


def _reserved(reserved: object, card: Card, where: str) -> int:
    if reserved is None:
        return 0
    size = _quantity(reserved, f"{where}: reserved").nano // NANO
    if not 0 <= size <= card.vram_bytes - MIB:
        raise InputError(
            f"{where}: reserved: found {shown(reserved)}, expected 0 or more, and less than the "
            f"card's memory"
        )
    return size


def _card(name: str, where: str) -> Card:
    card = cards.named(name)
    if card is None:
        similar = ", ".join(cards.similar_names(name)) or "A100-SXM4-80GB"
        raise InputError(
            f"{where}: found no card {shown(name)}, expected one like {similar}, "
            f"or a profile that gives its vram"
        )
    return card


def _milli(tflops: object, where: str) -> int:
    milli = _quantity(tflops, f"{where}: tflops").nano * 1000 // NANO
    if milli < 1:
        raise InputError(f"{where}: tflops: found {shown(tflops)}, expected more than 0")
    return milli


def _quantity(value: object, where: str) -> Quantity:
    # A YAML fraction is a float; str() returns the digits as written.
    try:
        return quantity.parse(str(value) if isinstance(value, float) else value)
    except QuantityError as error:
        raise InputError(f"{where}: {error}") from error


def _fault(value: object, where: str) -> Fault | None:
    if value is None or value in tuple(Fault):
        return None if value is None else Fault(str(value))
    raise InputError(f"{where}: fault: found {shown(value)}, expected one of {', '.join(Fault)}")


def _number(fields: Mapping[str, object], name: str, where: str) -> int:
    value = fields.get(name, 0)
    if not is_whole_number(value) or not 0 <= value <= _MAX_NUMBER:
        raise InputError(f"{where}: {name}: found {shown(value)}, expected a number from 0")
    return value


def _seconds(fields: Mapping[str, object], name: str, where: str) -> float:
    value = fields.get(name, 0)
    if not is_number(value) or not 0 <= value <= _MAX_SECONDS:
        raise InputError(
            f"{where}: {name}: found {shown(value)}, expected 0 to {_MAX_SECONDS} seconds"
        )
    return float(value)


def _mapping(value: object, known: Iterable[str], where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: found {shown(value)}, expected fields {', '.join(known)}")
    for field in value:
        if field not in known:
            raise InputError(f"{where}: found {shown(field)}, expected only {', '.join(known)}")
    return value


def _checked(gpus: Sequence[GpuProfile], where: str) -> tuple[GpuProfile, ...]:
    if len(gpus) > MAX_GPUS:
        raise InputError(f"{where}: found {len(gpus)} cards, expected at most {MAX_GPUS}")
    uuids = [gpu.uuid for gpu in gpus if gpu.uuid is not None]
    if len(set(uuids)) < len(uuids):
        raise InputError(
            f"{where}: uuid: found the same UUID on several cards, expected unique ones"
        )
    return tuple(gpus)
