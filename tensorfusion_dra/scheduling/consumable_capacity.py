"""Consumption of a shared device's capacities by claims (KEP-5075).

dynamic-resource-allocation/structured/internal/incubating/consumable_capacity.go, release 1.36.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling.devices import Capacity, Policy

Amounts = Mapping[str, Quantity]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """The first capacity of a device that cannot provide its requested amount.

    Attributes:
        capacity: Its name; of several that the device lacks, the first.
        text: What was found and what was requested.
        is_allowed: False if the device has no such capacity or its requestPolicy excludes the
            amount, whatever is free.
    """

    capacity: str
    text: str
    is_allowed: bool


def consumed(requested: Amounts, capacity: Mapping[str, Capacity]) -> dict[str, Quantity]:
    """Return the amount that a request consumes of every capacity of a device.

    It consumes the default of a capacity that it does not name, or all of it without a default.
    """
    return {name: _consumed(requested.get(name), entry) for name, entry in capacity.items()}


def refusal(requested: Amounts, capacity: Mapping[str, Capacity], taken: Amounts) -> str | None:
    """Return why a request does not fit next to the amounts taken; None if it fits."""
    found = shortage(requested, capacity, taken)
    return None if found is None else found.text


def shortage(
    requested: Amounts, capacity: Mapping[str, Capacity], taken: Amounts
) -> Shortage | None:
    """Return the first capacity for which a request does not fit next to the amounts taken."""
    unknown = sorted(requested.keys() - capacity.keys())
    if unknown:
        text = f"has no capacity {', '.join(unknown)}"
        return Shortage(capacity=unknown[0], text=text, is_allowed=False)
    for name, amount in consumed(requested, capacity).items():
        entry = capacity[name]
        if _violates(amount, entry.policy):
            text = f"{name} {amount} is not allowed by its requestPolicy"
            return Shortage(capacity=name, text=text, is_allowed=False)
        before = taken.get(name, Quantity(0))
        if before + amount > entry.value:
            text = f"{name} {before} of {entry.value} taken, {amount} more do not fit"
            return Shortage(capacity=name, text=text, is_allowed=True)
    return None


def _consumed(requested: Quantity | None, capacity: Capacity) -> Quantity:
    policy = capacity.policy
    if requested is None:
        default = None if policy is None else policy.default
        return capacity.value if default is None else default
    if policy is None:
        return requested
    if policy.least is not None:
        return _rounded_up(requested, policy.least, policy.step)
    if policy.valid_values is not None:
        return next((value for value in policy.valid_values if requested <= value), requested)
    return requested


def _rounded_up(requested: Quantity, least: Quantity, step: Quantity | None) -> Quantity:
    """Round up to the range's minimum, or to a whole number of steps above it."""
    if requested < least:
        return least
    if step is None:
        return requested
    # Quantity.Value() rounds fractions up to whole numbers, also those of least and step.
    above = requested.ceil() - least.ceil()
    return Quantity.of_bytes(least.ceil() + -(-above // step.ceil()) * step.ceil())


def _violates(amount: Quantity, policy: Policy | None) -> bool:
    if policy is None or amount == policy.default:
        return False
    if policy.least is not None:
        if policy.most is not None and amount > policy.most:
            return True
        step = policy.step
        return step is not None and (amount.ceil() - policy.least.ceil()) % step.ceil() != 0
    return policy.valid_values is not None and amount not in policy.valid_values
