"""What packages beside the driver answer for a card: which of it a device can have, and who wins.

Attributes and capacities take two steps. An answer is checked on its own: each name and value
against the API's rules, so that one that the API server would refuse costs only itself. Then
devices get what was offered, one provider after the other:

- A name of the driver is never given by another package, even where the driver does not use it now
  (`virtual_vram` in a pool without oversubscription), and with the driver's domain in front of it,
  which Kubernetes takes for the same name.
- The first provider to give a name wins; the later ones are refused.
- Within one provider names are taken in alphabetical order. A device has room for 32 attributes and
  capacities together (DeviceMaxAttributesAndCapacities), of which the driver uses up to 31.

Example: `alpha` and `beta` both give example.com/rack. The device has alpha's value, and the
refusal of beta's says so.

A health source answers with the problems that exist now. A problem makes its card unhealthy at
once; the card recovers by the rules of health.py, some time after the source stopped reporting it.
So a source need not remember anything.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.capacity import Capacity
from tensorfusion_dra.core.devices.device import AttributeValue, Device, Version, attribute_as_api
from tensorfusion_dra.core.devices.health import Trouble, TroubleKind
from tensorfusion_dra.core.kubernetes import device_rules, name_rules, quantity
from tensorfusion_dra.core.kubernetes.field_errors import FieldError
from tensorfusion_dra.core.kubernetes.quantity import Quantity

OF_DRIVER: Final = names.CAPACITIES | {
    value for key, value in vars(names).items() if key.startswith("ATTR_")
}
"""Names that the driver itself publishes, or could publish."""
_OWN_DOMAIN: Final = f"{names.DRIVER}/"
_LONGEST_NAME: Final = 100
_MOST_NAMES: Final = 100
"""Beyond this an answer is an error, because each name that is refused is a line in the log."""
_LONGEST_TEXT: Final = 256
_MOST_PROBLEMS: Final = 16


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """A device with what one provider gave.

    Attributes:
        given: Names that the device has from this provider.
    """

    device: Device
    given: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong with a card.

    Attributes:
        reason: Value of the device's taint, a Kubernetes label value: ``fan-stopped``.
        text: Description for people, at most 256 characters; the same as long as the problem is
            the same.
    """

    reason: str
    text: str


def offered(answer: object, checked: Callable[[object], AttributeValue | Capacity]) -> Offer:
    """Return the attributes or capacities in an answer that a device can have.

    Args:
        answer: What the provider returned.
        checked: attribute() or capacity().

    Raises:
        TypeError: It is no mapping.
        ValueError: It has over 100 names.
    """
    if not isinstance(answer, Mapping):
        raise TypeError(f"found {type(answer).__name__}, expected a mapping by name")
    if len(answer) > _MOST_NAMES:
        raise ValueError(f"found {len(answer)} names, expected at most {device_rules.MOST_ENTRIES}")
    entries: dict[str, AttributeValue | Capacity] = {}
    refused = []
    for name, value in sorted(answer.items(), key=lambda item: str(item[0])):
        try:
            entries[_name(name)] = checked(value)
        except RefusedError as error:
            refused.append(Refusal(name=str(name)[:_LONGEST_NAME], reason=str(error)))
    return Offer(entries=entries, refused=tuple(refused))


def troubles(answer: object, *, source: str) -> tuple[Trouble, ...]:
    """Return the troubles of a health source's answer.

    Args:
        answer: What the source returned.
        source: Its name, which the text begins with.

    Raises:
        TypeError: The answer is no sequence of problems.
        ValueError: A reason is no label value, or there are over 16 problems.
    """
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise TypeError(f"found {type(answer).__name__}, expected a sequence of Problem")
    problems = tuple(itertools.islice(answer, _MOST_PROBLEMS + 1))
    if len(problems) > _MOST_PROBLEMS:
        raise ValueError(f"found over {_MOST_PROBLEMS} problems, expected at most that")
    return tuple(_trouble(each, source) for each in problems)


def extended(device: Device, offer: Offer, givers: Mapping[str, str]) -> Extended:
    """Return the device with what it takes of an offer.

    Args:
        device: With all that earlier providers gave.
        givers: Name of the provider that gave each attribute, or each capacity, which the device
            has from other packages.
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
    most = device_rules.MOST_ENTRIES
    if entries >= most:
        return f"the device has {most} attributes and capacities, which is the most"
    return ""


class RefusedError(Exception):
    """No device can have this name or value; the text says why."""


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise RefusedError(f"found a name of type {type(name).__name__}, expected a string")
    if name.removeprefix(_OWN_DOMAIN) in OF_DRIVER:
        raise RefusedError("the driver itself uses this name")
    _refuse(name_rules.qualified("name", name))
    return _text(name)


def attribute(value: object) -> AttributeValue:
    """Return an attribute's value.

    Raises:
        RefusedError: No device can have it.
    """
    match value:
        case bool() | Version():
            plain: AttributeValue = value
        case int():
            plain = int(value)  # also of an IntEnum's member
        case str():
            plain = _text(value)
        case _:
            raise RefusedError(
                f"found {type(value).__name__}, expected a string, int, bool or Version"
            )
    _refuse(device_rules.attribute_errors("value", attribute_as_api(plain)))
    return plain


def capacity(value: object) -> Capacity:
    """Return a capacity.

    Raises:
        RefusedError: No device can have it.
    """
    if not isinstance(value, Capacity):
        raise RefusedError(f"found {type(value).__name__}, expected a Capacity, see consumable()")
    optional = [each for each in (value.step, value.maximum) if each is not None]
    amounts: list[Any] = [value.value, value.default, value.minimum, *optional]
    if not all(isinstance(each, Quantity) and isinstance(each.nano, int) for each in amounts):
        raise RefusedError("found an amount of another type, expected quantities, see consumable()")
    if value.minimum.nano < 0 or value.value.nano < 0:
        raise RefusedError(f"found {value.value}, at least {value.minimum}, expected 0 or more")
    # The API server caps larger amounts, and would never store what is published.
    if any(quantity.parse(str(each)) != each for each in amounts):
        raise RefusedError("found an amount above the largest quantity")
    _refuse(device_rules.capacity_errors("capacity", value.as_api(), shared=True))
    return value


def _trouble(problem: object, source: str) -> Trouble:
    if not isinstance(problem, Problem):
        raise TypeError(f"found {type(problem).__name__}, expected a Problem")
    if not isinstance(problem.text, str):
        raise TypeError(f"text: found {type(problem.text).__name__}, expected text")
    wrong = next(name_rules.label_value("reason", problem.reason), None)
    if wrong is not None or not problem.reason:
        raise ValueError(f"reason: found {problem.reason!r}, expected a Kubernetes label value")
    text = problem.text[:_LONGEST_TEXT].encode(errors="replace").decode()
    return Trouble(kind=TroubleKind.SOURCE, reason=_text(problem.reason), text=f"{source}: {text}")


def _text(value: str) -> str:
    """Return the text as a plain string, also of a StrEnum's member, which YAML does not know."""
    try:
        return value.encode().decode()
    except UnicodeEncodeError:
        raise RefusedError(f"found {value!r}, expected text in Unicode") from None


def _refuse(errors: Iterator[FieldError]) -> None:
    if text := "; ".join(str(error) for error in errors):
        raise RefusedError(text)
