"""Reads that the kubelet waits for: a passing fault of the API server does not fail them."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tensorfusion_dra.cluster.api import StatusError
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.backoff import Backoff
from tensorfusion_dra.driver.ports.cluster import MissingRightError

Answer = TypeVar("Answer")

_ALL_SECONDS: Final = 15.0
"""The kubelet asks again after a minute, so some patience pays. But each call that waits takes a
worker from those that need no API server."""
_TRY_SECONDS: Final = 5.0
"""A connection that died without a word answers nothing, and the next one may."""
_LASTING: Final = frozenset({400, 403, 405, 406, 410, 415, 422})
"""What the next second changes nothing about."""


def answered(subject: str, ask: Callable[[float], Answer], *, wait_seconds: float) -> Answer:
    """What ask() says; asked again after a passing fault.

    Args:
        subject: For errors.
        ask: Gets the seconds that it may take.
        wait_seconds: For all tries together.

    Raises:
        RetryableError: It did not answer within the time, or refused.
    """
    deadline = time.monotonic() + min(wait_seconds, _ALL_SECONDS)
    backoff = Backoff(first_seconds=0.2, longest_seconds=2)
    while True:
        try:
            return ask(min(_TRY_SECONDS, deadline - time.monotonic()))
        except RetryableError as error:
            delay = backoff.failed(at_least=error.after_seconds)
            if _is_lasting(error) or time.monotonic() + delay >= deadline:
                raise RetryableError(f"{subject}: {error}") from error
            time.sleep(delay)


def _is_lasting(error: RetryableError) -> bool:
    if isinstance(error, StatusError):
        return error.status in _LASTING
    return isinstance(error, MissingRightError)
