"""Errors, sorted by who reacts to them.

A text says subject, what was found and what was expected, for example
``gpu-0: vram 42 of 40 bytes``.
"""

from tensorfusion_dra.core import printable


class DriverError(Exception):
    """The root of every error that this package raises on purpose.

    Its text is one printable line, whatever names from outside it cites.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(printable.one_line(text))


class InputError(DriverError):
    """A flag, settings file, profile or model table is wrong: one line on stderr, exit 2."""


class ClaimError(DriverError):
    """One claim cannot be prepared or unprepared; the kubelet shows the text and asks again."""


class RetryableError(DriverError):
    """The same call may work later; whoever loops backs off.

    Attributes:
        after_seconds: How long the other side asks not to be called again.
    """

    def __init__(self, text: str, *, after_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.after_seconds = after_seconds


class NoRoomError(RetryableError):
    """The disk is full; the same call works once there is room."""


class FatalError(DriverError):
    """Going on could hand out devices wrongly: the process exits."""
