"""The head of an HTTP/1 answer: its status, headers, and how its body ends."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n\0]*)?")
_HEADER_LINE: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*)")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_BODILESS: Final = frozenset({204, 304})


class MalformedAnswerError(ValueError):
    """The bytes are no HTTP answer, or one in a form that is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Status and headers of an answer.

    Attributes:
        headers: Values by name in lower case; a repeated header's values are joined by commas.
        length: Number of bytes of the body; None if the body is chunked, or ends with the
            connection.
        stays_open: False if the server closes the connection after the body.
    """

    status: int
    headers: Mapping[str, str]
    length: int | None
    is_chunked: bool
    stays_open: bool


def parse_head(block: bytes) -> Head:
    """Return the head of an answer.

    Args:
        block: All lines, without the empty line that ends them.

    Raises:
        MalformedAnswerError: It is no head, or one in a form that is refused.
    """
    first, *lines = block.decode("latin-1").split("\r\n")
    found = _STATUS_LINE.fullmatch(first)
    if found is None:
        raise MalformedAnswerError(f"answer: found {_start(first)}, expected an HTTP status line")
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER_LINE.fullmatch(line)
        if header is None:
            raise MalformedAnswerError(f"answer: found {_start(line)}, expected an HTTP header")
        name, value = header[1].lower(), header[2].rstrip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    is_current = found[1] == "1"
    is_chunked, length = _framing(headers, is_current=is_current)
    status = int(found[2])
    if status in _BODILESS:
        is_chunked, length = False, 0
    return Head(
        status=status,
        headers=headers,
        length=length,
        is_chunked=is_chunked,
        stays_open=is_current
        and (is_chunked or length is not None)
        and "close" not in headers.get("connection", "").lower(),
    )


def _framing(headers: Mapping[str, str], *, is_current: bool) -> tuple[bool, int | None]:
    """Return whether the body is chunked, and its length if that is stated."""
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None:
        if coding.lower() != "chunked" or not is_current:
            version = "1.1" if is_current else "1.0"
            raise MalformedAnswerError(
                f"answer: found Transfer-Encoding {_start(coding)} in HTTP/{version}, "
                "expected 'chunked' in HTTP/1.1"
            )
        if length is not None:
            raise MalformedAnswerError(
                "answer: found Transfer-Encoding and Content-Length, expected one of them"
            )
        return True, None
    if length is not None and not _LENGTH.fullmatch(length):
        raise MalformedAnswerError(
            f"answer: found Content-Length {_start(length)}, expected one number"
        )
    return False, None if length is None else int(length)


def _start(text: str) -> str:
    # Short: a server may echo a request's token, and a cut one would not be recognised and hidden.
    return repr(text.partition(":")[0][:16])
