"""The two sockets of this instance: served, announced, kept in their place, drained, withdrawn."""

import time
from collections.abc import Callable
from threading import Event, Lock
from typing import Final

import structlog

from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.driver.waiting_calls import MOST_READING, MOST_WAITING_FOR_A_CLAIM
from tensorfusion_dra.kubelet import socket_files
from tensorfusion_dra.kubelet.dra import DraService
from tensorfusion_dra.kubelet.health import MOST_STREAMS, HealthService
from tensorfusion_dra.kubelet.registration import Registration
from tensorfusion_dra.kubelet.server import UnixServer
from tensorfusion_dra.kubelet.sockets import SocketPaths

log = structlog.get_logger()

_FREE_WORKERS: Final = 24
"""For the calls that wait for nothing; see driver/waiting_calls.py."""
DRA_WORKERS: Final = MOST_STREAMS + MOST_READING + MOST_WAITING_FOR_A_CLAIM + _FREE_WORKERS
"""Each open health stream and each waiting call has one; a thread exists once it is needed."""
_REGISTRATION_WORKERS: Final = 2
_LOOK_SECONDS: Final = 1.0
_SWEEP_SECONDS: Final = 60.0
_SILENCE_SECONDS: Final = 60.0
"""A kubelet dials a new socket within a second or two, or it has not seen it."""
_CALL_SECONDS: Final = 45.0
"""The kubelet's deadline for a call."""
_ANSWER_SECONDS: Final = 2.0
"""For an answer on its way, and for streams to end."""


class PluginServers:
    """Serves before it announces, and withdraws only when no call is in flight.

    Attributes:
        calls_cut: How many were in flight when the drain was over.
    """

    def __init__(
        self, paths: SocketPaths, registration: Registration, dra: DraService, health: HealthService
    ) -> None:
        self._paths = paths
        self._registration = registration
        self._dra = dra
        self._health = health
        self._guard = Lock()  # guards the servers, between keep() and stop()
        self._ended = False
        self._dra_server = UnixServer(
            paths.dra, [*dra.services(), *health.services()], workers=DRA_WORKERS
        )
        self._registration_server = UnixServer(
            paths.registration, [registration.service()], workers=_REGISTRATION_WORKERS
        )
        self._announced = 0.0
        self.calls_cut = 0

    def serve(self) -> None:
        """Calls are answered from now on; the kubelet does not know of it yet.

        Raises:
            FatalError: The socket cannot be bound.
            RetryableError: Another instance has been binding its own for too long.
        """
        self._sweep()
        with socket_files.exclusive(self._paths.dra.parent):
            self._dra_server.start()

    def announce(self) -> None:
        """The kubelet finds this instance from now on, and may call at once.

        Raises, each of them: See serve().
        """
        with socket_files.exclusive(self._paths.dra.parent):
            self._registration_server.start()
        self._announced = time.monotonic()

    def keep(self, stopping: Event) -> None:
        """Binds sockets again that vanish, and sweeps those of dead instances, until stopping.

        A kubelet's folder that is emptied or made anew takes the sockets' names with it, while
        this process lives on and would never be found again.
        """
        swept = time.monotonic()
        told = ""
        while not stopping.wait(_LOOK_SECONDS):
            try:
                with self._guard:
                    if not self._ended:
                        self._bind_what_vanished()
                told = ""
            except (FatalError, RetryableError) as error:
                # Nothing to end the process for: connections that are open go on.
                if str(error) != told:
                    log.warning("socket_not_bound", error=str(error))
                told = str(error)
            if time.monotonic() - swept >= _SWEEP_SECONDS:
                self._sweep()
                swept = time.monotonic()

    def stop(self, *, drain_seconds: float, stop_now: Callable[[], bool]) -> None:
        """Answers until no call is in flight, then takes both sockets away.

        The registration socket goes last. Within a second of its end the kubelet closes its
        connection to this instance, and with it cuts the calls on it (conn.Close() in
        pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go); a prepare that is cut costs its pod a
        minute. New calls are answered as well meanwhile: there may be no other instance. As soon as
        the DRA server's end closes the connection, the kubelet turns to the instance that is
        connected.

        Args:
            drain_seconds: The longest wait for calls in flight, which are cut then.
            stop_now: Asked meanwhile; True ends the wait.
        """
        with self._guard:
            self._ended = True
        calls, started = self._dra.calls, time.monotonic()
        calls.wait_none(seconds=drain_seconds, until=stop_now)
        self._health.stop()
        self._dra_server.close()
        # A call may have come in just before.
        left_seconds = started + drain_seconds - time.monotonic()
        self.calls_cut = calls.wait_none(seconds=left_seconds, until=stop_now)
        if self.calls_cut:
            spent = round(time.monotonic() - started, 1)
            log.warning("calls_cut", calls=self.calls_cut, seconds=spent)
        self._dra_server.stop(grace_seconds=0.0 if self.calls_cut else _ANSWER_SECONDS)
        self._registration_server.stop(grace_seconds=0)

    def _bind_what_vanished(self) -> None:
        if not self._dra_server.is_reachable:
            with socket_files.exclusive(self._paths.dra.parent):
                self._dra_server.restart(grace_seconds=_CALL_SECONDS)
            log.warning("socket_bound_again", socket=str(self._paths.dra))
        silent = time.monotonic() - self._announced >= _SILENCE_SECONDS
        unseen = silent and not self._registration.is_asked
        if unseen or not self._registration_server.is_reachable:
            with socket_files.exclusive(self._paths.dra.parent):
                self._registration_server.restart(grace_seconds=0)
            self._announced = time.monotonic()
            log.warning("socket_bound_again", socket=str(self._paths.registration))

    def _sweep(self) -> None:
        try:
            for path in socket_files.sweep(self._paths):
                log.info("dead_socket_removed", socket=str(path))
        except RetryableError as error:
            log.warning("sockets_not_swept", error=str(error))
