"""The open connections of a server: how many, and until when each may stay as it is."""

import contextlib
import socket
import time
from dataclasses import dataclass
from threading import Condition
from typing import Final


@dataclass(slots=True)
class _Connection:
    """One connection.

    Attributes:
        deadline: On the monotonic clock; it is cut once that has passed.
        is_idle: Nothing of a request has come since the last answer.
    """

    deadline: float
    is_idle: bool = False


class Connections:
    """Every method may be called from any thread."""

    def __init__(self, *, most: int) -> None:
        self._most: Final = most
        self._changed: Final = Condition()  # guards all below
        self._open: Final[dict[socket.socket, _Connection]] = {}
        self._ending = False

    def add(self, connection: socket.socket, *, seconds: float) -> None:
        """A connection that has to go on within the time."""
        with self._changed:
            self._open[connection] = _Connection(time.monotonic() + seconds)

    def wrapped(self, connection: socket.socket, by: socket.socket) -> None:
        """A connection speaks TLS from now on, through this socket."""
        with self._changed:
            self._open[by] = self._open.pop(connection)

    def allow(self, connection: socket.socket, *, seconds: float, is_idle: bool = False) -> None:
        """The connection may go on as it does for so long."""
        with self._changed:
            self._open[connection] = _Connection(time.monotonic() + seconds, is_idle)
            if is_idle and self._ending:
                _cut(connection)

    def remove(self, connection: socket.socket) -> None:
        """The connection is closed."""
        with self._changed:
            self._open.pop(connection, None)
            self._changed.notify_all()

    def has_room(self, *, wait_seconds: float) -> bool:
        """Whether one more may be added; if need be, the one that is idle longest is cut for it."""
        with self._changed:
            if len(self._open) < self._most:
                return True
            idle = [item for item in self._open.items() if item[1].is_idle]
            if idle:
                _cut(min(idle, key=lambda item: item[1].deadline)[0])
            return self._changed.wait_for(lambda: len(self._open) < self._most, wait_seconds)

    def cut_overdue(self) -> None:
        """Ends those whose time is over."""
        now = time.monotonic()
        with self._changed:
            for connection, state in self._open.items():
                if state.deadline < now:
                    _cut(connection)

    def end(self, *, seconds: float) -> None:
        """Returns once there are none: idle ones end at once, others after their answer.

        Args:
            seconds: After these, all are cut.
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
    """Whoever reads from or writes to it comes back with an error."""
    # Not the TLS socket's own shutdown, which takes its state away from the thread that reads.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
