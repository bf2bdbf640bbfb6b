"""The API server's rules for the capacities of a device (validation.go, Kubernetes 1.36)."""

from collections.abc import Iterator, Mapping
from typing import Final

from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    required,
    too_many,
    wrong_type,
)
from tensorfusion_dra.core.kubernetes.quantity import Quantity

MOST_VALID_VALUES: Final = 10


def capacity_errors(path: str, capacity: object, *, shared: bool) -> Iterator[FieldError]:
    """Yield every rule violation of one capacity.

    Args:
        shared: True if the device allows multiple allocations.
    """
    if not isinstance(capacity, Mapping):
        yield wrong_type(path, capacity, "an object with value")
        return
    # The API server treats a missing value as 0.
    value = capacity.get("value", "0")
    policy = capacity.get("requestPolicy")
    yield from _quantity_errors(f"{path}.value", value)
    if policy is None:
        return
    policy_path = f"{path}.requestPolicy"
    if not shared:
        yield forbidden(policy_path, "allowMultipleAllocations must be true")
    elif not isinstance(policy, Mapping):
        yield wrong_type(policy_path, policy, "an object")
    else:
        yield from _policy_errors(policy_path, policy, value)


def _policy_errors(path: str, policy: Mapping[str, object], value: object) -> Iterator[FieldError]:
    valid_values, valid_range = policy.get("validValues"), policy.get("validRange")
    if valid_values is not None and not isinstance(valid_values, list):
        yield wrong_type(f"{path}.validValues", valid_values, "a list")
        return
    if valid_range is not None and not isinstance(valid_range, Mapping):
        yield wrong_type(f"{path}.validRange", valid_range, "an object")
        return
    amounts = {f"{path}.default": policy.get("default")}
    for index, option in enumerate(valid_values or []):
        amounts[f"{path}.validValues[{index}]"] = option if option is not None else ""
    for name in ("min", "max", "step"):
        amounts[f"{path}.validRange.{name}"] = (valid_range or {}).get(name)
    unreadable = [
        error
        for where, amount in amounts.items()
        if amount is not None
        for error in _quantity_errors(where, amount)
    ]
    yield from unreadable
    if unreadable or any(_quantity_errors(path, value)):
        return
    if valid_values and valid_range is not None:
        yield forbidden(
            path,
            'exactly one policy can be specified, cannot specify "validValues" and "validRange"'
            " at the same time",
        )
    elif valid_values:
        yield from _values_errors(path, policy.get("default"), valid_values, quantity.parse(value))
    elif valid_range is not None:
        yield from _range_errors(path, policy.get("default"), valid_range, quantity.parse(value))


def _values_errors(
    path: str, default: object, options: list[object], total: Quantity
) -> Iterator[FieldError]:
    if default is None:
        yield required(f"{path}.default", "required when validValues is defined")
        return
    where = f"{path}.validValues"
    if len(options) > MOST_VALID_VALUES:
        yield too_many(where, len(options), MOST_VALID_VALUES)
        options = []
    amounts = [quantity.parse(option) for option in options]
    seen: set[int] = set()
    for index, amount in enumerate(amounts):
        here = f"{where}[{index}]"
        if index and amounts[index - 1] > amount:
            yield invalid(here, str(amount), "values must be sorted in ascending order")
        if amount > total:
            text = f"option is larger than capacity value: {total}"
            yield invalid(here, str(amount), text)
        # The API server compares whole numbers, fractions rounded up: 1.1 and 1.9 are the same.
        if amount.ceil() in seen:
            yield duplicate(here, str(amount.ceil()))
        seen.add(amount.ceil())
    wanted = quantity.parse(default)
    if wanted not in amounts:
        text = "default value is not valid according to the requestPolicy"
        yield invalid(where, str(wanted), text)


def _range_errors(
    path: str, default: object, valid_range: Mapping[str, object], total: Quantity
) -> Iterator[FieldError]:
    where = f"{path}.validRange"
    if default is None:
        yield required(f"{path}.default", "required when validRange is defined")
        return
    if valid_range.get("min") is None:
        yield required(f"{where}.min", "required when validRange is defined")
        return
    wanted = quantity.parse(default)
    least = quantity.parse(valid_range["min"])
    most = _parsed(valid_range.get("max"))
    step = _parsed(valid_range.get("step"))
    if least > total:
        yield invalid(f"{where}.min", str(least), f"min is larger than capacity value: {total}")
    if wanted < least:
        yield invalid(f"{where}.min", str(wanted), f"default is less than min: {least}")
    if most is not None:
        here = f"{where}.max"
        if least > most:
            yield invalid(here, str(least), f"min is larger than max: {most}")
        if most > total:
            yield invalid(here, str(most), f"max is larger than capacity value: {total}")
        if wanted > most:
            yield invalid(here, str(wanted), f"default is more than max: {most}")
    if step is not None:
        here = f"{where}.step"
        if least + step > total:
            text = f"one step {least + step} is larger than capacity value: {total}"
            yield invalid(here, str(step), text)
        amounts = [wanted] if most is None else [wanted, most]
        yield from _step_errors(here, amounts, least=least, step=step)


def _step_errors(
    path: str, amounts: list[Quantity], *, least: Quantity, step: Quantity
) -> Iterator[FieldError]:
    """Yield an error for each amount that is not a whole number of steps above the least.

    Fractions are rounded up first, as Quantity.Value() does in Go.
    """
    if step.ceil() == 0:
        # The API server would divide by zero here and answer 500.
        yield invalid(path, str(step), "must not be zero")
        return
    for amount in amounts:
        if (amount.ceil() - least.ceil()) % step.ceil() != 0:
            text = f"value is not a multiple of a given step ({step}) from ({least})"
            yield invalid(path, str(amount), text)


def _parsed(text: object) -> Quantity | None:
    return None if text is None else quantity.parse(text)


def _quantity_errors(path: str, text: object) -> Iterator[FieldError]:
    try:
        quantity.parse(text)
    except quantity.QuantityError as error:
        yield invalid(path, text, str(error))
