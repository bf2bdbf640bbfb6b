"""Splitting of an expression at ``&&``, ``||`` and ``!`` into parts that can be evaluated alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.cel import macros, parser
from tensorfusion_dra.core.cel.syntax import (
    Binary,
    Call,
    Index,
    Literal,
    Logic,
    Name,
    Node,
    Select,
    Unary,
    children,
)

ATTRIBUTES: Final = "attributes"
CAPACITY: Final = "capacity"


@dataclass(frozen=True, slots=True)
class Lookup:
    """One lookup in a device: ``device.attributes[domain].name``.

    Attributes:
        map: ATTRIBUTES or CAPACITY.
    """

    map: str
    domain: str
    name: str


@dataclass(frozen=True, slots=True)
class _Domain:
    """``device.attributes[name]``, or ``device.capacity[name]``."""

    map: str
    name: str


Bound = Mapping[str, _Domain | None]
"""Names bound by macros, each with the domain that it stands for; None if it is no domain."""

_MAPS: Final = frozenset({ATTRIBUTES, CAPACITY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Boolean part of an expression.

    Attributes:
        text: Its source, on one line.
        expression: Its source inside every ``cel.bind`` around it, so that it evaluates alone.
        operator: Operator that joins its parts: &&, || or !; empty without parts.
        lookups: Its lookups in a device, those of its parts included.
    """

    text: str
    expression: str
    operator: str
    parts: tuple["Term", ...]
    lookups: tuple[Lookup, ...]


def terms(expression: str) -> Term:
    """Split an expression into a tree of terms.

    Raises:
        CelError: It is not valid CEL.
    """
    return _Splitter(expression).term(parser.parse(expression), {})


class _Splitter:
    def __init__(self, expression: str) -> None:
        self._expression: Final = expression

    def term(self, node: Node, bound: Bound, before: str = "", after: str = "") -> Term:
        """Return the term of a node, whose expression stands between the texts before and after."""
        text = self._text(node)
        operator, parts = "", tuple[Term, ...]()
        if isinstance(node, Call) and macros.is_bind(node):
            name, value, _ = map(self._text, node.arguments)
            inner = {**bound, name: _domain(node.arguments[1], bound)}
            body = self.term(
                node.arguments[2], inner, f"{before}cel.bind({name}, {value}, ", f"){after}"
            )
            operator, parts = body.operator, body.parts
        elif isinstance(node, Logic):
            operator = node.operator
            parts = tuple(self.term(part, bound, before, after) for part in node.operands)
        elif isinstance(node, Unary) and node.operator.text == "!":
            operator = "!"
            parts = (self.term(node.operand, bound, before, after),)
        return Term(
            text=" ".join(text.split()),
            expression=f"{before}{text}{after}",
            operator=operator,
            parts=parts,
            lookups=tuple(dict.fromkeys(self._lookups(node, bound))),
        )

    def _lookups(self, node: Node, bound: Bound) -> Iterator[Lookup]:
        match node:
            case Select(target=target, name=name):
                yield from _found(target, name.text, bound)
            case Index(target=target, key=Literal(token=token)):
                yield from _found(target, token.value, bound)
            case Binary(operator=operator, left=Literal(token=token), right=right):
                if operator.text == "in":
                    yield from _found(right, token.value, bound)
            case Call():
                value = _domain(node.arguments[1], bound) if macros.is_bind(node) else None
                names = map(self._text, node.arguments[: macros.bound(node)])
                bound = {**bound, **dict.fromkeys(names, value)}
        for child in children(node):
            yield from self._lookups(child, bound)

    def _text(self, node: Node) -> str:
        return self._expression[node.start : node.end]


def _found(target: Node, name: object, bound: Bound) -> Iterator[Lookup]:
    domain = _domain(target, bound)
    if domain is not None:
        yield Lookup(domain.map, domain.name, str(name))


def _domain(node: Node, bound: Bound) -> _Domain | None:
    match node:
        case Name(token=token):
            return bound.get(token.text)
        case Index(target=Select(target=Name(token=device), name=name), key=Literal(token=key)) if (
            device.text == "device" and "device" not in bound
        ):
            return _Domain(name.text, str(key.value)) if name.text in _MAPS else None
    return None
