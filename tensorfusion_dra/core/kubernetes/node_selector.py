"""Evaluation of a NodeSelector against a node (component-helpers, nodeaffinity package)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import name_rules

_INT64: Final = re.compile(r"[+-]?[0-9]{1,19}")
_FIELD: Final = "metadata.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLabels:
    """The parts of a node that a selector reads."""

    name: str
    labels: Mapping[str, str]

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> "NodeLabels":
        """Return the name and labels of a Node object."""
        metadata = node["metadata"]
        return cls(name=str(metadata["name"]), labels=dict(metadata.get("labels") or {}))


@dataclass(frozen=True, slots=True)
class _Requirement:
    key: str
    operator: str
    values: tuple[str, ...]

    def holds(self, value: str | None) -> bool:
        """Return True if the value of its key satisfies it; None means the key is absent."""
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        if value is None or _INT64.fullmatch(value) is None:
            return False
        found, bound = int(value), int(self.values[0])
        return found > bound if self.operator == "Gt" else found < bound


def selects(selector: object, node: NodeLabels) -> bool:
    """Return True if any of the selector's terms matches.

    An absent selector and an empty term match no node.

    Raises:
        InputError: No term matches and at least one is malformed; the text lists all errors.
    """
    if selector is None:
        return False
    errors: list[str] = []
    for index, term in enumerate(_items(selector, "nodeSelectorTerms", "", errors)):
        wrong: list[str] = []
        if _term_matches(term, node, f"nodeSelectorTerms[{index}]", wrong):
            return True
        errors += wrong
    if errors:
        raise InputError("; ".join(errors))
    return False


def _term_matches(term: object, node: NodeLabels, path: str, errors: list[str]) -> bool:
    fields = _requirements(term, "matchFields", path, errors)
    expressions = _requirements(term, "matchExpressions", path, errors)
    if errors or not (fields or expressions):
        return False
    return all(one.holds(node.name) for one in fields) and all(
        one.holds(node.labels.get(one.key)) for one in expressions
    )


def _requirements(term: object, name: str, path: str, errors: list[str]) -> list[_Requirement]:
    read: list[_Requirement] = []
    for index, found in enumerate(_items(term, name, path, errors)):
        where = f"{path}.{name}[{index}]"
        if not isinstance(found, Mapping):
            errors.append(f"{where}: found {found!r}, expected an object")
            continue
        values = found.get("values") or []
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            errors.append(f"{where}.values: found {values!r}, expected strings")
            continue
        requirement = _Requirement(
            str(found.get("key", "")), str(found.get("operator", "")), tuple(values)
        )
        wrong = _field_error(requirement) if name == "matchFields" else _label_error(requirement)
        if wrong:
            errors.append(f"{where}: {wrong}")
        else:
            read.append(requirement)
    return read


def _field_error(found: _Requirement) -> str:
    if found.key != _FIELD:
        return f"found key {found.key!r}, expected {_FIELD}"
    if found.operator not in ("In", "NotIn"):
        return f"found operator {found.operator!r}, expected In or NotIn"
    return "" if len(found.values) == 1 else f"found {len(found.values)} values, expected one"


def _label_error(found: _Requirement) -> str:
    if any(name_rules.label_key("key", found.key)):
        return f"found key {found.key!r}, expected the key of a label"
    count = len(found.values)
    match found.operator:
        case "In" | "NotIn":
            return "" if count else "found no values, expected some"
        case "Exists" | "DoesNotExist":
            return f"found {count} values, expected none" if count else ""
        case "Gt" | "Lt":
            if count == 1 and _INT64.fullmatch(found.values[0]):
                return ""
            return f"found values {list(found.values)}, expected one whole number"
    expected = "In, NotIn, Exists, DoesNotExist, Gt or Lt"
    return f"found operator {found.operator!r}, expected {expected}"


def _items(parent: object, name: str, path: str, errors: list[str]) -> Sequence[object]:
    """Return the list in a field of the parent; append what is malformed to the errors.

    An unknown field is an error like a wrong type: it may be meant to narrow the selection, so
    ignoring it could select too many nodes.
    """
    known = ("matchFields", "matchExpressions") if path else ("nodeSelectorTerms",)
    if not isinstance(parent, Mapping):
        errors.append(f"{path or 'nodeSelector'}: found {parent!r}, expected an object")
        return ()
    unknown = [key for key in parent if key not in known]
    if unknown and name == known[0]:
        errors.append(f"{path or 'nodeSelector'}: found {unknown}, expected {list(known)}")
    found = parent.get(name) or []
    if not isinstance(found, list):
        errors.append(f"{path + '.' if path else ''}{name}: found {found!r}, expected a list")
        return ()
    return found
