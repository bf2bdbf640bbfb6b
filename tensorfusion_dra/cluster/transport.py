"""What goes wrong between us and the API server: which of it is tried again, and its words."""

from types import TracebackType
from typing import Any, Self

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    MaxRetryError,
    NewConnectionError,
    ReadTimeoutError,
)
from urllib3.exceptions import TimeoutError as HTTPTimeoutError


class StaleConnectionRetry(urllib3.Retry):
    """One more try where the server had closed a pooled connection meanwhile, and no other.

    A server that does not answer would take the time of a call twice, and what it answers, 429
    included, is for those who asked: they have a back-off of their own.
    """

    def __init__(self, total: int = 1, **more: Any) -> None:
        more = {"status": 0, "redirect": 0, "other": 0, "respect_retry_after_header": False, **more}
        super().__init__(total, **more)

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: Any = None,
        error: Exception | None = None,
        _pool: Any = None,
        _stacktrace: TracebackType | None = None,
    ) -> Self:
        """See urllib3.Retry."""
        if isinstance(error, ReadTimeoutError | ConnectTimeoutError | NewConnectionError):
            raise error
        return super().increment(method, url, response, error, _pool, _stacktrace)


def cause(error: Exception) -> str:
    """Why there was no answer, by its innermost cause: the library wraps it many times."""
    found: BaseException = error
    for _ in range(10):
        inner = _inner(found)
        if inner is None:
            break
        found = inner
    if isinstance(found, HTTPTimeoutError | TimeoutError):
        return "no answer within the time"
    if isinstance(found, OSError) and found.strerror:
        return found.strerror
    return str(found) or type(found).__name__


def _inner(error: BaseException) -> BaseException | None:
    if isinstance(error, MaxRetryError):
        return error.reason
    # A connection that is refused is a kind of timeout to this library.
    if isinstance(error, HTTPTimeoutError) and not isinstance(error, NewConnectionError):
        return None
    nested = (argument for argument in error.args if isinstance(argument, Exception))
    return error.__cause__ or next(nested, None)
