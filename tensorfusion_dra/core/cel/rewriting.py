"""Rewriting of the guide's dialect to Kubernetes' CEL, as edits of the expression."""

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import dialect, macros, operands
from tensorfusion_dra.core.cel.dialect import Kind
from tensorfusion_dra.core.cel.edits import Edit, Edits
from tensorfusion_dra.core.cel.operands import Operand
from tensorfusion_dra.core.cel.strings import quoted
from tensorfusion_dra.core.cel.syntax import (
    Binary,
    Call,
    Index,
    ListLiteral,
    Literal,
    Logic,
    Name,
    Node,
    Select,
    Ternary,
    Unary,
    children,
)
from tensorfusion_dra.core.cel.tokens import TokenKind

_DRIVER: Final = quoted(names.DRIVER)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ORDER: Final = frozenset({"<", "<=", ">", ">="})
_TAKES_ANYTHING: Final = frozenset({"size", "dyn", "type"})
_SUMS: Final = frozenset({"add", "sub"})
_LITERALS: Final = {
    TokenKind.STRING: Kind.STRING,
    TokenKind.INT: Kind.INT,
    TokenKind.UINT: Kind.INT,
    TokenKind.DOUBLE: Kind.DOUBLE,
}
_WORDS: Final = {Kind.ATTRIBUTES: "attribute", Kind.CAPACITY: "capacity"}
Names = Mapping[str, Kind]


class Use(Enum):
    """Use of a value by the expression around it."""

    MEMBER = auto()
    """Something is looked up in it, as in the attributes of a domain."""
    EITHER = auto()
    """Both the attributes of a domain and the value of one attribute are possible."""
    VALUE = auto()
    """The attributes of a domain are not possible, only a value."""


def edits(expression: str, parsed: Node) -> tuple[Edit, ...]:
    """Return the edits of an expression in its order; none if it is not in the dialect.

    Raises:
        CelError: It is in the dialect, and no device could evaluate it.
    """
    found = _Translation(Edits(expression))
    found.condition(parsed, {}, conjunct=True)
    return found.edits.all()


class _Translation:
    """One walk through an expression; its lookups distinguish the dialect from Kubernetes' CEL.

    Attributes:
        edits: Edits found so far.
    """

    def __init__(self, found: Edits) -> None:
        self.edits: Final = found
        # For each condition around the current node: the capacities in it that a device may lack.
        self._lacking: list[list[str]] = []

    def condition(self, node: Node, bound: Names, *, conjunct: bool) -> None:
        """Translate a condition, such that it is false on devices that lack one of its capacities.

        Args:
            conjunct: True if the condition stands alone or is an operand of ``&&``, so that one
                more ``&&`` needs no parentheses.
        """
        if isinstance(node, Ternary):
            for part in children(node):
                self.condition(part, bound, conjunct=False)
            return
        self._lacking.append([])
        if isinstance(node, Call) and macros.is_bind(node):
            self.condition(node.arguments[2], self._bind(node, bound), conjunct=True)
        else:
            self.value(node, bound)
        needed = dict.fromkeys(self._lacking.pop())
        if needed:
            guard = "".join(f"has(device.capacity[{_DRIVER}].{name}) && " for name in needed)
            self.edits.wrap(node, guard if conjunct else f"({guard}", "" if conjunct else ")")

    def value(self, node: Node, bound: Names, use: Use = Use.VALUE) -> Kind:
        """Translate a part of any kind; return its kind."""
        match node:
            case Literal() | Name():
                return _leaf(node, bound)
            case Select():
                return self._select(node, bound)
            case Index():
                return self._index(node, bound, use)
            case Call():
                return self._call(node, bound, use)
            case Logic() | Unary() | Binary() | Ternary():
                return self._operation(node, bound, use)
        parts = self._operands(tuple(children(node)), bound, Use.EITHER)
        if isinstance(node, ListLiteral):
            operands.alike(self.edits, parts)
        return Kind.UNKNOWN

    def _operation(self, node: Logic | Unary | Binary | Ternary, bound: Names, use: Use) -> Kind:
        match node:
            case Logic(operator=operator, operands=parts):
                for part in parts:
                    self.condition(part, bound, conjunct=operator == "&&")
                return Kind.BOOL
            case Unary(operator=sign, operand=operand) if sign.text == "!":
                self.condition(operand, bound, conjunct=False)
                return Kind.BOOL
            case Unary(operand=operand):
                kind = self.value(operand, bound)
                return operands.negated(self.edits, Operand(operand, kind))
            case Binary():
                return self._binary(node, bound)
            case Ternary(condition=condition, yes=yes, no=no):
                self.condition(condition, bound, conjunct=False)
                return operands.alike(self.edits, self._operands((yes, no), bound, use))

    def _operands(self, nodes: tuple[Node, ...], bound: Names, use: Use) -> list[Operand]:
        return [Operand(node, self.value(node, bound, use)) for node in nodes]

    def _select(self, node: Select, bound: Names) -> Kind:
        target = self.value(node.target, bound, Use.MEMBER)
        if node.is_optional:
            return Kind.UNKNOWN
        return self._field(target, node.name.text)

    def _field(self, target: Kind, name: str) -> Kind:
        match target:
            case Kind.DEVICE:
                fields = {"attributes": Kind.ATTRIBUTES, "capacity": Kind.CAPACITY}
                return fields.get(name, Kind.UNKNOWN)
            case Kind.OUR_ATTRIBUTES:
                kind = dialect.ATTRIBUTES.get(name, Kind.UNKNOWN)
                others = {Kind.AMOUNT: Kind.KUBERNETES_AMOUNT, Kind.VERSION: Kind.UNKNOWN}
                return others.get(kind, kind)
            case Kind.CAPACITY:
                return Kind.CAPACITY_OF_A_DRIVER
            case Kind.CAPACITY_OF_A_DRIVER:
                return Kind.QUANTITY
        return Kind.UNKNOWN

    def _index(self, node: Index, bound: Names, use: Use) -> Kind:
        target = self.value(node.target, bound, Use.MEMBER)
        self.value(node.key, bound)
        is_text = isinstance(node.key, Literal) and node.key.token.kind is TokenKind.STRING
        if node.is_optional or not is_text or not isinstance(node.key, Literal):
            return Kind.CAPACITY_OF_A_DRIVER if target is Kind.CAPACITY else Kind.UNKNOWN
        key = str(node.key.token.value)
        if target not in (Kind.ATTRIBUTES, Kind.CAPACITY):
            return self._field(target, key)
        known = dialect.ATTRIBUTES if target is Kind.ATTRIBUTES else dialect.CAPACITIES
        is_name = _IDENTIFIER.fullmatch(key) is not None and use is not Use.MEMBER
        if not is_name or (use is Use.EITHER and key not in known):
            if target is Kind.CAPACITY:
                return Kind.CAPACITY_OF_A_DRIVER
            return Kind.OUR_ATTRIBUTES if key == names.DRIVER else Kind.UNKNOWN
        if key not in known:
            self.edits.refuse(
                f"found {_WORDS[target]} {key!r}, expected one of {', '.join(known)}; "
                f"any other needs its domain, such as {self.edits.text(node.target)}"
                f'["{names.DRIVER}"].{key}',
                node.key.token.start,
            )
        self.edits.replace(node.key.token.start, node.key.token.end, _DRIVER)
        self.edits.wrap(node, "", f".{key}")
        if key in dialect.NOT_ON_EVERY_DEVICE:
            self._lacking[-1].append(key)
        return dialect.ATTRIBUTES[key] if target is Kind.ATTRIBUTES else Kind.QUANTITY

    def _binary(self, node: Binary, bound: Names) -> Kind:
        operator = node.operator.text
        if operator == "in":
            left = Operand(node.left, self.value(node.left, bound))
            if isinstance(node.right, ListLiteral):
                items = self._operands(node.right.items, bound, Use.VALUE)
                operands.contained(self.edits, left, items)
            else:
                self.value(node.right, bound, Use.MEMBER)
            return Kind.BOOL
        left, right = self._operands((node.left, node.right), bound, Use.VALUE)
        if operator in _ORDER:
            operands.ordered(self.edits, operator, left, right)
        elif operator in ("==", "!="):
            operands.equal(self.edits, operator, left, right)
        else:
            return operands.calculated(self.edits, operator, left, right)
        return Kind.BOOL

    def _bind(self, node: Call, bound: Names) -> Names:
        """Return the names that are bound in the last argument of ``cel.bind``."""
        variable, initial, _ = node.arguments
        kind = self.value(initial, bound, Use.EITHER)
        return {**bound, self.edits.text(variable): kind}

    def _call(self, node: Call, bound: Names, use: Use) -> Kind:
        if macros.is_has(node):
            self._has(node, bound)
            return Kind.BOOL
        if macros.is_bind(node):
            return self.value(node.arguments[2], self._bind(node, bound), use)
        name = node.name.text
        target = self._target(node, bound)
        if name == dialect.TO_NUMBER and node.target is not None:
            return self._to_number(node, Operand(node.target, target))
        count = macros.bound(node)
        inner = {
            **bound,
            **dict.fromkeys(map(self.edits.text, node.arguments[:count]), Kind.UNKNOWN),
        }
        for argument in node.arguments[count:]:
            self.value(argument, inner, Use.EITHER if name in _TAKES_ANYTHING else Use.VALUE)
        is_sum = target is Kind.QUANTITY and name in _SUMS
        is_quantity = node.target is None and name == "quantity"
        return Kind.QUANTITY if is_sum or is_quantity else Kind.UNKNOWN

    def _target(self, node: Call, bound: Names) -> Kind:
        if node.target is None:
            return Kind.UNKNOWN
        use = Use.VALUE
        if macros.bound(node) and node.name.text in macros.OVER_MAPS:
            use = Use.MEMBER
        elif node.name.text in _TAKES_ANYTHING:
            use = Use.EITHER
        return self.value(node.target, bound, use)

    def _has(self, node: Call, bound: Names) -> None:
        field = node.arguments[0]
        self._lacking.append([])  # has() itself needs no guard
        kind = self.value(field, bound)
        self._lacking.pop()
        is_ours = isinstance(field, Index) and kind in (*dialect.ATTRIBUTES.values(), Kind.QUANTITY)
        if not isinstance(field, Select) and not is_ours:
            self.edits.refuse(
                f"has: found {self.edits.text(field)[:40]}, expected a field such as has(a.b)",
                field.start,
            )

    def _to_number(self, node: Call, target: Operand) -> Kind:
        if target.kind in (Kind.AMOUNT, Kind.KUBERNETES_AMOUNT):
            self.edits.wrap(target.node, "quantity(", ")")
        elif target.kind not in (Kind.QUANTITY, Kind.UNKNOWN):
            self.edits.refuse(
                f"found {dialect.TO_NUMBER}() of {target.kind.value}, expected a Quantity",
                node.name.start,
            )
        if node.arguments:
            self.edits.refuse(
                f"found an argument of {dialect.TO_NUMBER}(), expected none",
                node.arguments[0].start,
            )
        self.edits.replace(node.name.start, node.name.end, "asApproximateFloat")
        return Kind.NUMBER


def _leaf(node: Literal | Name, bound: Names) -> Kind:
    if isinstance(node, Literal):
        return _LITERALS.get(node.token.kind, Kind.UNKNOWN)
    name = node.token.text
    outer = Kind.DEVICE if name == "device" else Kind.UNKNOWN
    return outer if node.is_absolute else bound.get(name, outer)
