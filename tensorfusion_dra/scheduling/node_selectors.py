"""Matching of nodes with a v1.NodeSelector."""

from collections.abc import Mapping
from typing import Any


def matches(selector: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Return True if a term of the selector matches; one without requirements matches no node."""
    labels = node["metadata"].get("labels") or {}
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        _fits(term.get("matchExpressions") or (), labels)
        and _fits(term.get("matchFields") or (), fields)
        for term in selector.get("nodeSelectorTerms") or ()
        if term.get("matchExpressions") or term.get("matchFields")
    )


def _fits(requirements: tuple[Mapping[str, Any], ...], values: Mapping[str, str]) -> bool:
    return all(_holds(requirement, values) for requirement in requirements)


def _holds(requirement: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    found, wanted = values.get(requirement["key"]), requirement.get("values") or []
    match requirement["operator"]:
        case "In" | "NotIn" as operator:
            return (found in wanted) is (operator == "In")
        case "Exists" | "DoesNotExist" as operator:
            return (found is not None) is (operator == "Exists")
        case "Gt" | "Lt" as operator:
            number, limit = _number(found), int(wanted[0])
            return number is not None and (number > limit if operator == "Gt" else number < limit)
        case _:
            return False


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
