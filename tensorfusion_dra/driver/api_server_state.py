"""What this process last heard of the API server, for those who look at the node."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from threading import Lock
from typing import Final

from tensorfusion_dra.core.observed.node_view import ApiServerView

_SERVER_ERRORS: Final = 500
_REFUSALS: Final = frozenset({401, 403, 429})
"""Errors that concern this driver as a whole; the others, such as 404, are answers."""


class ApiServerState:
    """Last success and last error; implements ports.cluster.Exchanges."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Start without any request.

        Args:
            now: Returns the wall clock's time.
        """
        self._now = now
        self._lock = Lock()  # guards changes of _view
        self._view = ApiServerView()

    def view(self) -> ApiServerView:
        """Return the present state."""
        return self._view

    def answered(self, method: str, status: int, error: str, *, path: str = "") -> None:
        if status >= _SERVER_ERRORS or status in _REFUSALS:
            self._note_error(error)
        else:
            self.heard()

    def unanswered(self, method: str, error: str, *, path: str = "") -> None:
        self._note_error(error)

    def heard(self) -> None:
        with self._lock:
            self._view = replace(self._view, last_success_at=self._now())

    def _note_error(self, error: str) -> None:
        with self._lock:
            self._view = replace(self._view, last_error_at=self._now(), last_error=error)
