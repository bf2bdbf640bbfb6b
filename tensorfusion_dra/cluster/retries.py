"""Reads that survive transient faults of the API server, for calls that the kubelet waits for."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tensorfusion_dra.cluster.api import StatusError
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports.cluster import MissingRightError, UnreadableError
from tensorfusion_dra.runtime.backoff import Backoff
from tensorfusion_dra.runtime.waiting_calls import MOST_READING, WaitingCalls

Answer = TypeVar("Answer")

_ALL_SECONDS: Final = 15.0
"""The kubelet repeats a failed call after a minute, so some patience pays off. But each waiting
call takes a worker from the calls that need no API server."""
_TRY_SECONDS: Final = 5.0
"""A connection that died silently never answers, but a new one may."""
_LASTING: Final = frozenset({400, 403, 405, 406, 410, 415, 422})
"""HTTP statuses that a quick retry does not change."""


class RetriedReads:
    """Retries of reads after transient faults, for a bounded number of callers at a time."""

    def __init__(self, *, most: int = MOST_READING) -> None:
        self._waiting = WaitingCalls(most, reason="wait for the API server")

    def with_retries(
        self, subject: str, ask: Callable[[float], Answer], *, wait_seconds: float
    ) -> Answer:
        """Return the result of ask(), which is called again after a transient fault.

        Args:
            subject: Prefix of error texts.
            ask: Sends the request. Its argument is the number of seconds that it may take.
            wait_seconds: For all tries together.

        Raises:
            UnreadableError: The answer cannot be read.
            RetryableError: The API server did not answer within the time or refused, or too many
                callers are waiting already.
        """
        with self._waiting.slot(subject):
            return _answered(subject, ask, wait_seconds=wait_seconds)


def _answered(subject: str, ask: Callable[[float], Answer], *, wait_seconds: float) -> Answer:
    deadline = time.monotonic() + min(wait_seconds, _ALL_SECONDS)
    backoff = Backoff(first_seconds=0.2, longest_seconds=2)
    answer: StatusError | None = None  # the last one of the API server
    while True:
        try:
            return ask(min(_TRY_SECONDS, deadline - time.monotonic()))
        except UnreadableError as error:
            raise UnreadableError(f"{subject}: {error}") from error
        except RetryableError as error:
            answer = error if isinstance(error, StatusError) else answer
            delay = backoff.failed(at_least=error.after_seconds)
            if _is_lasting(error) or time.monotonic() + delay >= deadline:
                # An answer says more than the silence of a last try for which no time was left.
                raise RetryableError(f"{subject}: {answer or error}") from error
            time.sleep(delay)


def _is_lasting(error: RetryableError) -> bool:
    if isinstance(error, StatusError):
        return error.status in _LASTING
    return isinstance(error, MissingRightError)
