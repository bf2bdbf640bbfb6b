"""Error texts of servers and networks, reduced to one short, printable line without secrets."""

import re
import ssl
from collections.abc import Iterable
from http.client import IncompleteRead
from typing import Final

from tensorfusion_dra.core import printable

ENDED: Final = (
    *(BrokenPipeError, ConnectionResetError, ConnectionAbortedError),
    *(ssl.SSLEOFError, ssl.SSLZeroReturnError, IncompleteRead),
)
"""Errors of a connection that its other end has closed."""
_MAX_TEXT: Final = 300
_HIDDEN: Final = "<hidden>"
_MIN_SECRET: Final = 8
"""Characters. A shorter text is not a token, and redacting it would damage ordinary words."""
_CREDENTIAL: Final = re.compile(
    r"(?i:\b(bearer|basic)[\s:=\"']+)[^\s\"',;]+|\beyJ[\w-]{8,}\.[\w-]+(\.[\w-]*)?"
)


def one_line(text: object, secrets: Iterable[str] = ()) -> str:
    """Return the beginning of the text as one line, with credentials redacted.

    A server or a proxy may echo the request's headers in its answer.

    Args:
        secrets: Redacted wherever they occur, in addition to text that looks like a credential.
    """
    line = " ".join(str(text).split())
    for secret in secrets:
        if len(secret) >= _MIN_SECRET:
            line = line.replace(secret, _HIDDEN)
    # Before the line is cut: the pattern would not recognise half a token.
    line = _CREDENTIAL.sub(_HIDDEN, line)
    line = printable.one_line(line)
    return line if len(line) <= _MAX_TEXT else f"{line[: _MAX_TEXT - 3]}..."


def cause(error: BaseException) -> str:
    """Return the text of an error that left a request without an answer."""
    if isinstance(error, TimeoutError):
        return "no answer within the time"
    if isinstance(error, ENDED):
        return "connection closed before the end of the answer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
