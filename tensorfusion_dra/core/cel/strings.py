"""Texts as CEL writes them."""

from typing import Final

from tensorfusion_dra.core.errors import InputError

_ESCAPES: Final = {
    "\\": "\\\\",
    '"': '\\"',
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def quoted(text: str) -> str:
    """The string literal of a text, on one line.

    Raises:
        InputError: The text holds half of a surrogate pair, which no CEL string can.
    """
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        raise InputError(f"found {character!r}, expected a character that UTF-8 can write")
    return character if character.isprintable() else f"\\U{code:08x}"
