"""Reads that the kubelet waits for: a passing fault of the API server does not fail them."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tensorfusion_dra.core.errors import RetryableError

Answer = TypeVar("Answer")

_TRIES: Final = 3
_PAUSE_SECONDS: Final = 0.2


def answered(subject: str, ask: Callable[[float], Answer], *, wait_seconds: float) -> Answer:
    """What ask() says; asked again after a passing fault, as the kubelet would wait a minute.

    Args:
        subject: For errors.
        ask: Gets the seconds that are left for it.
        wait_seconds: For all tries together.

    Raises:
        RetryableError: It did not answer within the time or the tries.
    """
    deadline = time.monotonic() + wait_seconds
    tries_left = _TRIES
    while True:
        tries_left -= 1
        try:
            return ask(deadline - time.monotonic())
        except RetryableError as error:
            pause = time.monotonic() + _PAUSE_SECONDS < deadline
            if not tries_left or not pause:
                raise RetryableError(f"{subject}: {error}") from error
            time.sleep(_PAUSE_SECONDS)
