"""The end of a certificate's validity, read from its DER form (RFC 5280, section 4.1).

Python's ssl module tells it only of a certificate that the other side of a connection has shown.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

_SEQUENCE: Final = 0x30
_INTEGER: Final = 0x02
_EXPLICIT_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_FORMATS: Final = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
_LAST_OF_UTC_TIME: Final = 2049
"""Its two digits stand for 1950 to 2049; for Python, those up to 68 are of this century."""
_LONG_FORM: Final = 0x80

Element = tuple[int, bytes]
"""Tag and content."""


def not_after(der: bytes) -> datetime | None:
    """Return when a certificate expires; None if these bytes are no certificate."""
    try:
        ((_, certificate),) = _elements(der)
        (_, signed), *_ = _elements(certificate)
        fields = [each for each in _elements(signed) if each[0] != _EXPLICIT_VERSION]
        # Serial number, algorithm, issuer, validity.
        (serial, _), _, _, (validity, dates), *_ = fields
        if (serial, validity) != (_INTEGER, _SEQUENCE):
            return None
        _, (kind, text) = _elements(dates)
        found = datetime.strptime(text.decode("ascii"), _FORMATS[kind]).replace(tzinfo=UTC)
    except (ValueError, IndexError, KeyError):
        return None
    is_too_late = kind == _UTC_TIME and found.year > _LAST_OF_UTC_TIME
    return found.replace(year=found.year - 100) if is_too_late else found


def _elements(content: bytes) -> Iterator[Element]:
    """Yield the elements that follow each other in some content.

    Raises:
        ValueError: One is longer than what is left.
        IndexError: One is cut off.
    """
    at = 0
    while at < len(content):
        tag, size = content[at], content[at + 1]
        at += 2
        if size & _LONG_FORM:
            count = size & ~_LONG_FORM
            size = int.from_bytes(content[at : at + count])
            at += count
        if at + size > len(content):
            raise ValueError("an element is longer than the rest")
        yield tag, content[at : at + size]
        at += size
