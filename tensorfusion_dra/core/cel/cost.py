"""Estimate of an expression's worst-case cost, in CEL's own units, as the API server computes it.

The estimate follows cel-go's checker/cost.go. Functions that selectors use have costs of their own;
the cost of any other function follows from the length of what it reads. The maximum length and
number of attributes are those of dynamic-resource-allocation/cel/compile.go.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tensorfusion_dra.core.cel import macros
from tensorfusion_dra.core.cel.syntax import (
    Binary,
    Call,
    Index,
    ListLiteral,
    Literal,
    Logic,
    MapLiteral,
    Message,
    Name,
    Node,
    Select,
    Ternary,
    children,
)

MAX_COST: Final = 1_000_000
"""CELSelectorExpressionMaxCost of resource.k8s.io."""

_LIST, _MAP, _MESSAGE = 10, 30, 40
_PER_CHARACTER: Final = 0.1
_PER_REGEX_CHARACTER: Final = 0.25
_REGEX: Final = frozenset({"matches", "find", "findAll"})
_SEARCHES: Final = frozenset({"contains", "indexOf", "lastIndexOf"})
_READ_AND_WRITE: Final = frozenset({"split", "replace"})
_SCALARS: Final = frozenset(
    {"size", "isGreaterThan", "isLessThan", "compareTo", "add", "sub", "sign", "asInteger"}
    | {"asApproximateFloat", "isInteger", "major", "minor", "patch", "dyn", "type", "int", "double"}
    | {"uint", "bool", "hasValue"}
)
_OPTIONAL: Final = frozenset({"of", "ofNonZeroValue", "none", "value", "orValue", "or"})
_READS_ARGUMENT: Final = frozenset(
    {"quantity", "isQuantity", "semver", "isSemver", "startsWith", "endsWith"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """Cost of a part of an expression, and the maximum size of its value.

    Attributes:
        size: Characters of a string, or number of entries; 1 for a scalar.
        key: Size of what a macro iterates over: an item of a list, a key of a map.
        of: Weight of an entry that is looked up by name; None if it is unknown.
    """

    cost: float = 0
    size: float = math.inf
    key: float = math.inf
    of: "Weight | None" = None


_SCALAR: Final = Weight(size=1)
_BY_ID: Final = Weight(size=32, key=32, of=Weight(size=64, key=64))
_DEVICE: Final = {
    "driver": Weight(size=63),
    "allowMultipleAllocations": _SCALAR,
    "attributes": Weight(size=32, key=63, of=_BY_ID),
    "capacity": Weight(size=32, key=63, of=replace(_BY_ID, of=Weight(size=8))),
}
Weights = Mapping[str, Weight]


def estimate(node: Node) -> float:
    """Return the worst-case cost; infinite if a loop iterates over a value of unknown size."""
    return _weight(node, {}).cost


def _weight(node: Node, bound: Weights) -> Weight:
    match node:
        case Literal(token=token):
            value = token.value
            return Weight(size=len(value) if isinstance(value, str | bytes) else 1)
        case Name(token=token):
            return replace(bound.get(token.text, Weight()), cost=1)
        case Select() | Index():
            return _looked_up(node, bound)
        case Call():
            return _call(node, bound)
        case Binary():
            return _binary(node, bound)
    return _composed(node, [_weight(child, bound) for child in children(node)])


def _composed(node: Node, parts: Sequence[Weight]) -> Weight:
    cost = sum(part.cost for part in parts)
    match node:
        case Logic():
            return Weight(cost=cost, size=1)
        case Ternary():
            test, yes, no = parts
            larger = max(yes, no, key=lambda part: part.size)
            return replace(larger, cost=test.cost + max(yes.cost, no.cost))
        case ListLiteral():
            key = max((part.size for part in parts), default=0)
            return Weight(cost=cost + _LIST, size=len(parts), key=key)
        case MapLiteral(entries=entries):
            return Weight(cost=cost + _MAP, size=len(entries))
        case Message():
            return Weight(cost=cost + _MESSAGE)
    return Weight(cost=cost + 1, size=1)  # ! and -


def _looked_up(node: Select | Index, bound: Weights) -> Weight:
    target = _weight(node.target, bound)
    cost = target.cost + 1
    if isinstance(node, Index):
        cost += _weight(node.key, bound).cost
    elif isinstance(node.target, Name) and node.target.token.text == "device":
        return replace(_DEVICE.get(node.name.text, Weight()), cost=cost)
    return replace(target.of or Weight(size=target.key), cost=cost)


def _binary(node: Binary, bound: Weights) -> Weight:
    left, right = _weight(node.left, bound), _weight(node.right, bound)
    cost = left.cost + right.cost
    match node.operator.text:
        case "in":
            return Weight(cost=cost + (1 if right.of else right.size), size=1)
        case "==" | "!=":
            return Weight(cost=cost + _read(min(left.size, right.size)), size=1)
        case "+" if left.size != 1 and right.size != 1:
            size = left.size + right.size
            return Weight(cost=cost + max(1, _read(size)), size=size, key=max(left.key, right.key))
    return Weight(cost=cost + 1, size=1)


def _call(node: Call, bound: Weights) -> Weight:
    if macros.is_bind(node):
        value = _weight(node.arguments[1], bound)
        result = _weight(node.arguments[2], {**bound, _name(node.arguments[0]): value})
        return replace(result, cost=_LIST + value.cost + result.cost)
    target = _SCALAR
    if node.target is not None and (_name(node.target) in bound or not _name(node.target)):
        target = _weight(node.target, bound)  # otherwise a namespace, as in optional.of(x)
    if macros.bound(node):
        return _loop(node, target, bound)
    arguments = [_weight(argument, bound) for argument in node.arguments]
    cost = target.cost + sum(argument.cost for argument in arguments)
    result = _function(node.name.text, target, arguments)
    return replace(result, cost=cost + result.cost)


def _function(name: str, target: Weight, arguments: Sequence[Weight]) -> Weight:
    """Return the cost of the function itself, and the size of its result."""
    first = arguments[0] if arguments else Weight(size=0)
    size = max(target.size, *(argument.size for argument in arguments), 1)
    cost: float = max(1, _read(size))
    if name in _REGEX:
        size = target.size
        cost = _read(size + 1) * math.ceil(first.size * _PER_REGEX_CHARACTER)
    elif name in _SEARCHES:
        size, cost = 1, _read(target.size) * _read(first.size)
    elif name in _READ_AND_WRITE:
        size = target.size * size
        cost = _read(2 * target.size)
    elif name in _READS_ARGUMENT:
        size, cost = 1, _read(first.size)
    elif name in _SCALARS:
        size, cost = 1, 1
    elif name in _OPTIONAL:
        cost = 1
    return Weight(cost=cost, size=size, key=size)


def _loop(node: Call, target: Weight, bound: Weights) -> Weight:
    """Return the weight of a macro as cel-go expands it: start, test and step per item, result."""
    count = macros.bound(node)
    names = map(_name, node.arguments[:count])
    # The value of an optional has the size of the optional.
    item = target if node.name.text.startswith("opt") else Weight(size=target.key, key=target.key)
    inner = {**bound, **dict.fromkeys(names, item)}
    parts = [_weight(argument, inner) for argument in node.arguments[count:]]
    cost = sum(part.cost for part in parts)
    match node.name.text:
        case "all":
            start, step, result = 0.0, 3 + cost, 1.0
        case "exists":
            start, step, result = 0.0, 4 + cost, 1.0
        case "exists_one" | "existsOne":
            start, step, result = 0.0, 2 + cost, 2.0
        case "optMap" | "optFlatMap":
            return Weight(cost=target.cost + cost + _LIST + 3, size=parts[-1].size)
        case "filter":
            start, step, result = _LIST, cost + _LIST + 3, 1.0
        case _:
            start, step, result = _MAP, cost + _MAP + 2, 1.0
            if "Map" not in node.name.text:
                start, step = _LIST, cost + _LIST + 2
    is_bool = start == 0
    return Weight(
        cost=target.cost + start + target.size * step + result,
        size=1 if is_bool else target.size,
        key=parts[-1].size if node.name.text != "filter" else target.key,
    )


def _name(node: Node) -> str:
    return node.token.text if isinstance(node, Name) else ""


def _read(size: float) -> float:
    return size if math.isinf(size) else math.ceil(size * _PER_CHARACTER)
