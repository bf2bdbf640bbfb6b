"""The user guide's form of CEL for selectors, and its translation (user guide, 5.2 to 5.4).

In the guide an attribute is looked up by its name alone, ``device.attributes["model"]``, and an
amount is converted to a number by ``.AsApproximateFloat64()``. Kubernetes supports neither.

- ``device.attributes["model"]`` is looked up under the driver's domain. A key is a name of the
  guide if it is a C identifier and nothing is looked up in its value: neither ``.field`` nor
  ``[key]`` follows. Any other key is a domain, as in Kubernetes, and stays unchanged.
- ``.AsApproximateFloat64()`` becomes Kubernetes' ``asApproximateFloat``. Amounts that devices
  publish as strings (``node_total_vram``) become quantities first.
- A condition on a capacity that only oversubscribing pools have is guarded by ``has()``, so that it
  is false on other devices. Without the guard it would stop the scheduling of the pod. A condition
  is the smallest part between ``&&``, ``||`` and ``!``. Attributes need no guard: every device of
  this driver has every attribute that the guide knows.

Everything else, whitespace and comments included, stays unchanged.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Final, Literal, NoReturn

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import syntax
from tensorfusion_dra.core.cel.syntax import CelError, SyntaxNode
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.device import Node, Reading, Version, build_devices
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory, TflopsSource
from tensorfusion_dra.core.kubernetes.quantity import GIB

MAX_EXPRESSION_BYTES: Final = 10_240
"""CELSelectorExpressionMaxLength of resource.k8s.io."""

_TO_NUMBER: Final = "AsApproximateFloat64"
"""The guide's method; Kubernetes has asApproximateFloat."""


class ValueKind(StrEnum):
    """Kind of a value, as far as the guide distinguishes kinds; the values appear in errors."""

    STRING = "a string"
    INT = "an integer"
    BOOL = "a boolean"
    DOUBLE = "a double"
    VERSION = "a version"
    QUANTITY = "a Quantity"
    AMOUNT = "a string that holds an amount"
    DEVICE = "the device"
    ATTRIBUTES = "the attributes"
    CAPACITY = "the capacity"
    UNKNOWN = "a value"


_KINDS: Final[Mapping[type, ValueKind]] = {
    str: ValueKind.STRING,
    int: ValueKind.INT,
    bool: ValueKind.BOOL,
    Version: ValueKind.VERSION,
}
_CARD: Final = Gpu(
    uuid="GPU-0",
    index=0,
    minor=None,
    product_name="",
    model="",
    milli_tflops=1,
    tflops_source=TflopsSource.TABLE,
    vram_bytes=GIB,
)
ATTRIBUTES: Final = {
    # Of the strings only amounts begin with a digit here.
    name: ValueKind.AMOUNT
    if isinstance(value, str) and value[:1].isdigit()
    else _KINDS[type(value)]
    for each in build_devices(
        Reading(inventory=Inventory(gpus=(_CARD,)), node=Node(name="node", gpupool="pool", qos=""))
    )
    for name, value in each.attributes.items()
}
"""Attributes of every device of this driver, those of the guide among them."""

NOT_ON_EVERY_DEVICE: Final = capacity.VIRTUAL
"""Capacities that only the devices of oversubscribing pools have."""

CAPACITIES: Final = dict.fromkeys(
    (names.CAPACITY_TFLOPS, names.CAPACITY_VRAM, *sorted(NOT_ON_EVERY_DEVICE)), ValueKind.QUANTITY
)

_DRIVER: Final = syntax.quoted(names.DRIVER)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LITERALS: Final = {"string": ValueKind.STRING, "int": ValueKind.INT, "double": ValueKind.DOUBLE}
_FIELDS: Final = {"attributes": ValueKind.ATTRIBUTES, "capacity": ValueKind.CAPACITY}
_KNOWN: Final = {
    ValueKind.ATTRIBUTES: ("attribute", ATTRIBUTES),
    ValueKind.CAPACITY: ("capacity", CAPACITIES),
}
"""Entries of each of the device's maps: their name for texts, and their kinds by name."""

_Names = AbstractSet[str]
_Use = Literal["member", "either", "value"]
"""Use of a value by the expression around it. In a member something is looked up, as in the
attributes of a domain. In a value nothing is, so an index before it names an attribute. An argument
of `size` may be either.
"""


@functools.lru_cache(maxsize=8)
def translate(expression: str) -> str:
    """Translate an expression to Kubernetes' CEL; return it unchanged if it is that already.

    Raises:
        CelError: It is no CEL, is too long before or after its translation, or no device could
            evaluate it.
    """
    _check_length(expression, expression, "")
    translation = _Translation(expression)
    translation.condition(syntax.parse(expression), frozenset(), conjunct=True)
    translated = translation.text()
    _check_length(translated, expression, " when translated")
    return translated


def _check_length(text: str, expression: str, when: str) -> None:
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_EXPRESSION_BYTES:
        raise CelError(
            f"found {size} bytes{when}, expected at most {MAX_EXPRESSION_BYTES}",
            expression=expression,
            offset=0,
        )


class _Translation:
    """One walk through an expression; its lookups tell the guide's form from Kubernetes' CEL."""

    def __init__(self, expression: str) -> None:
        self._expression: Final = expression
        self._replaced: Final[dict[int, tuple[int, str]]] = {}  # end and new text, by the start
        self._inserted: Final = defaultdict[int, str](str)
        # For each condition around the current node: the capacities in it that a device may lack.
        self._lacking: Final[list[list[str]]] = []

    def text(self) -> str:
        """Return the translated text; all that is not edited stays the same, byte for byte."""
        edits = [(start, *replaced) for start, replaced in self._replaced.items()]
        edits += [(at, at, text) for at, text in self._inserted.items()]
        parts, end = [], 0
        for start, stop, text in sorted(edits):
            parts += [self._expression[end:start], text]
            end = stop
        return "".join([*parts, self._expression[end:]])

    def condition(self, node: SyntaxNode, bound: _Names, *, conjunct: bool) -> None:
        """Translate a condition, such that it is false on devices that lack one of its capacities.

        Args:
            bound: Names that macros around it bind.
            conjunct: True if the condition stands alone or is an operand of ``&&``, so that one
                more ``&&`` needs no parentheses.
        """
        if node.form == "ternary":
            for part in node.parts:
                self.condition(part, bound, conjunct=False)
            return
        self._lacking.append([])
        if syntax.is_bind(node):
            variable, initial, result = node.arguments
            self._value(initial, bound, "either")
            self.condition(result, bound | {self._text(variable)}, conjunct=True)
        else:
            self._value(node, bound)
        needed = dict.fromkeys(self._lacking.pop())
        if needed:
            guard = "".join(f"has(device.capacity[{_DRIVER}].{name}) && " for name in needed)
            self._wrap(node, guard if conjunct else f"({guard}", "" if conjunct else ")")

    def _value(self, node: SyntaxNode, bound: _Names, use: _Use = "value") -> ValueKind:
        """Translate a part of any kind; return its kind."""
        match node.form:
            case "name":
                is_device = node.text == "device" and (node.is_optional or "device" not in bound)
                return ValueKind.DEVICE if is_device else ValueKind.UNKNOWN
            case "select":
                is_field = self._value(node.parts[0], bound, "member") is ValueKind.DEVICE
                if is_field and not node.is_optional:
                    return _FIELDS.get(node.text, ValueKind.UNKNOWN)
            case "index":
                return self._index(node, bound, use)
            case "call" | "method":
                return self._call(node, bound)
            case "logic" | "unary" if node.text != "-":
                for part in node.parts:
                    self.condition(part, bound, conjunct=node.text == "&&")
            case "binary" | "unary":
                self._operation(node, bound)
            case "ternary":
                self.condition(node.parts[0], bound, conjunct=False)
                for part in node.parts[1:]:
                    self._value(part, bound, use)
            case "list" | "map":
                for part in node.parts:
                    self._value(part, bound, "either")
        return _LITERALS.get(node.form, ValueKind.UNKNOWN)

    def _index(self, node: SyntaxNode, bound: _Names, use: _Use) -> ValueKind:
        of, key = node.parts
        target = self._value(of, bound, "member")
        self._value(key, bound)
        name = key.string()
        if node.is_optional or name is None or target not in _KNOWN:
            return ValueKind.UNKNOWN
        what, known = _KNOWN[target]
        is_name = _IDENTIFIER.fullmatch(name) is not None and use != "member"
        if not is_name or (use == "either" and name not in known):
            return ValueKind.UNKNOWN
        if name not in known:
            self._refuse(
                f"found {what} {name!r}, expected one of {', '.join(known)}; any other needs its "
                f'domain, such as {self._text(of)}["{names.DRIVER}"].{name}',
                key.at,
            )
        self._replace(key, _DRIVER)
        self._wrap(node, "", f".{name}")
        if name in NOT_ON_EVERY_DEVICE:
            self._lacking[-1].append(name)
        return known[name]

    def _call(self, node: SyntaxNode, bound: _Names) -> ValueKind:
        if (node.form, node.text, len(node.parts)) == ("call", "has", 1):
            self._lacking.append([])  # has() itself needs no guard
            self._value(node.parts[0], bound)
            self._lacking.pop()
            return ValueKind.UNKNOWN
        count = syntax.bindings(node)
        use: _Use = (
            "either" if node.text in {"size", "dyn", "type"} or syntax.is_bind(node) else "value"
        )
        if node.form == "method":
            is_loop = count > 0 and not node.text.startswith("opt")
            target = self._value(node.parts[0], bound, "member" if is_loop else use)
            if node.text == _TO_NUMBER:
                self._to_number(node, target)
        inner = bound | {self._text(each) for each in node.arguments[:count]}
        for argument in node.arguments[count:]:
            self._value(argument, inner, use)
        return ValueKind.UNKNOWN

    def _to_number(self, node: SyntaxNode, target: ValueKind) -> None:
        if target is ValueKind.AMOUNT:
            self._wrap(node.parts[0], "quantity(", ")")
        elif target not in (ValueKind.QUANTITY, ValueKind.UNKNOWN):
            self._refuse(f"found {_TO_NUMBER}() of {target.value}, expected a Quantity", node.at)
        self._replace(node, "asApproximateFloat")

    def _operation(self, node: SyntaxNode, bound: _Names) -> None:
        """Translate a comparison, ``in`` or arithmetic; refuse amounts that are not converted.

        A Quantity can only be compared for equality with another one. The strings that hold amounts
        would be ordered by their letters, "9Gi" after "80Gi".
        """
        nodes = node.parts
        if node.text == "in":
            first, right = node.parts
            nodes = (first, *right.parts) if right.form == "list" else (first,)
            if right.form != "list":
                self._value(right, bound, "member")
        kinds = [self._value(each, bound) for each in nodes]
        is_alike = node.text in {"==", "!=", "in"} and {*kinds} <= {
            ValueKind.QUANTITY,
            ValueKind.UNKNOWN,
        }
        for operand, kind in zip(nodes, kinds, strict=True):
            if (kind is ValueKind.QUANTITY and not is_alike) or (
                kind is ValueKind.AMOUNT and node.text in {"<", "<=", ">", ">="}
            ):
                self._refuse(
                    f"found {kind.value} as operand of {node.text}, "
                    f"expected {self._text(operand)}.{_TO_NUMBER}()",
                    operand.start,
                )

    def _replace(self, node: SyntaxNode, text: str) -> None:
        """Replace the text of a node: its literal or name."""
        self._replaced[node.at] = (node.at + len(node.text), text)

    def _wrap(self, node: SyntaxNode, before: str, after: str) -> None:
        """Insert text around a node, outside of what earlier calls inserted there."""
        self._inserted[node.start] = before + self._inserted[node.start]
        self._inserted[node.end] += after

    def _text(self, node: SyntaxNode) -> str:
        return self._expression[node.start : node.end]

    def _refuse(self, reason: str, offset: int) -> NoReturn:
        raise CelError(reason, expression=self._expression, offset=offset)
