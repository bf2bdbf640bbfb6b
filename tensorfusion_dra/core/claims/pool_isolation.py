"""Isolation that a GPUPool sets for its nodes (Tensor Fusion's internal/utils/node_isolation.go).

`spec.nodeManagerConfig.isolationModeRules` are evaluated in order: the first rule whose label
selector selects the node sets the mode. If none does, `defaultIsolationMode` sets it.

An administrator writes the pool, so its mode counts as an administrator's choice. It replaces the
node's setting and applies to every share of the node whose class, claim and pod set no mode. A
tenant may name the same mode.
"""

from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import node_selector
from tensorfusion_dra.core.kubernetes.node_selector import NodeLabels
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

_PATH: Final = "spec.nodeManagerConfig"
_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


def has_rules(pool: Mapping[str, Any]) -> bool:
    """Return True if the mode depends on the node's labels."""
    return bool(as_list(_config(pool).get("isolationModeRules")))


def of_node(pool: Mapping[str, Any], node: NodeLabels) -> Isolation | None:
    """Return the isolation that the pool sets for the node; None if it sets none.

    Raises:
        InputError: This driver does not have the mode, or a rule is malformed.
    """
    config = _config(pool)
    for index, rule in enumerate(map(as_map, as_list(config.get("isolationModeRules")))):
        path = f"{_PATH}.isolationModeRules[{index}]"
        try:
            matches = _selects(rule.get("selector"), node)
        except InputError as error:
            raise InputError(f"{path}.selector: {error}") from error
        if matches:
            return _mode(f"{path}.mode", rule.get("mode"))
    default = config.get("defaultIsolationMode")
    # An empty mode counts as absent, as in Tensor Fusion.
    return _mode(f"{_PATH}.defaultIsolationMode", default) if default else None


def modes(pool: Mapping[str, Any]) -> frozenset[Isolation]:
    """Return the modes that the pool may set for any of its nodes; unknown modes are skipped."""
    config = _config(pool)
    rules = map(as_map, as_list(config.get("isolationModeRules")))
    found = (config.get("defaultIsolationMode"), *(rule.get("mode") for rule in rules))
    return frozenset(mode for mode in Isolation if mode in found)


def _config(pool: Mapping[str, Any]) -> Mapping[str, object]:
    return as_map(as_map(pool.get("spec")).get("nodeManagerConfig"))


def _mode(path: str, found: object) -> Isolation:
    try:
        return share_policy.isolation(found)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _selects(selector: object, node: NodeLabels) -> bool:
    """Return True if a LabelSelector (meta/v1) selects the node.

    An absent selector selects no node, an empty one all.

    Raises:
        InputError: The selector is malformed.
    """
    if selector is None:
        return False
    if not isinstance(selector, Mapping):
        raise InputError(f"found {selector!r}, expected an object")
    unknown = sorted(map(str, selector.keys() - {"matchLabels", "matchExpressions"}))
    if unknown:
        raise InputError(f"found {unknown}, expected matchLabels and matchExpressions")
    wanted = [
        {"key": key, "operator": "In", "values": [value]}
        for key, value in as_map(selector.get("matchLabels")).items()
    ]
    expressions = as_list(selector.get("matchExpressions"))
    for each in map(as_map, expressions):
        if each.get("operator") not in _OPERATORS:
            known = ", ".join(sorted(_OPERATORS))
            raise InputError(f"found operator {each.get('operator')!r}, expected one of {known}")
    if not wanted and not expressions:
        return True
    term = {"matchExpressions": [*wanted, *expressions]}
    return node_selector.selects({"nodeSelectorTerms": [term]}, node)
