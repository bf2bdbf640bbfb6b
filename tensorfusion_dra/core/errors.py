"""Errors, sorted by who reacts to them.

A text names the subject, what was found and what was expected, for example
``gpu-0: vram 42 of 40 bytes``.
"""

from collections.abc import Mapping
from typing import Any

from tensorfusion_dra.core import printable


class DriverError(Exception):
    """Root of every error that this package raises on purpose.

    Its text is one printable line, whatever external text it quotes.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(printable.one_line(text))


class InputError(DriverError):
    """A flag, settings file, profile or model table is invalid: one line on stderr, exit code 2."""


class ClaimError(DriverError):
    """One claim cannot be prepared or unprepared; the kubelet shows the text and calls again."""


class RetryableError(DriverError):
    """The same call may succeed later; a loop that gets this error backs off.

    Attributes:
        after_seconds: Time that the other side requests before the next call; 0 if none.
    """

    def __init__(self, text: str, *, after_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.after_seconds = after_seconds


class StatusError(RetryableError):
    """The API server answered with an error.

    Attributes:
        status: The HTTP status.
        details: The details of its Status object, such as kind and name of a missing object. Empty
            if a proxy answered instead of the API server, or if the API server does not have the
            path.
    """

    def __init__(
        self,
        text: str,
        status: int,
        *,
        details: Mapping[str, Any] | None = None,
        after_seconds: float = 0.0,
    ) -> None:
        super().__init__(text, after_seconds=after_seconds)
        self.status = status
        self.details = details or {}


class MissingPermissionError(RetryableError):
    """The API server refuses a call because the driver lacks a permission.

    It does so until an administrator grants the permission.

    Attributes:
        permission: The missing permission; the same text for all objects that it applies to.
    """

    def __init__(self, text: str, permission: str) -> None:
        super().__init__(text)
        self.permission = permission


class UnreadableError(RetryableError):
    """The API server's answer is not an object that can be read.

    An immediate retry would get the same answer; other objects may be readable.
    """


def is_of_one_object(error: RetryableError) -> bool:
    """Return True if the API server answered, and may take the same request for another object.

    An example is a claim that is as large as the server stores, and gets no status any more. That
    is a 500 of etcd's.
    """
    return isinstance(error, UnreadableError) or (
        isinstance(error, StatusError) and error.status not in {401, 403, 429, 502, 503, 504}
    )


class HungError(RetryableError):
    """A call into the NVIDIA driver does not return; it cannot be cancelled either.

    Attributes:
        call: Description of the call; the same text for the same call, however old it is.
    """

    def __init__(self, text: str, call: str) -> None:
        super().__init__(text)
        self.call = call


class NoRoomError(RetryableError):
    """The disk is full; the same call succeeds once there is room."""


class FatalError(DriverError):
    """Continuing could hand out devices wrongly: the process exits."""
