"""Parser of CEL expressions (grammar: cel-go, parser/gen/CEL.g4)."""

from collections.abc import Sized
from dataclasses import replace
from typing import Final, NoReturn, TypeVar

from tensorfusion_dra.core.cel import macros, syntax, tokens
from tensorfusion_dra.core.cel.errors import CelError
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
    Unary,
)
from tensorfusion_dra.core.cel.tokens import MAX_INT, Token, TokenKind

MAX_DEPTH: Final = 100
"""Maximum nesting. cel-go's own limit is 250, for which Python's stack is too small."""
_ROWS: Final = ("||", "&&", "== != < <= > >= in", "+ -", "* / %")
_LEVELS: Final = {operator: level for level, row in enumerate(_ROWS) for operator in row.split()}
_LITERALS: Final = frozenset(
    {TokenKind.INT, TokenKind.UINT, TokenKind.DOUBLE, TokenKind.STRING, TokenKind.BYTES}
)
_CONSTANTS: Final = frozenset({"true", "false", "null"})
_RESERVED: Final = frozenset(
    {"as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"}
    | {"package", "namespace", "return", "var", "void", "while"}
)
Made = TypeVar("Made", bound=Node)


def parse(expression: str) -> Node:
    """Parse an expression into its syntax tree.

    Raises:
        CelError: It is not valid CEL, or nested deeper than MAX_DEPTH.
    """
    parser = _Parser(expression)
    node = parser.expression()
    parser.expect_end()
    return node


class _Parser:
    def __init__(self, expression: str) -> None:
        self._text: Final = expression
        self._tokens: Final = list(tokens.tokens(expression))
        self._next = 0
        self._depth = 0

    def expression(self) -> Node:
        """Parse ``a || b`` or ``a ? b : c``."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse_depth(self._peek().start)
        node = self._operators()
        if self._take("?"):
            yes = self._operators()
            self._expect(":")
            no = self.expression()
            node = self._made(Ternary(start=node.start, end=no.end, condition=node, yes=yes, no=no))
        self._depth -= 1
        return node

    def expect_end(self) -> None:
        """Raise CelError unless every token is consumed."""
        if self._peek().kind is not TokenKind.END:
            self._refuse("an operator or the end")

    def _operators(self) -> Node:
        """Parse a row of operands and combine them by the precedence of their operators."""
        values, operators = [self._operand()], list[Token]()
        while self._peek().kind is TokenKind.MARK and self._peek().text in _LEVELS:
            level = _LEVELS[self._peek().text]
            while operators and _LEVELS[operators[-1].text] >= level:
                self._reduce(values, operators.pop())
            operators.append(self._advance())
            values.append(self._operand())
        while operators:
            self._reduce(values, operators.pop())
        return values[0]

    def _reduce(self, values: list[Node], operator: Token) -> None:
        right, left = values.pop(), values.pop()
        if operator.text in ("&&", "||"):
            values.append(self._row(left, operator.text, right))
            return
        node = Binary(start=left.start, end=right.end, operator=operator, left=left, right=right)
        values.append(self._made(node))

    def _row(self, left: Node, operator: str, right: Node) -> Node:
        operands: tuple[Node, ...] = (left,)
        height = max(left.height, right.height) + 1
        # A row in parentheses stays a single operand; its span includes the parentheses.
        is_row = isinstance(left, Logic) and left.start == left.operands[0].start
        if is_row and isinstance(left, Logic) and left.operator == operator:
            operands = left.operands
            height = max(left.height, right.height + 1)
        if height > MAX_DEPTH:
            self._refuse_depth(left.start)
        return Logic(
            start=left.start,
            end=right.end,
            height=height,
            operator=operator,
            operands=(*operands, right),
        )

    def _operand(self) -> Node:
        """Parse ``!a`` or ``-a``, with the suffixes of a: ``a.b(c)[d]``."""
        signs: list[Token] = []
        while self._peek().text in ("!", "-"):
            sign = self._peek().text
            is_mixed = bool(signs) and sign != signs[0].text
            if is_mixed and (sign == "!" or not self._is_number(self._next + 1)):
                self._refuse(f"a value after {signs[0].text}")
            signs.append(self._advance())
        negative = [sign.text for sign in signs].count("-") == 1
        node = self._followed(self._primary(negative=negative))
        for token in reversed(signs):
            node = self._made(Unary(start=token.start, end=node.end, operator=token, operand=node))
        return node

    def _followed(self, node: Node) -> Node:
        is_path = isinstance(node, Name)
        while True:
            if self._take("."):
                is_optional = self._take("?")
                name = self._field()
                if self._peek().text == "(" and not is_optional:
                    node, is_path = self._call(node, name), False
                    continue
                is_path = is_path and not is_optional
                node = self._made(
                    Select(
                        start=node.start,
                        end=name.end,
                        target=node,
                        name=name,
                        is_optional=is_optional,
                    )
                )
            elif self._take("["):
                is_path, is_optional = False, self._take("?")
                key = self.expression()
                end = self._expect("]").end
                node = self._made(
                    Index(start=node.start, end=end, target=node, key=key, is_optional=is_optional)
                )
            elif is_path and self._peek().text == "{":
                node, is_path = self._message(node), False
            else:
                return node

    def _primary(self, *, negative: bool) -> Node:
        token = self._peek()
        if token.kind in _LITERALS or token.text in _CONSTANTS:
            self._advance()
            if token.kind is TokenKind.INT and token.value == MAX_INT + 1 and not negative:
                self._refuse_at(f"found {token.text}, expected at most {MAX_INT}", token.start)
            return Literal(start=token.start, end=token.end, token=token)
        if token.kind is TokenKind.NAME or token.text == ".":
            return self._name()
        if self._take("("):
            node = self.expression()
            return replace(node, start=token.start, end=self._expect(")").end)
        if self._take("["):
            return self._list(token)
        if self._take("{"):
            return self._map(token)
        return self._refuse("a value")

    def _name(self) -> Node:
        first = self._peek()
        is_absolute = self._take(".")
        token = self._advance()
        if token.kind is not TokenKind.NAME or token.text in _CONSTANTS:
            self._refuse_at(f"found {token.shown()}, expected a name", token.start)
        if token.text in _RESERVED:
            self._refuse_at(f"found {token.text}, which CEL reserves, expected a name", token.start)
        if self._peek().text == "(":
            return replace(self._call(None, token), start=first.start)
        return Name(start=first.start, end=token.end, token=token, is_absolute=is_absolute)

    def _call(self, target: Node | None, name: Token) -> Node:
        self._expect("(")
        arguments: list[Node] = []
        if self._peek().text != ")":
            arguments.append(self.expression())
            while self._take(","):
                arguments.append(self.expression())
        end = self._expect(")").end
        call = Call(
            start=name.start if target is None else target.start,
            end=end,
            target=target,
            name=name,
            arguments=tuple(arguments),
        )
        for argument in arguments[: macros.bound(call)]:
            if not isinstance(argument, Name) or argument.is_absolute:
                self._refuse_at(
                    f"{name.text}: found {self._text[argument.start : argument.end][:40]}, "
                    f"expected a name to bind",
                    argument.start,
                )
        return self._made(call)

    def _list(self, opening: Token) -> Node:
        items: list[Node] = []
        while self._more("]", items):
            self._take("?")
            items.append(self.expression())
        end = self._expect("]").end
        return self._made(ListLiteral(start=opening.start, end=end, items=tuple(items)))

    def _map(self, opening: Token) -> Node:
        entries: list[tuple[Node, Node]] = []
        while self._more("}", entries):
            self._take("?")
            key = self.expression()
            self._expect(":")
            entries.append((key, self.expression()))
        end = self._expect("}").end
        return self._made(MapLiteral(start=opening.start, end=end, entries=tuple(entries)))

    def _message(self, name: Node) -> Node:
        self._expect("{")
        fields: list[tuple[Token, Node]] = []
        while self._more("}", fields):
            self._take("?")
            field = self._field()
            self._expect(":")
            fields.append((field, self.expression()))
        end = self._expect("}").end
        return self._made(Message(start=name.start, end=end, name=name, fields=tuple(fields)))

    def _more(self, closing: str, found: Sized) -> bool:
        """Return True if another item follows; a list may end with a comma, even an empty one."""
        has_comma = self._take(",")
        return self._peek().text != closing and has_comma == bool(found)

    def _field(self) -> Token:
        token = self._peek()
        is_name = token.kind in (TokenKind.NAME, TokenKind.QUOTED_NAME)
        if not is_name or token.text in _CONSTANTS:
            self._refuse("a field's name")
        return self._advance()

    def _is_number(self, index: int) -> bool:
        numbers = (TokenKind.INT, TokenKind.DOUBLE)
        return index < len(self._tokens) and self._tokens[index].kind in numbers

    def _made(self, node: Made) -> Made:
        """Return the node with its height; refuse it if it is too deep."""
        height = 1 + max((child.height for child in syntax.children(node)), default=0)
        if height > MAX_DEPTH:
            self._refuse_depth(node.start)
        return replace(node, height=height)

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _advance(self) -> Token:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _take(self, mark: str) -> bool:
        token = self._peek()
        if token.kind is not TokenKind.MARK or token.text != mark:
            return False
        self._advance()
        return True

    def _expect(self, mark: str) -> Token:
        token = self._peek()
        if not self._take(mark):
            self._refuse(mark)
        return token

    def _refuse(self, expected: str) -> NoReturn:
        token = self._peek()
        self._refuse_at(f"found {token.shown()}, expected {expected}", token.start)

    def _refuse_depth(self, offset: int) -> NoReturn:
        self._refuse_at(f"found nesting more than {MAX_DEPTH} levels deep, expected less", offset)

    def _refuse_at(self, reason: str, offset: int) -> NoReturn:
        raise CelError(reason, expression=self._text, offset=offset)
