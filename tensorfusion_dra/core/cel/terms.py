"""Splitting of an expression at ``&&``, ``||`` and ``!`` into parts that can be evaluated alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.cel import syntax
from tensorfusion_dra.core.cel.syntax import Node

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


_Domain = tuple[str, str]
"""ATTRIBUTES or CAPACITY, and the domain in it."""
Bound = Mapping[str, _Domain | None]
"""Names bound by macros, each with the domain that it stands for; None if it is no domain."""


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
    return _Splitter(expression).term(syntax.parse(expression), {})


class _Splitter:
    def __init__(self, expression: str) -> None:
        self._expression: Final = expression

    def term(self, node: Node, bound: Bound, before: str = "", after: str = "") -> Term:
        """Return the term of a node, whose expression stands between the texts before and after."""
        text = self._text(node)
        operator, parts = "", tuple[Term, ...]()
        if syntax.is_bind(node):
            name, value, _ = map(self._text, node.arguments)
            inner = {**bound, name: _domain(node.arguments[1], bound)}
            body = self.term(
                node.arguments[2], inner, f"{before}cel.bind({name}, {value}, ", f"){after}"
            )
            operator, parts = body.operator, body.parts
        elif node.form == "logic" or node.text == "!":
            operator = node.text
            parts = tuple(self.term(part, bound, before, after) for part in node.parts)
        return Term(
            text=" ".join(text.split()),
            expression=f"{before}{text}{after}",
            operator=operator,
            parts=parts,
            lookups=tuple(dict.fromkeys(self._lookups(node, bound))),
        )

    def _lookups(self, node: Node, bound: Bound) -> Iterator[Lookup]:
        match node:
            case Node(form="select", parts=(target,), text=name):
                yield from _found(target, name, bound)
            case Node(form="index", parts=(target, key)):
                yield from _found(target, key.string(), bound)
            case Node(form="binary", text="in", parts=(key, target)):
                yield from _found(target, key.string(), bound)
            case Node(form="method", arguments=arguments):
                value = _domain(arguments[1], bound) if syntax.is_bind(node) else None
                names = map(self._text, arguments[: syntax.bound(node)])
                bound = {**bound, **dict.fromkeys(names, value)}
        for part in node.parts:
            yield from self._lookups(part, bound)

    def _text(self, node: Node) -> str:
        return self._expression[node.start : node.end]


def _found(target: Node, name: str | None, bound: Bound) -> Iterator[Lookup]:
    domain = _domain(target, bound)
    if domain is not None and name is not None:
        yield Lookup(*domain, name)


def _domain(node: Node, bound: Bound) -> _Domain | None:
    if node.form == "name":
        return bound.get(node.text)
    match node:
        case Node(form="index", parts=(Node(form="select", text=kind, parts=(device,)), key)):
            is_device = (device.form, device.text) == ("name", "device") and "device" not in bound
            name = key.string()
            if name is not None and is_device and kind in (ATTRIBUTES, CAPACITY):
                return kind, name
    return None
