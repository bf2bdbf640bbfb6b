"""Nodes that a NodeSelector selects, and nodes on which a pod may run.

Selectors are evaluated as by component-helpers (package nodeaffinity). For pods, these are the
filters NodeUnschedulable, TaintToleration and NodeAffinity of kube-scheduler 1.36, in the order in
which it runs them. CPU, memory, ports, volumes and affinity between pods are not among them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.untyped_json import (
    as_list,
    as_map,
    map_at,
)

_INT64: Final = re.compile(r"[+-]?[0-9]{1,19}")
_NAME: Final = "metadata.name"
_LISTS: Final = ("matchFields", "matchExpressions")
_UNSCHEDULABLE: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
REPELLING: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep pods away, or claims; others do not."""


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


def selects(selector: object, node: NodeLabels) -> bool:
    """Return True if any of the selector's terms matches.

    An absent selector and an empty term match no node.

    Raises:
        InputError: No term matches and at least one is malformed; the text has an error of each.
    """
    if selector is None:
        return False
    errors: list[str] = []
    (terms,) = _lists("nodeSelector", selector, "", ("nodeSelectorTerms",)).values()
    for index, term in enumerate(terms):
        where = f"nodeSelectorTerms[{index}]"
        try:
            matches = [
                _matches(found, node, f"{where}.{name}[{number}]", of_name=name == "matchFields")
                for name, entries in _lists(where, term, f"{where}.", _LISTS).items()
                for number, found in enumerate(entries)
            ]
        except InputError as error:
            errors.append(str(error))
        else:
            if matches and all(matches):
                return True
    if errors:
        raise InputError("; ".join(errors))
    return False


def _lists(
    where: str, found: object, prefix: str, names: tuple[str, ...]
) -> dict[str, list[object]]:
    """Return the lists in an object's fields.

    An unknown field is an error like a wrong type: it may be meant to narrow the selection, so
    ignoring it could select too many nodes.
    """
    if not isinstance(found, Mapping):
        raise InputError(f"{where}: found {found!r}, expected an object")
    if unknown := [key for key in found if key not in names]:
        raise InputError(f"{where}: found {unknown}, expected {list(names)}")
    lists = {name: found.get(name) or [] for name in names}
    for name, entries in lists.items():
        if not isinstance(entries, list):
            raise InputError(f"{prefix}{name}: found {entries!r}, expected a list")
    return lists


def _matches(found: object, node: NodeLabels, where: str, *, of_name: bool) -> bool:
    """Return True if the node satisfies a requirement on its name or on one of its labels."""
    if not isinstance(found, Mapping):
        raise InputError(f"{where}: found {found!r}, expected an object")
    values = found.get("values") or []
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise InputError(f"{where}.values: found {values!r}, expected strings")
    key, operator = str(found.get("key", "")), str(found.get("operator", ""))
    if wrong := (_name_error if of_name else _label_error)(key, operator, values):
        raise InputError(f"{where}: {wrong}")
    value = node.name if of_name else node.labels.get(key)
    match operator:
        case "In" | "NotIn":
            return (value in values) is (operator == "In")
        case "Exists" | "DoesNotExist":
            return (value is not None) is (operator == "Exists")
    if value is None or not _INT64.fullmatch(value):
        return False
    return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])


def _name_error(key: str, operator: str, values: list[str]) -> str:
    if key != _NAME:
        return f"found key {key!r}, expected {_NAME}"
    if operator not in {"In", "NotIn"}:
        return f"found operator {operator!r}, expected In or NotIn"
    return "" if len(values) == 1 else f"found {len(values)} values, expected one"


def _label_error(key: str, operator: str, values: list[str]) -> str:
    if any(name_rules.label_key("key", key)):
        return f"found key {key!r}, expected the key of a label"
    match operator:
        case "In" | "NotIn":
            return "" if values else "found no values, expected some"
        case "Exists" | "DoesNotExist":
            return f"found {len(values)} values, expected none" if values else ""
        case "Gt" | "Lt":
            is_one_number = len(values) == 1 and _INT64.fullmatch(values[0])
            return "" if is_one_number else f"found values {values}, expected one whole number"
    return f"found operator {operator!r}, expected In, NotIn, Exists, DoesNotExist, Gt or Lt"


def refusal(pod: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """Return the first reason for which the node is unfit for the pod; "" if there is none."""
    spec, of_node = as_map(pod.get("spec")), as_map(node.get("spec"))
    tolerations = [as_map(entry) for entry in as_list(spec.get("tolerations"))]
    if of_node.get("unschedulable") and not tolerated(_UNSCHEDULABLE, tolerations):
        return "unschedulable (cordoned)"
    for taint in map(as_map, as_list(of_node.get("taints"))):
        if taint.get("effect") in REPELLING and not tolerated(taint, tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"taint {taint.get('key')}{value}:{taint['effect']} is not tolerated"
    labels = NodeLabels.of(node)
    for key, wanted in as_map(spec.get("nodeSelector")).items():
        own = labels.labels.get(key)
        if own != wanted:
            has = f"no label {key}" if own is None else f"{key}={own}"
            return f"nodeSelector {key}={wanted}, node has {has}"
    affinity = map_at(spec, "affinity", "nodeAffinity")
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    try:
        is_selected = required is None or selects(required, labels)
    except InputError as error:
        return f"nodeAffinity: {error}"
    return "" if is_selected else "nodeAffinity does not select it"


def tolerated(taint: Mapping[str, object], tolerations: Iterable[Mapping[str, object]]) -> bool:
    """Return True if a toleration matches the taint of a node or of a device.

    The rule is the same for both: core/v1, Toleration.ToleratesTaint, and
    dynamic-resource-allocation/resourceclaim/devicetoleration.go.
    """
    for toleration in tolerations:
        if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
            continue
        if toleration.get("key") and toleration["key"] != taint.get("key"):
            continue
        operator = toleration.get("operator") or "Equal"
        if operator == "Exists":
            return True
        if operator == "Equal" and (toleration.get("value") or "") == (taint.get("value") or ""):
            return True
    return False


def extended_resources(node: Mapping[str, Any], prefix: str) -> str:
    """Return the node's extended resources with this prefix and their amounts; "" for none."""
    capacity = (node.get("status") or {}).get("capacity") or {}
    return ", ".join(
        f"{name}: {amount}"
        for name, amount in sorted(capacity.items())
        if name.startswith(prefix) and str(amount) != "0"
    )
