"""List answers of the API server, decoded one object at a time while they arrive.

An object is measured before it is decoded. One that has more bytes, elements or levels of nesting
than is parsed is passed over without being held, and costs only itself. Almost no object needs a
measurement of its own: if all the text that has arrived has few elements, each object in it has.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from json import JSONDecodeError
from typing import Final

from tensorfusion_dra.core.kubernetes import untyped_json
from tensorfusion_dra.core.kubernetes.untyped_json import BoundError

_MAX_BYTES: Final = untyped_json.MAX_OBJECT_BYTES - 1024
"""Less than MAX_OBJECT_BYTES, because an object that is read alone also has its kind and version,
or an event around it. So a claim that a quota can count in a list can be read by its node, too. For
the same reason there is untyped_json.AROUND_ITEM."""
_DECODER: Final = json.JSONDecoder()
_SPACE: Final = " \t\r\n"
_NUMBER: Final = ".eE"
_SMALL: Final = 64 * 2**10
"""Characters of a text that are held without asking; one piece of an answer has as many."""
_HEAD: Final = 1000
"""Characters of an object's beginning, which has its name, namespace and UID."""

_OUTSIDE: Final = re.compile(r'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_INSIDE: Final = re.compile(r"(?:[^\"\\]++|\\.)*+", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NO_BRACKETS: Final = bytes({*range(256)} - {*b"[]{}"})
_BRACKET: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)
_STEPS: Final = {"{": 1, "[": 1, "}": -1, "]": -1}


@dataclass(frozen=True, slots=True)
class PassedOver:
    """An object that was not decoded.

    Attributes:
        head: The beginning of its text.
        error: What it has too much of.
    """

    head: str
    error: str


class ItemStream:
    """The objects in the field `items` of a JSON object; only one of them is in memory at a time.

    Attributes:
        fields: The object's other fields; complete after the last item.
        length: Characters of the text that have arrived.
    """

    def __init__(
        self,
        pieces: Iterable[bytes],
        *,
        max_bytes: int = _MAX_BYTES,
        on_large: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        pieces: The text, in UTF-8, as it arrives.
        max_bytes: Of an item, and of another field.
        on_large: Called before more than 64 KiB of one value are held; may wait, and raise.
        """
        self.fields: Final[dict[str, object]] = {}
        self.length = 0
        self._pieces = iter(pieces)
        self._max_bytes = max_bytes
        self._on_large = on_large
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at = "", 0
        self._is_dense = False  # True if an item of the text may have too many elements

    def __iter__(self) -> Iterator[object]:
        """Yield each item, or that it was passed over.

        Raises:
            ValueError: The text is no JSON object.
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
            except BoundError as error:
                if self._text[self._at] not in _STEPS:  # a text or a number, which is no object
                    raise
                head = self._text[self._at : self._at + _HEAD]
                self._skip()
                yield PassedOver(head, str(error))
            is_first = False
        self._expect("]")

    def _next(self) -> str:
        """Return the next character that is no space; leave it where it is."""
        while True:
            while self._at < len(self._text):
                if (found := self._text[self._at]) not in _SPACE:
                    return found
                self._at += 1
            self._more()

    def _expect(self, character: str) -> None:
        if (found := self._next()) != character:
            raise ValueError(f"found {found!r}, expected {character!r}")
        self._at += 1

    def _value(self) -> object:
        """Take the next value.

        Raises:
            BoundError: It has too much of something; nothing was taken.
        """
        self._next()
        while True:
            if self._is_dense and self._text[self._at] in _STEPS:
                self._measure()
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
            if len(self._text[self._at : end].encode()) > self._max_bytes:
                raise BoundError(f"found more than {self._max_bytes} bytes")
            self._at = end
            return value

    def _measure(self) -> None:
        """Check the elements of the next value, of which the whole text is read.

        Raises:
            BoundError: It has too many, or too many bytes.
        """
        nesting, measured, elements = _Nesting(), self._at, 0
        while True:
            end = nesting.end_in(self._text, measured)
            elements += untyped_json.elements(self._text[measured : end or nesting.reached])
            untyped_json.check_elements(elements)
            if end is not None:
                return
            measured = nesting.reached - self._at  # from now on the text begins with the value
            self._more(at_least=len(self._text) - self._at)

    def _skip(self) -> None:
        """Take the next value without holding it."""
        nesting = _Nesting()
        while (end := nesting.end_in(self._text, self._at)) is None:
            self._at = nesting.reached
            self._more()
        self._at = end

    def _more(self, *, at_least: int = 1) -> None:
        if not self._read(at_least=at_least):
            raise ValueError("found the end of the text, expected a JSON object")

    def _read(self, *, at_least: int = 1) -> bool:
        """Read more of the text, and forget what was taken; return False at the end of the text.

        Raises:
            BoundError: A value is too large.
            ValueError: The text is not UTF-8.
        """
        held = len(self._text) - self._at
        if held > self._max_bytes:
            raise BoundError(f"found more than {self._max_bytes} bytes")
        if held > _SMALL:
            self._on_large()
        found, at_least = [], min(at_least, self._max_bytes + 1 - held)
        while at_least > 0 and (piece := next(self._pieces, None)) is not None:
            found.append(self._decoder.decode(piece))
            at_least -= len(found[-1])
            self.length += len(found[-1])
        self._text, self._at = self._text[self._at :] + "".join(found), 0
        self._is_dense = untyped_json.elements(self._text) > untyped_json.MAX_ELEMENTS
        if not found:
            self._decoder.decode(b"", final=True)
        return bool(found)


class _Nesting:
    """Finder of the end of one object or list, whose text is given in parts.

    Attributes:
        reached: End of what was used of the last part. The next one begins there.
    """

    def __init__(self) -> None:
        self.reached = 0
        self._level = 0
        self._is_in_string = False

    def end_in(self, text: str, start: int) -> int | None:
        """Return where the value ends in a text; None if it goes on after it."""
        at = start
        while at < len(text):
            if self._is_in_string:
                at = _end(_INSIDE, text, at, len(text))
                if text[at : at + 1] != '"':
                    break  # at the end, or at its last backslash
                self._is_in_string, at = False, at + 1
            stop = _end(_OUTSIDE, text, at, at + _SMALL)
            outside = _STRING.sub("", text[at:stop]).encode(errors="replace")
            found = outside.translate(None, _NO_BRACKETS)
            if self._level:  # else the value itself may be such a pair
                found = _without_pairs(found)
            levels = [*accumulate(map(_STEPS.__getitem__, found.decode()), initial=self._level)]
            if len(levels) > 1 and min(levels[1:]) <= 0:
                return at + self._exact(text[at:stop])
            self._level, at = levels[-1], stop
            if text[at : at + 1] == '"':  # a string that does not end before `stop`
                self._is_in_string, at = True, at + 1
        self.reached = at
        return None

    def _exact(self, text: str) -> int:
        """Return where the value ends in a text in which it does."""
        level = self._level
        for found in _BRACKET.finditer(text):
            level += _STEPS.get(found[0], 0)
            if level <= 0 and found[0] in _STEPS:
                return found.end()
        raise AssertionError("found no end")


def _without_pairs(brackets: bytes) -> bytes:
    """Return the brackets without most pairs that enclose nothing; a million take 20 ms."""
    for _ in range(3):
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    return brackets


def _end(pattern: re.Pattern[str], text: str, at: int, stop: int) -> int:
    """Return the end of the match of a pattern that also matches an empty text."""
    found = pattern.match(text, at, stop)
    assert found is not None
    return found.end()
