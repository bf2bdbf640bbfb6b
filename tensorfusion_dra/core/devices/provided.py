"""What providers give to a device: which names and values it can have, and who wins.

Providers give to a device one after the other, the driver's own first. Each name and value is
checked on its own, so that a bad one costs nothing but itself:

- A name of the driver is never given by another package, even where the driver does not use it now
  (`virtual_vram` in a pool without oversubscription), and with the driver's domain in front of it,
  which Kubernetes takes for the same name.
- The first provider to give a name wins; the later ones are refused.
- Within one provider names are taken in alphabetical order. A device has room for 32 attributes and
  capacities together (DeviceMaxAttributesAndCapacities), of which the driver uses up to 28.

Example: `alpha` and `beta` both give example.com/rack. The device has alpha's value, and the
refusal of beta's says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.capacity import Capacity
from tensorfusion_dra.core.devices.device import AttributeValue, Device, Version, attribute_as_api
from tensorfusion_dra.core.kubernetes import device_rules, name_rules, policy_rules
from tensorfusion_dra.core.kubernetes.field_errors import FieldError
from tensorfusion_dra.core.kubernetes.quantity import Quantity

MOST_ENTRIES: Final = device_rules.MOST_ENTRIES

_RESERVED: Final = names.CAPACITIES | {
    value for key, value in vars(names).items() if key.startswith("ATTR_")
}
_OWN_DOMAIN: Final = f"{names.DRIVER}/"
_LONGEST_SHOWN: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A name that a provider gave and that the device does not have.

    Attributes:
        name: At most 100 characters of it.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """A device with what one provider gave.

    Attributes:
        given: Names that the device has from this provider.
    """

    device: Device
    given: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()


def with_attributes(
    device: Device, offered: Mapping[object, object], givers: Mapping[str, str]
) -> Extended:
    """Return the device with the attributes of a provider that it can have.

    Args:
        device: With all that earlier providers gave.
        offered: The provider's answer.
        givers: Name of the provider that gave each attribute which the device has.
    """
    given: dict[str, AttributeValue] = {}
    refused = []
    for name, value in _sorted(offered):
        reason = _name_trouble(name, givers, device, len(given))
        if not reason and (
            not isinstance(name, str) or not isinstance(value, str | int | bool | Version)
        ):
            reason = f"found {type(value).__name__}, expected a string, int, bool or Version"
        if not reason:
            reason = _text(device_rules.attribute_errors("value", attribute_as_api(value)))
        if reason:
            refused.append(Refusal(name=_shown(name), reason=reason))
        elif isinstance(name, str) and isinstance(value, str | int | bool | Version):
            given[name] = value
    return Extended(
        device=replace(device, attributes={**device.attributes, **given}),
        given=tuple(given),
        refused=tuple(refused),
    )


def with_capacities(
    device: Device, offered: Mapping[object, object], givers: Mapping[str, str]
) -> Extended:
    """Return the device with the capacities of a provider that it can have.

    Args:
        device: With all that earlier providers gave.
        offered: The provider's answer.
        givers: Name of the provider that gave each capacity which the device has.
    """
    given: dict[str, Capacity] = {}
    refused = []
    for name, value in _sorted(offered):
        reason = _name_trouble(name, givers, device, len(given))
        if not reason and not isinstance(value, Capacity):
            reason = f"found {type(value).__name__}, expected a Capacity, see consumable()"
        if not reason and isinstance(value, Capacity):
            reason = _capacity_trouble(value)
        if reason:
            refused.append(Refusal(name=_shown(name), reason=reason))
        elif isinstance(name, str) and isinstance(value, Capacity):
            given[name] = value
    return Extended(
        device=replace(device, capacity={**device.capacity, **given}),
        given=tuple(given),
        refused=tuple(refused),
    )


def with_own(device: Device, offered: Mapping[Any, object]) -> Extended:
    """Return the device with what the driver's own provider gives, which is checked as a whole."""
    attributes: dict[str, AttributeValue] = {}
    capacities: dict[str, Capacity] = {}
    for name, value in offered.items():
        if isinstance(value, Capacity):
            capacities[str(name)] = value
        elif isinstance(value, str | int | bool | Version):
            attributes[str(name)] = value
    return Extended(
        device=replace(
            device,
            attributes={**device.attributes, **attributes},
            capacity={**device.capacity, **capacities},
        ),
        given=(*attributes, *capacities),
    )


def name_trouble(name: object) -> str:
    """Return why no other package can give this name; "" if it can."""
    if not isinstance(name, str):
        return f"found a name of type {type(name).__name__}, expected a string"
    if name.removeprefix(_OWN_DOMAIN) in _RESERVED:
        return "the driver itself uses this name"
    return _text(name_rules.qualified("name", name))


def _name_trouble(name: object, givers: Mapping[str, str], device: Device, given: int) -> str:
    if trouble := name_trouble(name):
        return trouble
    for known in (str(name), str(name).removeprefix(_OWN_DOMAIN), f"{_OWN_DOMAIN}{name}"):
        if known in givers:
            return f"provider {givers[known]} gave this name first"
    entries = len(device.attributes) + len(device.capacity) + given
    if entries >= MOST_ENTRIES:
        return f"the device has {MOST_ENTRIES} attributes and capacities, which is the most"
    return ""


def _capacity_trouble(value: Capacity) -> str:
    optional = [each for each in (value.step, value.maximum) if each is not None]
    amounts = [value.value, value.default, value.minimum, *optional]
    if not all(isinstance(each, Quantity) for each in amounts):
        return "found an amount of another type, expected quantities, see consumable()"
    if value.minimum.nano < 0 or value.value.nano < 0:
        return f"found {value.value}, at least {value.minimum}, expected 0 or more"
    return _text(policy_rules.capacity_errors("capacity", value.as_api(), shared=True))


def _sorted(offered: Mapping[object, object]) -> list[tuple[object, object]]:
    return sorted(offered.items(), key=lambda item: _shown(item[0]))


def _shown(name: object) -> str:
    # The text of another object is code of its package, which may fail.
    return name[:_LONGEST_SHOWN] if isinstance(name, str) else type(name).__name__


def _text(errors: Iterator[FieldError]) -> str:
    return "; ".join(str(error) for error in errors)
