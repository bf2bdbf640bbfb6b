"""Syntax tree of a CEL expression.

The span of a node in parentheses includes them, so that text can be inserted around any node.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tensorfusion_dra.core.cel.tokens import Token


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Part of an expression.

    Attributes:
        start, end: Offsets in the expression, in characters.
        height: Height of its subtree; 1 for a leaf.
    """

    start: int
    end: int
    height: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal(Node):
    """A number, a string, bytes, true, false or null."""

    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class Name(Node):
    """A variable.

    Attributes:
        is_absolute: It begins with a dot, so it never refers to a name bound by a macro.
    """

    token: Token
    is_absolute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Node):
    """``target.name``, or ``target.?name``."""

    target: Node
    name: Token
    is_optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Index(Node):
    """``target[key]``, or ``target[?key]``."""

    target: Node
    key: Node
    is_optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Node):
    """``name(arguments)``, or ``target.name(arguments)``."""

    target: Node | None
    name: Token
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unary(Node):
    """``!operand`` or ``-operand``."""

    operator: Token
    operand: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary(Node):
    """A comparison, ``in`` or arithmetic."""

    operator: Token
    left: Node
    right: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Logic(Node):
    """``a && b && c`` or ``a || b || c``: all operands of a row in one node."""

    operator: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ternary(Node):
    """``condition ? yes : no``."""

    condition: Node
    yes: Node
    no: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLiteral(Node):
    """``[a, ?b]``."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapLiteral(Node):
    """``{a: b, ?c: d}``."""

    entries: tuple[tuple[Node, Node], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Node):
    """``name{field: value}``."""

    name: Node
    fields: tuple[tuple[Token, Node], ...]


def children(node: Node) -> Iterator[Node]:
    """Yield the direct children of a node, in the order of the text."""
    match node:
        case Select(target=target):
            yield target
        case Index(target=target, key=key):
            yield from (target, key)
        case Call(target=called, arguments=arguments):
            yield from arguments if called is None else (called, *arguments)
        case Unary(operand=operand):
            yield operand
        case Binary(left=left, right=right):
            yield from (left, right)
        case Logic(operands=operands):
            yield from operands
        case Ternary(condition=condition, yes=yes, no=no):
            yield from (condition, yes, no)
        case ListLiteral(items=items):
            yield from items
        case MapLiteral(entries=entries):
            yield from (side for entry in entries for side in entry)
        case Message(name=name, fields=fields):
            yield from (name, *(value for _, value in fields))
