"""Translation of the user guide's selectors to Kubernetes' CEL.

- ``device.attributes["model"]`` is looked up under the driver's domain. A key is a name of the
  dialect if it is a C identifier and nothing is looked up in its value: neither ``.field`` nor
  ``[key]`` follows. Any other key is a domain, as in Kubernetes, and stays unchanged.
- ``.AsApproximateFloat64()`` becomes Kubernetes' ``asApproximateFloat``. Amounts that devices
  publish as strings (``node_total_vram``) become quantities where they are compared as numbers.
- Kubernetes compares numbers of different types by ``<``, ``<=``, ``>`` and ``>=``, but not by
  ``==`` and ``in``, and has no arithmetic on mixed types. Beside amounts, integers become doubles.
- A condition on a capacity that only oversubscribing pools have is guarded by ``has()``, so that it
  is false on other devices. Without the guard it would stop the scheduling of the pod. A condition
  is the smallest part between ``&&``, ``||`` and ``!``. Attributes need no guard: every device of
  this driver has every attribute that the dialect knows.

Everything else, whitespace and comments included, stays unchanged.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, NoReturn

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import dialect, edits, syntax
from tensorfusion_dra.core.cel.dialect import Kind
from tensorfusion_dra.core.cel.edits import Edit
from tensorfusion_dra.core.cel.syntax import CelError, Node
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import QuantityError

MAX_EXPRESSION_BYTES: Final = 10_240
"""CELSelectorExpressionMaxLength of resource.k8s.io."""

_DRIVER: Final = syntax.quoted(names.DRIVER)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ORDER: Final = frozenset({"<", "<=", ">", ">="})
_TAKES_ANYTHING: Final = frozenset({"size", "dyn", "type"})
_SUMS: Final = frozenset({"add", "sub"})
_NUMBERS: Final = frozenset({Kind.INT, Kind.DOUBLE, Kind.NUMBER})
_KINDS: Final = {"string": Kind.STRING, "int": Kind.INT, "double": Kind.DOUBLE}
_FIELDS: Final = {"attributes": Kind.ATTRIBUTES, "capacity": Kind.CAPACITY}
_LOOKED_UP: Final = {Kind.AMOUNT: Kind.KUBERNETES_AMOUNT, Kind.VERSION: Kind.UNKNOWN}
"""Kinds of the driver's attributes that differ if they are looked up as Kubernetes does."""

_Names = Mapping[str, Kind]


class _Operand(NamedTuple):
    node: Node
    kind: Kind


_Use = Literal["member", "either", "value"]
"""Use of a value by the expression around it.

Of a member something is looked up, as of the attributes of a domain. A value is no such thing, so
that an index before it names an attribute. Both are possible as an argument of `size`.
"""


def translate(expression: str) -> str:
    """Translate an expression to Kubernetes' CEL; return it unchanged if it is that already.

    Raises:
        CelError: It is no CEL, is too long before or after its translation, or it is in the dialect
            and no device could evaluate it.
    """
    return edits.applied(expression, changes(expression))


def changes(expression: str) -> tuple[Edit, ...]:
    """Return the edits that `translate` applies, in the order of the expression.

    Raises:
        CelError: As from `translate`.
    """
    _check_length(expression, expression, "")
    translation = _Translation(expression)
    translation.condition(syntax.parse(expression), {}, conjunct=True)
    found = translation.edits()
    _check_length(edits.applied(expression, found), expression, " when translated")
    return found


def _check_length(text: str, expression: str, when: str) -> None:
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_EXPRESSION_BYTES:
        raise CelError(
            f"found {size} bytes{when}, expected at most {MAX_EXPRESSION_BYTES}",
            expression=expression,
            offset=0,
        )


class _Translation:
    """One walk through an expression; its lookups distinguish the dialect from Kubernetes' CEL."""

    def __init__(self, expression: str) -> None:
        self._expression: Final = expression
        self._replaced: Final[dict[int, Edit]] = {}
        self._opening: Final = defaultdict[int, str](str)
        self._closing: Final = defaultdict[int, str](str)
        # For each condition around the current node: the capacities in it that a device may lack.
        self._lacking: Final[list[list[str]]] = []

    def edits(self) -> tuple[Edit, ...]:
        """Return the edits in the order of the text; insertions at one place are merged."""
        inserted = self._closing.copy()
        for offset, text in self._opening.items():
            inserted[offset] += text
        insertions = [Edit(offset, offset, text) for offset, text in inserted.items() if text]
        # An insertion at the start of a replacement sorts before it, because its end is smaller.
        return tuple(sorted([*insertions, *self._replaced.values()]))

    def condition(self, node: Node, bound: _Names, *, conjunct: bool) -> None:
        """Translate a condition, such that it is false on devices that lack one of its capacities.

        Args:
            conjunct: True if the condition stands alone or is an operand of ``&&``, so that one
                more ``&&`` needs no parentheses.
        """
        if node.form == "ternary":
            for part in node.parts:
                self.condition(part, bound, conjunct=False)
            return
        self._lacking.append([])
        if syntax.is_bind(node):
            self.condition(node.arguments[2], self._bind(node, bound), conjunct=True)
        else:
            self.value(node, bound)
        needed = dict.fromkeys(self._lacking.pop())
        if needed:
            guard = "".join(f"has(device.capacity[{_DRIVER}].{name}) && " for name in needed)
            self._wrap(node, guard if conjunct else f"({guard}", "" if conjunct else ")")

    def value(self, node: Node, bound: _Names, use: _Use = "value") -> Kind:
        """Translate a part of any kind; return its kind."""
        kind = _KINDS.get(node.form, Kind.UNKNOWN)
        match node.form:
            case "name":
                kind = Kind.DEVICE if node.text == "device" else Kind.UNKNOWN
                kind = kind if node.is_optional else bound.get(node.text, kind)
            case "select":
                target = self.value(node.parts[0], bound, "member")
                kind = Kind.UNKNOWN if node.is_optional else _field(target, node.text)
            case "index":
                kind = self._index(node, bound, use)
            case "call" | "method":
                kind = self._call(node, bound, use)
            case "logic" | "unary" if node.text != "-":
                for part in node.parts:
                    self.condition(part, bound, conjunct=node.text == "&&")
                kind = Kind.BOOL
            case "binary" | "unary":
                kind = self._operation(node, bound)
            case "ternary":
                self.condition(node.parts[0], bound, conjunct=False)
                kind = self._alike(self._operands(node.parts[1:], bound, use))
            case "list" | "map":
                parts = self._operands(node.parts, bound, "either")
                if node.form == "list":
                    self._alike(parts)
        return kind

    def _operands(self, nodes: Sequence[Node], bound: _Names, use: _Use) -> list[_Operand]:
        return [_Operand(node, self.value(node, bound, use)) for node in nodes]

    def _index(self, node: Node, bound: _Names, use: _Use) -> Kind:
        of, key = node.parts
        target = self.value(of, bound, "member")
        self.value(key, bound)
        name = key.string()
        if node.is_optional or name is None:
            return Kind.CAPACITY_OF_A_DRIVER if target is Kind.CAPACITY else Kind.UNKNOWN
        if target not in (Kind.ATTRIBUTES, Kind.CAPACITY):
            return _field(target, name)
        is_attribute = target is Kind.ATTRIBUTES
        known = dialect.ATTRIBUTES if is_attribute else dialect.CAPACITIES
        is_name = _IDENTIFIER.fullmatch(name) is not None and use != "member"
        if not is_name or (use == "either" and name not in known):
            if not is_attribute:
                return Kind.CAPACITY_OF_A_DRIVER
            return Kind.OUR_ATTRIBUTES if name == names.DRIVER else Kind.UNKNOWN
        if name not in known:
            self._refuse(
                f"found {'attribute' if is_attribute else 'capacity'} {name!r}, "
                f"expected one of {', '.join(known)}; any other needs its domain, such as "
                f'{self._text(of)}["{names.DRIVER}"].{name}',
                key.at,
            )
        self._replace(key, _DRIVER)
        self._wrap(node, "", f".{name}")
        if name in dialect.NOT_ON_EVERY_DEVICE:
            self._lacking[-1].append(name)
        return dialect.ATTRIBUTES[name] if is_attribute else Kind.QUANTITY

    def _bind(self, node: Node, bound: _Names) -> _Names:
        """Return the names that are bound in the last argument of ``cel.bind``."""
        variable, initial, _ = node.arguments
        return {**bound, self._text(variable): self.value(initial, bound, "either")}

    def _call(self, node: Node, bound: _Names, use: _Use) -> Kind:
        if syntax.is_has(node):
            self._lacking.append([])  # has() itself needs no guard
            self.value(node.parts[0], bound)
            self._lacking.pop()
            return Kind.BOOL
        if syntax.is_bind(node):
            return self.value(node.arguments[2], self._bind(node, bound), use)
        count = syntax.bound(node)
        takes_anything = node.text in _TAKES_ANYTHING
        target = Kind.UNKNOWN
        if node.form == "method":
            use = "either" if takes_anything else "value"
            is_loop = count > 0 and not node.text.startswith("opt")
            target = self.value(node.parts[0], bound, "member" if is_loop else use)
            if node.text == dialect.TO_NUMBER:
                return self._to_number(node, _Operand(node.parts[0], target))
        inner = {
            **bound,
            **{self._text(each): Kind.UNKNOWN for each in node.arguments[:count]},
        }
        for argument in node.arguments[count:]:
            self.value(argument, inner, "either" if takes_anything else "value")
        is_sum = target is Kind.QUANTITY and node.text in _SUMS
        is_quantity = node.form == "call" and node.text == "quantity"
        return Kind.QUANTITY if is_sum or is_quantity else Kind.UNKNOWN

    def _to_number(self, node: Node, target: _Operand) -> Kind:
        if target.kind in (Kind.AMOUNT, Kind.KUBERNETES_AMOUNT):
            self._wrap(target.node, "quantity(", ")")
        elif target.kind not in (Kind.QUANTITY, Kind.UNKNOWN):
            self._refuse(
                f"found {dialect.TO_NUMBER}() of {target.kind.value}, expected a Quantity", node.at
            )
        self._replace(node, "asApproximateFloat")
        return Kind.NUMBER

    def _operation(self, node: Node, bound: _Names) -> Kind:
        """Translate a comparison, ``in`` or arithmetic."""
        operator, right = node.text, node.parts[-1]
        is_listed = operator == "in" and right.form == "list"
        operands = self._operands(
            node.parts[:1] if operator == "in" else node.parts, bound, "value"
        )
        if is_listed:
            operands += self._operands(right.parts, bound, "value")
        elif operator == "in":
            self.value(right, bound, "member")
        self._refuse_quantities(operator, operands)
        if operator in _ORDER:
            for side, other in (operands, reversed(operands)):
                self._order(side, other)
        elif operator in ("==", "!=", "in"):
            self._alike(operands)
        else:
            return self._calculated(operator, operands)
        return Kind.BOOL

    def _refuse_quantities(self, operator: str, operands: Sequence[_Operand]) -> None:
        """Refuse a Quantity as an operand, except where it is compared with another by equality."""
        is_equality = operator in ("==", "!=", "in")
        unlike = [each for each in operands if each.kind not in (Kind.QUANTITY, Kind.UNKNOWN)]
        for side in operands:
            if side.kind is Kind.QUANTITY and (unlike or not is_equality):
                self._refuse(
                    f"found a Quantity as operand of {operator}, "
                    f"expected {self._text(side.node)}.{dialect.TO_NUMBER}()",
                    side.node.start,
                )

    def _order(self, side: _Operand, other: _Operand) -> None:
        """Translate a side of ``<``, ``<=``, ``>`` or ``>=``; two strings are compared as such."""
        if side.kind is not Kind.AMOUNT:
            return
        text = other.node.string()
        if text is not None:
            try:
                quantity.parse(text)
            except QuantityError as error:
                self._refuse(str(error), other.node.at)
            self._number(other.node)
        if text is not None or other.kind is not Kind.STRING:
            self._number(side.node)

    def _calculated(self, operator: str, operands: Sequence[_Operand]) -> Kind:
        kinds = {operand.kind for operand in operands}
        if operator == "+" and Kind.STRING in kinds:
            return Kind.STRING
        if kinds.isdisjoint({Kind.AMOUNT, Kind.NUMBER}):
            is_kept = len(operands) == 1 or kinds == {Kind.INT}
            return operands[0].kind if is_kept else Kind.UNKNOWN
        for operand in operands:
            self._double(operand)
        return Kind.NUMBER

    def _alike(self, operands: Sequence[_Operand]) -> Kind:
        """Translate values that must be of one kind; return that kind."""
        kinds = {operand.kind for operand in operands}
        if Kind.NUMBER in kinds or (Kind.AMOUNT in kinds and not kinds.isdisjoint(_NUMBERS)):
            for operand in operands:
                self._double(operand)
            return Kind.NUMBER
        return kinds.pop() if len(kinds) == 1 else Kind.UNKNOWN

    def _number(self, node: Node) -> None:
        self._wrap(node, "quantity(", ").asApproximateFloat()")

    def _double(self, operand: _Operand) -> None:
        node = operand.node
        if operand.kind is Kind.AMOUNT:
            self._number(node)
        elif operand.kind is Kind.INT:
            if node.form == "unary":
                self._double(_Operand(node.parts[0], Kind.INT))
            elif node.form == "int":
                number = int(node.text.rstrip("uU"), 16 if "x" in node.text else 10)
                self._replace(node, f"{number}.0")
            else:
                self._wrap(node, "double(", ")")

    def _replace(self, node: Node, text: str) -> None:
        """Replace the text of a node: its literal or name; a repeated call changes nothing."""
        self._replaced[node.at] = Edit(node.at, node.at + len(node.text), text)

    def _wrap(self, node: Node, before: str, after: str) -> None:
        """Insert text around a node, outside of what earlier calls inserted there."""
        self._opening[node.start] = before + self._opening[node.start]
        self._closing[node.end] += after

    def _text(self, node: Node) -> str:
        return self._expression[node.start : node.end]

    def _refuse(self, reason: str, offset: int) -> NoReturn:
        raise CelError(reason, expression=self._expression, offset=offset)


def _field(target: Kind, name: str) -> Kind:
    match target:
        case Kind.DEVICE:
            return _FIELDS.get(name, Kind.UNKNOWN)
        case Kind.OUR_ATTRIBUTES:
            kind = dialect.ATTRIBUTES.get(name, Kind.UNKNOWN)
            return _LOOKED_UP.get(kind, kind)
        case Kind.CAPACITY:
            return Kind.CAPACITY_OF_A_DRIVER
        case Kind.CAPACITY_OF_A_DRIVER:
            return Kind.QUANTITY
    return Kind.UNKNOWN
