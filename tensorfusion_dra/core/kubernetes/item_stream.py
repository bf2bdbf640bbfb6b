"""List answers of the API server, decoded one object at a time while they arrive."""

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from json import JSONDecodeError
from typing import Final

from tensorfusion_dra.core.kubernetes import untyped_json

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = " \t\r\n"
_NUMBER: Final = ".eE"
_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*"|["\[\]{}]')


class ItemStream:
    """The objects in the field `items` of a JSON object; only one of them is in memory at a time.

    Attributes:
        fields: The object's other fields; complete after the last item.
        left_out: The number of items so far that nest too deeply.
    """

    def __init__(self, pieces: Iterable[bytes], *, max_bytes: int) -> None:
        """Args:
        pieces: The text, in UTF-8, as it arrives.
        max_bytes: Of an item, and of another field.
        """
        self.fields: Final[dict[str, object]] = {}
        self.left_out = 0
        self._pieces = iter(pieces)
        self._max_bytes = max_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at = "", 0

    def __iter__(self) -> Iterator[object]:
        """Yield each item that does not nest too deeply.

        Raises:
            ValueError: The text is no JSON object, or an item is too large.
        """
        self._expect("{")
        is_first = True
        while self._next() != "}":
            if not is_first:
                self._expect(",")
            name = self._value()
            self._expect(":")
            if name == "items" and self._next() == "[":
                yield from self._items()
            else:
                self.fields[str(name)] = self._value()
                if name == "items" and self.fields["items"] is not None:
                    raise ValueError("items: found no list")
            is_first = False
        self._expect("}")
        while not self._text[self._at :].strip():
            self._at = len(self._text)
            if not self._read():  # to the end, so that the connection can be used again
                return
        raise ValueError("found more than one JSON object")

    def _items(self) -> Iterator[object]:
        self._expect("[")
        is_first = True
        while self._next() != "]":
            if not is_first:
                self._expect(",")
            try:
                yield self._value()
            except untyped_json.DepthError:
                self._skip()
                self.left_out += 1
            is_first = False
        self._expect("]")

    def _next(self) -> str:
        """Return the next character that is no space; leave it where it is."""
        while True:
            while self._at < len(self._text):
                if (found := self._text[self._at]) not in _SPACE:
                    return found
                self._at += 1
            if not self._read():
                raise ValueError("found the end of the text, expected a JSON object")

    def _expect(self, character: str) -> None:
        if (found := self._next()) != character:
            raise ValueError(f"found {found!r}, expected {character!r}")
        self._at += 1

    def _value(self) -> object:
        self._next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except JSONDecodeError:
                # Perhaps it was cut off. Each try has twice the text, so that all cost two.
                if not self._read(at_least=len(self._text) - self._at):
                    raise
                continue
            except RecursionError:
                raise untyped_json.DepthError from None
            if self._text[end : end + 1] in _NUMBER and self._read():
                continue  # the text ends, perhaps within a number
            untyped_json.check_levels(value)
            self._at = end
            return value

    def _skip(self) -> None:
        """Take the next object or list without decoding it."""
        level, at = 0, self._at
        while True:
            found = _BRACKET.search(self._text, at)
            if found is None or found[0] == '"':  # the text ends, perhaps within a string
                if not self._read(at_least=len(self._text) - self._at):
                    raise ValueError("found the end of the text, expected a JSON object")
                level, at = 0, self._at
                continue
            level += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
            at = found.end()
            if level == 0:
                self._at = at
                return

    def _read(self, *, at_least: int = 1) -> bool:
        """Read more of the text, and forget what was taken; return False at the end of the text.

        Raises:
            ValueError: A value is too large, or the text is not UTF-8.
        """
        if len(self._text) - self._at > self._max_bytes:
            raise ValueError(f"found a value of more than {self._max_bytes} bytes")
        found = []
        while at_least > 0 and (piece := next(self._pieces, None)) is not None:
            found.append(self._decoder.decode(piece))
            at_least -= len(found[-1])
        self._text, self._at = self._text[self._at :] + "".join(found), 0
        if not found:
            self._decoder.decode(b"", final=True)
        return bool(found)
