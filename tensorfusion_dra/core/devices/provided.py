"""What providers offer to a device: which names and values it can have, and who wins.

There are two steps. An answer is checked on its own, in its provider's thread, so that whatever is
in it can harm nothing else: each name and value is checked against the API's rules, and only plain
values pass. Then devices get what was offered, one provider after the other, the driver's own
first:

- A name of the driver is never given by another package, even where the driver does not use it now
  (`virtual_vram` in a pool without oversubscription), and with the driver's domain in front of it,
  which Kubernetes takes for the same name.
- The first provider to give a name wins; the later ones are refused.
- Within one provider names are taken in alphabetical order. A device has room for 32 attributes and
  capacities together (DeviceMaxAttributesAndCapacities), of which the driver uses up to 28.

Example: `alpha` and `beta` both give example.com/rack. The device has alpha's value, and the
refusal of beta's says so.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.capacity import Capacity
from tensorfusion_dra.core.devices.device import AttributeValue, Device, Version, attribute_as_api
from tensorfusion_dra.core.kubernetes import device_rules, name_rules, quantity
from tensorfusion_dra.core.kubernetes.field_errors import FieldError
from tensorfusion_dra.core.kubernetes.quantity import Quantity

MOST_ENTRIES: Final = device_rules.MOST_ENTRIES

_RESERVED: Final = names.CAPACITIES | {
    value for key, value in vars(names).items() if key.startswith("ATTR_")
}
_OWN_DOMAIN: Final = f"{names.DRIVER}/"
_LONGEST_SHOWN: Final = 100
_MOST_NAMES: Final = 100
"""Beyond this an answer is an error, because each name that is refused is a line in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A name that a provider gave and that the device does not have.

    Attributes:
        name: At most 100 characters of it.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one provider offers to one device.

    Attributes:
        entries: By name, in the order in which the device takes them.
        refused: Names that no device can have.
    """

    entries: Mapping[str, AttributeValue | Capacity] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()


NOTHING: Final = Offer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """A device with what one provider gave.

    Attributes:
        given: Names that the device has from this provider.
    """

    device: Device
    given: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()


def own(answer: Mapping[Any, Any]) -> Offer:
    """Return all of an answer of the driver's own provider: devices are checked as a whole."""
    return Offer(entries=answer)


def attributes(answer: object) -> Offer:
    """Return the attributes in another package's answer that a device can have.

    Raises:
        TypeError: It is no mapping.
        ValueError: It has over 100 names.
    """
    return _offer(answer, _attribute)


def capacities(answer: object) -> Offer:
    """Return the capacities in another package's answer that a device can have.

    Raises:
        TypeError: It is no mapping.
        ValueError: It has over 100 names.
    """
    return _offer(answer, _capacity)


def extended(device: Device, offer: Offer, givers: Mapping[str, str]) -> Extended:
    """Return the device with what it takes of an offer.

    Args:
        device: With all that earlier providers gave.
        givers: Name of the provider that gave each attribute, or each capacity, which the device
            has.
    """
    with_attributes, with_capacity = dict(device.attributes), dict(device.capacity)
    given, refused = [], list(offer.refused)
    for name, value in offer.entries.items():
        if reason := _conflict(name, givers, len(with_attributes) + len(with_capacity)):
            refused.append(Refusal(name=name, reason=reason))
            continue
        if isinstance(value, Capacity):
            with_capacity[name] = value
        else:
            with_attributes[name] = value
        given.append(name)
    return Extended(
        device=replace(device, attributes=with_attributes, capacity=with_capacity),
        given=tuple(given),
        refused=tuple(refused),
    )


def _conflict(name: str, givers: Mapping[str, str], entries: int) -> str:
    for known in (name, name.removeprefix(_OWN_DOMAIN), f"{_OWN_DOMAIN}{name}"):
        if known in givers:
            return f"provider {givers[known]} gave this name first"
    if entries >= MOST_ENTRIES:
        return f"the device has {MOST_ENTRIES} attributes and capacities, which is the most"
    return ""


def _offer(answer: object, checked: Callable[[object], AttributeValue | Capacity]) -> Offer:
    if not isinstance(answer, Mapping):
        raise TypeError(f"found {type(answer).__name__}, expected a mapping by name")
    if len(answer) > _MOST_NAMES:
        raise ValueError(f"found {len(answer)} names, expected at most {MOST_ENTRIES}")
    entries: dict[str, AttributeValue | Capacity] = {}
    refused = []
    for name, value in sorted(answer.items(), key=lambda item: _shown(item[0])):
        try:
            entries[_name(name)] = checked(value)
        except _RefusedError as error:
            refused.append(Refusal(name=_shown(name), reason=str(error)))
    return Offer(entries=entries, refused=tuple(refused))


class _RefusedError(Exception):
    """No device can have this name or value; the text says why."""


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise _RefusedError(f"found a name of type {type(name).__name__}, expected a string")
    if name.removeprefix(_OWN_DOMAIN) in _RESERVED:
        raise _RefusedError("the driver itself uses this name")
    _refuse(name_rules.qualified("name", name))
    return _plain(name)


def _attribute(value: object) -> AttributeValue:
    plain: AttributeValue
    match value:
        case bool():
            plain = value
        case int():
            # Before the check: looking for an IntEnum in a range compares it with each number.
            plain = int(value)
        case str():
            plain = _plain(value)
        case Version():
            plain = value
        case _:
            found = type(value).__name__
            raise _RefusedError(f"found {found}, expected a string, int, bool or Version")
    _refuse(device_rules.attribute_errors("value", attribute_as_api(plain)))
    return Version(_plain(plain.text)) if isinstance(plain, Version) else plain


def _capacity(value: object) -> Capacity:
    if not isinstance(value, Capacity):
        raise _RefusedError(f"found {type(value).__name__}, expected a Capacity, see consumable()")
    optional = [each for each in (value.step, value.maximum) if each is not None]
    amounts: list[Any] = [value.value, value.default, value.minimum, *optional]
    if not all(isinstance(each, Quantity) and type(each.nano) is int for each in amounts):
        raise _RefusedError(
            "found an amount of another type, expected quantities, see consumable()"
        )
    if value.minimum.nano < 0 or value.value.nano < 0:
        text = f"found {value.value}, at least {value.minimum}, expected 0 or more"
        raise _RefusedError(text)
    # The API server caps larger amounts, and would never store what is published.
    if any(quantity.parse(str(each)) != each for each in amounts):
        raise _RefusedError("found an amount above the largest quantity")
    _refuse(device_rules.capacity_errors("capacity", value.as_api(), shared=True))
    return value


def _refuse(errors: Iterator[FieldError]) -> None:
    if text := "; ".join(str(error) for error in errors):
        raise _RefusedError(text)


def _plain(text: str) -> str:
    """Return the text as a plain string, without the type of an enumeration or of a library."""
    plain = str.__str__(text)
    try:
        plain.encode()
    except UnicodeEncodeError:
        raise _RefusedError(f"found {plain!r}, expected text in Unicode") from None
    return plain


def _shown(name: object) -> str:
    # The text of another object is code of its package, which may fail.
    return name[:_LONGEST_SHOWN] if isinstance(name, str) else type(name).__name__
