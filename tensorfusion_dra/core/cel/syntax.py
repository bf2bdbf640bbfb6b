"""Parser of CEL expressions into a tree of spans, to translate them or to split them into terms.

It accepts all of CEL (cel-spec, doc/langdef.md, with optional types), and some text that is not
CEL, such as a reserved word as a name: whether an expression is valid is the library's judgement
(`scheduling.cel_evaluation`). The library's binding shows no tree, so the places come from here.
"""

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, NoReturn, get_args

from tensorfusion_dra.core.errors import InputError

ATTRIBUTES: Final = "attributes"
CAPACITY: Final = "capacity"
MAX_DEPTH: Final = 60
"""Maximum height of a tree. The library reads at most 32 levels."""
MAX_TOKENS: Final = 1_200
"""Maximum of names, literals and operators, which bounds the time to read and check them."""
OWN_LIMIT: Final = "expected fewer: a limit of this driver"
"""End of an error of an expression that the API server may accept."""

_Scalar = Literal["string", "int", "double", "constant"]
_Compound = Literal["unary", "binary", "logic", "ternary", "list", "map"]
Form = Literal[_Scalar, _Compound, "name", "select", "index", "call", "method"]

_LEVELS: Final = {
    mark: level
    for level, row in enumerate(("||", "&&", "== != < <= > >= in", "+ -", "* / %"))
    for mark in row.split()
}
"""Precedence of each operator, the lowest first."""
_TEXT: Final = r"""(?:
    [rR](?:\"{3}(?s:.*?)\"{3}|'{3}(?s:.*?)'{3}|"(?!"")[^"\n\r]*"|'(?!'')[^'\n\r]*')
    |\"{3}(?:\\(?s:.)|[^\\])*?\"{3}
    |'{3}(?:\\(?s:.)|[^\\])*?'{3}
    |"(?!"")(?:\\[^\n\r]|[^\\"\n\r])*"
    |'(?!'')(?:\\[^\n\r]|[^\\'\n\r])*')"""
_TOKEN: Final = re.compile(
    rf"""
    (?P<space>(?:[\t\n\f\r ]|//[^\n]*)+)
    |(?P<double>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<int>(?:0x[0-9a-fA-F]+|[0-9]+)[uU]?)
    |(?P<constant>(?:true|false|null)\b|[bB]{_TEXT})
    |(?P<string>{_TEXT})
    |(?P<mark>in\b|==|!=|<=|>=|&&|\|\||[\[\]{{}}().,\-!?:+*/%<>])
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*|`[A-Za-z0-9_.\-/ ]+`)
    """,
    re.VERBOSE,
)
_LITERALS: Final[Mapping[str, Form]] = {form: form for form in get_args(_Scalar)}
_STRING: Final = re.compile(r"([rR]?)('''|\"\"\"|'|\")(.*)\2", re.DOTALL)


class CelError(InputError):
    """An expression cannot be parsed or translated.

    The text begins with line and column, both from 1, as the API server's own messages do.
    """

    def __init__(self, reason: str, *, expression: str, offset: int) -> None:
        line, column = position(expression, offset)
        super().__init__(f"{line}:{column}: {reason}")


def position(text: str, offset: int) -> tuple[int, int]:
    """Return the line and the column of an offset in a text, both from 1."""
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


class SyntaxNode(NamedTuple):
    """Part of an expression.

    Its form says what its parts are:

        select   target              ``target.text``
        index    target, key         ``target[key]``
        call     arguments           ``text(arguments)``
        method   target, arguments   ``target.text(arguments)``
        unary    operand             ``!`` or ``-``
        binary   left, right         a comparison, ``in`` or arithmetic
        logic    all of a row        ``a && b && c`` or ``a || b || c``
        ternary  condition, yes, no
        list     its items
        map      keys and values in turn, after the type of ``type{field: value}``

    A constant is bytes, true, false or null.

    Attributes:
        start, end: Offsets in the expression, in characters; parentheses around it are included,
            so that text can be inserted around any node.
        text: Name, operator or literal, as it is written.
        at: Offset of the text.
        is_optional: It is ``.?name`` or ``[?key]``, or a name that begins with a dot and thus never
            refers to one bound by a macro.
        height: Height of its subtree; 1 for a leaf.
    """

    form: Form
    start: int
    end: int
    text: str = ""
    at: int = 0
    parts: tuple["SyntaxNode", ...] = ()
    is_optional: bool = False
    height: int = 1

    @property
    def arguments(self) -> tuple["SyntaxNode", ...]:
        """Return the arguments of a call or method."""
        return self.parts[1:] if self.form == "method" else self.parts

    def string(self) -> str | None:
        """Return the value of a string literal; None for one with escapes and any other node."""
        found = _STRING.fullmatch(self.text) if self.form == "string" else None
        return found[3] if found and (found[1] or "\\" not in found[3]) else None


_BOUND: Final = {
    **{(name, 2): 1 for name in ("all", "exists", "exists_one", "existsOne", "filter", "map")},
    **dict.fromkeys((("map", 3), ("optMap", 2), ("optFlatMap", 2)), 1),
    **{(name, 3): 2 for name in ("all", "exists", "existsOne")},
    **{(f"transform{kind}", n): 2 for kind in ("List", "Map", "MapEntry") for n in (3, 4)},
}
"""Macros by name and number of arguments: how many of their arguments are names to bind."""


def bindings(node: SyntaxNode) -> int:
    """Return how many leading arguments are names bound in the others; 0 if it is no macro.

    The name of ``cel.bind`` is not bound in its second argument.
    """
    shape = (node.text, len(node.arguments)) if node.form == "method" else ("", 0)
    return 1 if is_bind(node) else _BOUND.get(shape, 0)


def is_bind(node: SyntaxNode) -> bool:
    """Return True if the node is ``cel.bind(name, value, result)``."""
    is_call = (node.form, node.text, len(node.parts)) == ("method", "bind", 4)
    return is_call and (node.parts[0].form, node.parts[0].text) == ("name", "cel")


def quoted(text: str) -> str:
    """Return the string literal of a text, on one line.

    Raises:
        InputError: The text contains an unpaired surrogate, which no CEL string can.
    """
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise InputError(f"found {text[:80]!r}, expected text that UTF-8 can encode")
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text) + '"'


@functools.lru_cache(maxsize=8)
def parse(expression: str) -> SyntaxNode:
    """Parse an expression into its tree, which is kept for the next steps of the same request.

    Raises:
        CelError: It is not CEL, or its tree is higher than MAX_DEPTH.
    """
    return _ExpressionParser(expression).whole()


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


def _tokens(expression: str) -> Iterator[_Token]:
    offset = count = 0
    while offset < len(expression):
        found = _TOKEN.match(expression, offset)
        if found is None:
            expected = "closing quotes" if expression[offset] in "'\"" else "a name or an operator"
            raise CelError(
                f"found {expression[offset]!r}, expected {expected}",
                expression=expression,
                offset=offset,
            )
        if found.lastgroup != "space":
            count += 1
            if count > MAX_TOKENS:
                raise CelError(
                    f"found more than {MAX_TOKENS} names, literals and operators, {OWN_LIMIT}",
                    expression=expression,
                    offset=offset,
                )
            yield _Token(str(found.lastgroup), found[0], offset, found.end())
        offset = found.end()
    yield _Token("end", "", offset, offset)


class _ExpressionParser:
    def __init__(self, expression: str) -> None:
        self._text: Final = expression
        self._tokens: Final = list(_tokens(expression))
        self._next = 0
        self._depth = 0

    def whole(self) -> SyntaxNode:
        """Parse all of the text."""
        node = self._expression()
        if self._peek().kind != "end":
            self._refuse("an operator or the end")
        return node

    def _expression(self) -> SyntaxNode:
        """Parse ``a || b`` or ``a ? b : c``."""
        self._depth += 1
        self._check_depth(self._depth)
        node = self._row(0)
        if self._take("?"):
            yes = self._row(0)
            self._expect(":")
            node = self._made("ternary", node.start, (node, yes, self._expression()))
        self._depth -= 1
        return node

    def _row(self, level: int) -> SyntaxNode:
        """Parse operands and the operators between them, of one level of precedence or more."""
        node = self._operand()
        while (own := _LEVELS.get(self._peek().text, -1)) >= level:
            operator = self._advance()
            parts = [node, self._row(own + 1)]
            if operator.text not in ("&&", "||"):
                node = self._made("binary", node.start, tuple(parts), operator)
                continue
            while self._peek().text == operator.text:  # without a node for each part of a long row
                operator = self._advance()
                parts.append(self._row(own + 1))
            node = self._made("logic", node.start, tuple(parts), operator)
        return node

    def _operand(self) -> SyntaxNode:
        """Parse ``!a`` or ``-a``, with the suffixes of a: ``a.b(c)[d]``."""
        signs: list[_Token] = []
        while self._peek().text in ("!", "-"):
            signs.append(self._advance())
        node = self._followed(self._primary())
        for sign in reversed(signs):
            node = self._made("unary", sign.start, (node,), sign)
        return node

    def _followed(self, node: SyntaxNode) -> SyntaxNode:
        while True:
            if self._take("."):
                is_optional = self._take("?")
                name = self._name()
                form: Form = "method" if self._take("(") else "select"
                parts = (node, *(self._items(")") if form == "method" else ()))
                node = self._made(form, node.start, parts, name, is_optional)
            elif self._take("["):
                is_optional = self._take("?")
                parts = (node, self._expression())
                self._expect("]")
                node = self._made("index", node.start, parts, None, is_optional)
            elif node.form in ("name", "select") and self._take("{"):
                node = self._made("map", node.start, (node, *self._items("}")))
            else:
                return node

    def _primary(self) -> SyntaxNode:
        token = self._peek()
        literal = _LITERALS.get(token.kind)
        if literal:
            return self._made(literal, token.start, (), self._advance())
        if self._take("("):
            node = self._expression()
            return node._replace(start=token.start, end=self._expect(")").end)
        if token.text in ("[", "{"):
            self._advance()
            form: Form = "list" if token.text == "[" else "map"
            return self._made(form, token.start, self._items("]" if form == "list" else "}"))
        is_absolute = self._take(".")
        name = self._name("a value")
        if self._take("("):
            return self._made("call", token.start, self._items(")"), name)
        return self._made("name", token.start, (), name, is_absolute)

    def _items(self, closing: str) -> tuple[SyntaxNode, ...]:
        """Parse items and the closing mark; a colon separates keys from values."""
        found: list[SyntaxNode] = []
        while not self._take(closing):
            if found and not (closing == "}" and self._take(":")):
                self._expect(",")
                if self._take(closing):
                    break
            self._take("?")
            found.append(self._expression())
        return tuple(found)

    def _made(
        self,
        form: Form,
        start: int,
        parts: tuple[SyntaxNode, ...],
        token: _Token | None = None,
        is_optional: bool = False,
    ) -> SyntaxNode:
        """Return a node that ends where the latest token does."""
        height = 1 + max((part.height for part in parts), default=0)
        self._check_depth(height)
        return SyntaxNode(
            form=form,
            start=start,
            end=self._tokens[self._next - 1].end,
            text=token.text if token else "",
            at=token.start if token else 0,
            parts=parts,
            is_optional=is_optional,
            height=height,
        )

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise CelError(
                f"found nesting more than {MAX_DEPTH} levels deep, expected less",
                expression=self._text,
                offset=self._peek().start,
            )

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _advance(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _take(self, mark: str) -> bool:
        is_next = self._peek().text == mark
        self._next += is_next
        return is_next

    def _expect(self, mark: str) -> _Token:
        return self._advance() if self._peek().text == mark else self._refuse(mark)

    def _name(self, expected: str = "a name") -> _Token:
        return self._advance() if self._peek().kind == "name" else self._refuse(expected)

    def _refuse(self, expected: str) -> NoReturn:
        token = self._peek()
        raise CelError(
            f"found {token.text[:40] or 'the end'}, expected {expected}",
            expression=self._text,
            offset=token.start,
        )


def with_empty_domains(expression: str) -> str:
    """Return the expression with an empty map for each domain that a device lacks.

    Kubernetes' maps of domains have such a default, which counts in no other way; those of the
    library have none. Example: ``device.attributes["d"]`` becomes
    ``device.attributes[?"d"].orValue({})``.
    """
    edits: list[tuple[int, int, str]] = []
    nodes, maps = [parse(expression)], set[str]()
    for node in nodes:
        is_has = (node.form, node.text) == ("call", "has")
        nodes += node.parts[0].parts if is_has else node.parts  # it takes a lookup as it is
        if is_bind(node) and _is_map(node.arguments[1], maps):
            maps.add(node.arguments[0].text)
        if is_has and _is_map(node.parts[0].parts[0], maps):
            edits.append((node.parts[0].parts[0].end, node.parts[0].end, ""))  # always there
        elif node.form in ("index", "select") and _is_map(node.parts[0], maps):
            key = node.parts[1].start if node.form == "index" else node.at
            ending = "))" if node.is_optional else ")"
            edits.append((node.end, node.end, f".orValue({{}}{ending}"))
            edits.append(
                (node.start, node.start, "optional.of(") if node.is_optional else (key, key, "?")
            )
    for start, end, text in sorted(edits, reverse=True):
        expression = f"{expression[:start]}{text}{expression[end:]}"
    return expression


def _is_map(node: SyntaxNode, maps: Collection[str]) -> bool:
    """Return True for attributes or capacity of a device, or a name that is bound to one."""
    if node.form == "name":
        return node.text in maps
    is_field = node.form == "select" and node.text in (ATTRIBUTES, CAPACITY)
    return is_field and not node.is_optional and node.parts[0].form == "name"


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
    return _term(expression, parse(expression), {})


def _term(
    expression: str, node: SyntaxNode, bound: Bound, before: str = "", after: str = ""
) -> Term:
    """Return the term of a node, whose expression stands between the texts before and after."""
    text = expression[node.start : node.end]
    operator, parts = "", tuple[Term, ...]()
    if is_bind(node):
        name, value, _ = (expression[each.start : each.end] for each in node.arguments)
        inner = {**bound, name: _domain(node.arguments[1], bound)}
        before_body = f"{before}cel.bind({name}, {value}, "
        body = _term(expression, node.arguments[2], inner, before_body, f"){after}")
        operator, parts = body.operator, body.parts
    elif node.form == "logic" or node.text == "!":
        operator = node.text
        parts = tuple(_term(expression, part, bound, before, after) for part in node.parts)
    return Term(
        text=" ".join(text.split()),
        expression=f"{before}{text}{after}",
        operator=operator,
        parts=parts,
        lookups=tuple(dict.fromkeys(_lookups(node, bound))),
    )


def _lookups(node: SyntaxNode, bound: Bound) -> Iterator[Lookup]:
    match node:
        case SyntaxNode(form="select", parts=(target,), text=name):
            yield from _found(target, name, bound)
        case SyntaxNode(form="index", parts=(target, key)):
            yield from _found(target, key.string(), bound)
        case SyntaxNode(form="binary", text="in", parts=(key, target)):
            yield from _found(target, key.string(), bound)
        case SyntaxNode(form="method", arguments=arguments):
            value = _domain(arguments[1], bound) if is_bind(node) else None
            names = (each.text for each in arguments[: bindings(node)])
            bound = {**bound, **dict.fromkeys(names, value)}
    for part in node.parts:
        yield from _lookups(part, bound)


def _found(target: SyntaxNode, name: str | None, bound: Bound) -> Iterator[Lookup]:
    domain = _domain(target, bound)
    if domain is not None and name is not None:
        yield Lookup(*domain, name)


def _domain(node: SyntaxNode, bound: Bound) -> _Domain | None:
    if node.form == "name":
        return bound.get(node.text)
    match node:
        case SyntaxNode(
            form="index", parts=(SyntaxNode(form="select", text=kind, parts=(device,)), key)
        ):
            is_device = (device.form, device.text) == ("name", "device") and "device" not in bound
            name = key.string()
            if name is not None and is_device and kind in (ATTRIBUTES, CAPACITY):
                return kind, name
    return None
