"""The API server's rules for a node selector."""

from collections.abc import Iterator, Mapping
from typing import Final

from tensorfusion_dra.core import name_rules
from tensorfusion_dra.core.field_errors import (
    FieldError,
    forbidden,
    invalid,
    required,
    wrong_type,
)

_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})


def errors(path: str, selector: object) -> Iterator[FieldError]:
    """What is wrong with a node selector."""
    terms = selector.get("nodeSelectorTerms") if isinstance(selector, Mapping) else None
    where = f"{path}.nodeSelectorTerms"
    if not isinstance(selector, Mapping) or not isinstance(terms, list | None):
        yield wrong_type(path, selector, "an object with nodeSelectorTerms")
        return
    if not terms:
        yield required(where, "must have at least one node selector term")
    for index, term in enumerate(terms or []):
        yield from _term_errors(f"{where}[{index}]", term)


def _term_errors(path: str, term: object) -> Iterator[FieldError]:
    if not isinstance(term, Mapping):
        yield wrong_type(path, term, "an object")
        return
    for index, requirement in enumerate(term.get("matchExpressions") or []):
        yield from _expression_errors(f"{path}.matchExpressions[{index}]", requirement)
    for index, requirement in enumerate(term.get("matchFields") or []):
        yield from _field_errors(f"{path}.matchFields[{index}]", requirement)


def _expression_errors(path: str, requirement: Mapping[str, object]) -> Iterator[FieldError]:
    operator, values = requirement.get("operator"), requirement.get("values") or []
    assert isinstance(values, list)
    where = f"{path}.values"
    if operator in {"In", "NotIn"} and not values:
        yield required(where, "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in {"Exists", "DoesNotExist"} and values:
        text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        yield forbidden(where, text)
    elif operator in {"Gt", "Lt"} and len(values) != 1:
        yield required(where, "must be specified single value when `operator` is 'Lt' or 'Gt'")
    elif operator not in _OPERATORS:
        yield invalid(f"{path}.operator", operator, "not a valid selector operator")
    yield from name_rules.label_key(f"{path}.key", requirement.get("key", ""))
    if operator in {"In", "NotIn"}:
        for index, value in enumerate(values):
            yield from name_rules.label_value(f"{where}[{index}]", value)


def _field_errors(path: str, requirement: Mapping[str, object]) -> Iterator[FieldError]:
    key, values = requirement.get("key"), requirement.get("values") or []
    assert isinstance(values, list)
    if requirement.get("operator") not in {"In", "NotIn"}:
        text = "not a valid selector operator"
        yield invalid(f"{path}.operator", requirement.get("operator"), text)
    elif len(values) != 1:
        text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required(f"{path}.values", text)
    if key != "metadata.name":
        yield invalid(f"{path}.key", key, "not a valid field selector key")
    for index, value in enumerate(values):
        yield from name_rules.subdomain(f"{path}.values[{index}]", value)
