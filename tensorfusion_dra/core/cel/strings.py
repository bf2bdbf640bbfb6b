"""CEL's string and bytes literals."""

import re
from typing import Final

from tensorfusion_dra.core.errors import InputError

PREFIX: Final = re.compile(r"[bB]?[rR]?")
"""Prefix of a literal: b for bytes, r for raw text without escapes."""

_ESCAPES: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    '"': '"',
    "'": "'",
    "`": "`",
    "?": "?",
}
_WRITTEN: Final = {_ESCAPES[letter]: f"\\{letter}" for letter in 'abfnrtv\\"'}
_ESCAPE: Final = re.compile(
    r"\\(?:[xX](?P<hex>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<letter>.)|)",
    re.DOTALL,
)


class LiteralError(ValueError):
    """A literal contains an escape that CEL does not know.

    Attributes:
        offset: Position of the escape, from the start of the literal.
    """

    def __init__(self, text: str, offset: int) -> None:
        super().__init__(text)
        self.offset = offset


def quoted(text: str) -> str:
    """Return the string literal of a text, on one line.

    Raises:
        InputError: The text contains an unpaired surrogate, which no CEL string can.
    """
    return '"' + "".join(map(_escaped, text)) + '"'


def unquoted(literal: str) -> str | bytes:
    """Return the value of a terminated string or bytes literal.

    Raises:
        LiteralError: It contains an escape that CEL does not know.
    """
    found = PREFIX.match(literal)
    prefix = found[0].lower() if found else ""
    quotes = 3 if literal[len(prefix) :][:3] in ('"""', "'''") else 1
    begin = len(prefix) + quotes
    text, is_bytes = literal[begin : len(literal) - quotes], "b" in prefix
    if "r" in prefix:
        return text.encode() if is_bytes else text

    parts: list[bytes] = []
    end = 0
    for escape in _ESCAPE.finditer(text):
        parts += [text[end : escape.start()].encode(), _value(escape, begin, is_bytes=is_bytes)]
        end = escape.end()
    value = b"".join([*parts, text[end:].encode()])
    return value if is_bytes else value.decode()


def _value(escape: re.Match[str], begin: int, *, is_bytes: bool) -> bytes:
    """Return an escape as UTF-8; in bytes literals, \\x and octal escapes are one byte each."""
    octet = escape["hex"] or escape["octal"]
    if octet:
        code = int(octet, 16 if escape["hex"] else 8)
        return bytes([code]) if is_bytes else chr(code).encode()
    point = escape["short"] or escape["long"]
    if point and not is_bytes:
        code = int(point, 16)
        if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
            return chr(code).encode()
    if escape["letter"] in _ESCAPES:
        return _ESCAPES[escape["letter"]].encode()
    raise LiteralError(
        f"found the escape {escape[0]}, expected one of CEL's, such as \\n or \\x41",
        begin + escape.start(),
    )


def _escaped(character: str) -> str:
    if character in _WRITTEN:
        return _WRITTEN[character]
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        raise InputError(f"found {character!r}, expected a character that UTF-8 can encode")
    return character if character.isprintable() else f"\\U{code:08x}"
