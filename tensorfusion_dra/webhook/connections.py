"""The open connections of a server, bounded in number, each with a deadline.

If there are too many, one is cut for each new one: first the oldest of those that have never sent a
whole request, then the one that has been idle longest. So clients that connect and send nothing
make room for each other, and the API server keeps the connections that it has used.
"""

import contextlib
import socket
import time
from dataclasses import dataclass
from threading import Condition
from typing import Final


@dataclass(slots=True)
class _Connection:
    """State of one connection.

    Attributes:
        deadline: On the monotonic clock. The connection is cut after it.
        is_idle: True if no byte of a request has arrived since the last answer.
        is_used: True if a whole request has arrived at any time.
    """

    deadline: float
    is_idle: bool = False
    is_used: bool = False


class Connections:
    """The open connections; every method may be called from any thread."""

    def __init__(self, *, most: int) -> None:
        self._most: Final = most
        self._changed: Final = Condition()  # guards all below
        self._open: Final[dict[socket.socket, _Connection]] = {}
        self._ending = False

    def add(self, connection: socket.socket, *, seconds: float) -> None:
        """Add a connection that must make progress within the time."""
        with self._changed:
            self._open[connection] = _Connection(time.monotonic() + seconds)

    def wrapped(self, connection: socket.socket, by: socket.socket) -> None:
        """Replace a connection's socket with the TLS socket that wraps it."""
        with self._changed:
            self._open[by] = self._open.pop(connection)

    def allow(self, connection: socket.socket, *, seconds: float, is_idle: bool = False) -> None:
        """Set a connection's new deadline and whether it is idle.

        An idle connection is cut at once if the server is stopping.
        """
        with self._changed:
            state = self._open[connection]
            state.deadline, state.is_idle = time.monotonic() + seconds, is_idle
            if is_idle and self._ending:
                _cut(connection)

    def use(self, connection: socket.socket, *, seconds: float) -> None:
        """Mark a connection as used, because a whole request has arrived; set its new deadline."""
        with self._changed:
            self._open[connection] = _Connection(time.monotonic() + seconds, is_used=True)

    def remove(self, connection: socket.socket) -> None:
        """Remove a connection that is closed."""
        with self._changed:
            self._open.pop(connection, None)
            self._changed.notify_all()

    def has_room(self, *, wait_seconds: float) -> bool:
        """Return True if one more may be added, after cutting one if necessary."""
        with self._changed:
            if len(self._open) < self._most:
                return True
            unused = next((each for each, state in self._open.items() if not state.is_used), None)
            idle = [item for item in self._open.items() if item[1].is_idle]
            if unused is not None:
                _cut(unused)
            elif idle:
                _cut(min(idle, key=lambda item: item[1].deadline)[0])
            return self._changed.wait_for(lambda: len(self._open) < self._most, wait_seconds)

    def cut_overdue(self) -> None:
        """Cut the connections whose deadline has passed."""
        now = time.monotonic()
        with self._changed:
            for connection, state in self._open.items():
                if state.deadline < now:
                    _cut(connection)

    def end(self, *, seconds: float) -> None:
        """Return once no connection is left: idle ones end at once, busy ones after their answer.

        Args:
            seconds: Time after which all remaining connections are cut.
        """
        with self._changed:
            self._ending = True
            for connection, state in self._open.items():
                if state.is_idle:
                    _cut(connection)
            if not self._changed.wait_for(lambda: not self._open, seconds):
                for connection in self._open:
                    _cut(connection)
                self._changed.wait_for(lambda: not self._open, 1)


def _cut(connection: socket.socket) -> None:
    """Shut a connection down; a thread that reads or writes gets an error."""
    # Not the TLS socket's own shutdown, which discards state that the reading thread still uses.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
