"""Lexer of CEL expressions (cel-spec, doc/langdef.md, Syntax)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tensorfusion_dra.core.cel import strings
from tensorfusion_dra.core.cel.errors import CelError
from tensorfusion_dra.core.cel.strings import LiteralError

MAX_INT: Final = 2**63 - 1
MAX_UINT: Final = 2**64 - 1

Value = str | bytes | int | float | None


class TokenKind(StrEnum):
    """Kind of a token; the values appear in errors."""

    NAME = "a name"
    QUOTED_NAME = "a name in backticks"
    INT = "an integer"
    UINT = "an unsigned integer"
    DOUBLE = "a number"
    STRING = "a string"
    BYTES = "bytes"
    MARK = "an operator"
    END = "the end"


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        start, end: Offsets in the expression, in characters.
        value: Value of a literal; None for any other token.
    """

    kind: TokenKind
    text: str
    start: int
    end: int
    value: Value = None

    def shown(self) -> str:
        """Return the token as errors show it."""
        return TokenKind.END.value if self.kind is TokenKind.END else self.text[:40]


# OPEN matches only the opening quotes of an unterminated literal, which is refused there.
_TOKEN: Final = re.compile(
    r"""
    (?P<SPACE>(?:[\t\n\f\r ]|//[^\n]*)+)
    |(?P<DOUBLE>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<UINT>(?:0x[0-9a-fA-F]+|[0-9]+)[uU])
    |(?P<INT>0x[0-9a-fA-F]+|[0-9]+)
    |(?P<RAW>[bB]?[rR](?:\"{3}(?s:.*?)\"{3}|'{3}(?s:.*?)'{3}|"(?!"")[^"\n\r]*"|'(?!'')[^'\n\r]*'))
    |(?P<TEXT>[bB]?(?:
        \"{3}(?:\\(?s:.)|[^\\])*?\"{3}
        |'{3}(?:\\(?s:.)|[^\\])*?'{3}
        |"(?!"")(?:\\[^\n\r]|[^\\"\n\r])*"
        |'(?!'')(?:\\[^\n\r]|[^\\'\n\r])*'))
    |(?P<OPEN>[bB]?[rR]?(?:\"{3}|'{3}|["']))
    |(?P<QUOTED_NAME>`[A-Za-z0-9_.\-/ ]+`)
    |(?P<MARK>in\b|==|!=|<=|>=|&&|\|\||[\[\]{}().,\-!?:+*/%<>])
    |(?P<NAME>[A-Za-z_][A-Za-z0-9_]*)
    """,
    re.VERBOSE,
)


def tokens(expression: str) -> Iterator[Token]:
    """Yield the tokens of an expression, without whitespace and comments; the last one is END.

    Raises:
        CelError: A character begins no token, or a literal is not valid CEL.
    """
    offset = 0
    while offset < len(expression):
        found = _TOKEN.match(expression, offset)
        if found is None:
            raise CelError(
                f"found {expression[offset]!r}, expected a name, a literal or an operator",
                expression=expression,
                offset=offset,
            )
        if found.lastgroup != "SPACE":
            yield _token(found, expression)
        offset = found.end()
    yield Token(TokenKind.END, "", offset, offset)


def _token(found: re.Match[str], expression: str) -> Token:
    text, start = found[0], found.start()
    match found.lastgroup:
        case "OPEN":
            raise CelError(
                "found an unterminated string, expected closing quotes"
                + ("" if text[-3:] in ('"""', "'''") else " on its line"),
                expression=expression,
                offset=start,
            )
        case "RAW" | "TEXT":
            value: Value = _unquoted(text, expression, start)
            kind = TokenKind.BYTES if isinstance(value, bytes) else TokenKind.STRING
        case "INT" | "UINT":
            kind, value = (
                TokenKind[found.lastgroup],
                int(text.rstrip("uU"), 0 if "x" in text else 10),
            )
            # MAX_INT + 1 is valid after a minus; the parser refuses it elsewhere.
            most = MAX_UINT if kind is TokenKind.UINT else MAX_INT + 1
            if value > most:
                raise CelError(
                    f"found {text[:40]}, expected at most {most}",
                    expression=expression,
                    offset=start,
                )
        case "DOUBLE":
            kind, value = TokenKind.DOUBLE, float(text)
        case group:
            kind, value = TokenKind[str(group)], None
    return Token(kind, text, start, found.end(), value)


def _unquoted(text: str, expression: str, start: int) -> str | bytes:
    try:
        return strings.unquoted(text)
    except LiteralError as error:
        raise CelError(str(error), expression=expression, offset=start + error.offset) from error
    except UnicodeEncodeError as error:
        raise CelError(
            "found an unpaired surrogate, expected text that UTF-8 can encode",
            expression=expression,
            offset=start,
        ) from error
