"""The API server's rules for a node selector."""

from collections.abc import Iterator, Mapping
from typing import Final

from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    forbidden,
    invalid,
    required,
    wrong_type,
)
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_NO_OPERATOR: Final = "not a valid selector operator"


def errors(path: str, selector: object) -> Iterator[FieldError]:
    """Yield every rule violation of a node selector."""
    where = f"{path}.nodeSelectorTerms"
    terms = as_map(selector).get("nodeSelectorTerms")
    if not isinstance(selector, Mapping) or not isinstance(terms, list | None):
        yield wrong_type(path, selector, "an object with nodeSelectorTerms")
        return
    if not terms:
        yield required(where, "must have at least one node selector term")
    for index, term in enumerate(terms or []):
        yield from _term_errors(f"{where}[{index}]", as_map(term))


def _term_errors(path: str, term: Mapping[str, object]) -> Iterator[FieldError]:
    for index, requirement in enumerate(as_list(term.get("matchExpressions"))):
        yield from _expression_errors(f"{path}.matchExpressions[{index}]", as_map(requirement))
    for index, requirement in enumerate(as_list(term.get("matchFields"))):
        yield from _field_errors(f"{path}.matchFields[{index}]", as_map(requirement))


def _expression_errors(path: str, requirement: Mapping[str, object]) -> Iterator[FieldError]:
    operator, values = requirement.get("operator"), as_list(requirement.get("values"))
    where = f"{path}.values"
    match operator:
        case "In" | "NotIn" if not values:
            yield required(where, "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist" if values:
            text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield forbidden(where, text)
        case "Gt" | "Lt" if len(values) != 1:
            text = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            yield required(where, text)
        case _ if operator not in _OPERATORS:
            yield invalid(f"{path}.operator", operator, _NO_OPERATOR)
    yield from name_rules.label_key(f"{path}.key", requirement.get("key", ""))
    if operator in ("In", "NotIn"):
        for index, value in enumerate(values):
            yield from name_rules.label_value(f"{where}[{index}]", value)


def _field_errors(path: str, requirement: Mapping[str, object]) -> Iterator[FieldError]:
    key, values = requirement.get("key"), as_list(requirement.get("values"))
    if requirement.get("operator") not in ("In", "NotIn"):
        yield invalid(f"{path}.operator", requirement.get("operator"), _NO_OPERATOR)
    elif len(values) != 1:
        text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required(f"{path}.values", text)
    if key != "metadata.name":
        yield invalid(f"{path}.key", key, "not a valid field selector key")
    for index, value in enumerate(values):
        yield from name_rules.subdomain(f"{path}.values[{index}]", value)
