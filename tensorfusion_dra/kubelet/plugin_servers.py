"""The two sockets of this instance, and the registration of the plugin.

The instance serves the DRA socket, announces itself with the registration socket, binds a socket
again if it vanishes, and at its end drains the calls in flight before it removes both sockets.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Lock
from typing import Any, Final

import grpc
import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.core.observed import RegistrationState, RegistrationView
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.kubelet.dra import KUBELET_SECONDS, MAX_STREAMS, DraService, HealthService
from tensorfusion_dra.kubelet.pb import dra_v1_pb2 as dra_pb
from tensorfusion_dra.kubelet.pb import pluginregistration_v1_pb2 as registration_pb
from tensorfusion_dra.kubelet.sockets import SocketPaths
from tensorfusion_dra.runtime.calls import MAX_READING, MAX_WAITING_FOR_A_CLAIM
from tensorfusion_dra.runtime.loops import LogThrottle

log = structlog.get_logger()

_FREE_WORKERS: Final = 24
"""Workers for calls that wait for nothing; see runtime/calls.py."""
DRA_WORKERS: Final = MAX_STREAMS + MAX_READING + MAX_WAITING_FOR_A_CLAIM + _FREE_WORKERS
"""Each open health stream and each waiting call occupies a worker. Threads start on demand."""
_REGISTRATION_WORKERS: Final = 2
_POLL_SECONDS: Final = 1.0
_SWEEP_SECONDS: Final = 60.0
_SILENCE_SECONDS: Final = 60.0
"""A kubelet dials a new socket within a second or two; otherwise it has missed the socket."""
_CHECK_SECONDS: Final = 2.0
"""For one call of a check; the kubelet itself gives GetInfo one second."""
_ANSWER_SECONDS: Final = 2.0
"""Time for the last answers to arrive and for streams to end."""
_SOCKET_MODE: Final = 0o600
_CLOSING_SECONDS: Final = 1.0
_MAX_CALL_SECONDS: Final = 600.0

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # The kubelet's connection is idle for long and sends pings (Go's keepalive). By default the
    # server answers frequent pings without data with GOAWAY.
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
)


class UnixServer:
    """A gRPC server whose socket exists from start() to stop(). Use it from one thread."""

    def __init__(
        self, path: Path, services: Sequence[grpc.GenericRpcHandler], *, workers: int
    ) -> None:
        self._path = path
        self._services = tuple(services)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=path.stem)
        self._server: grpc.Server | None = None
        self._bound: tuple[int, int] | None = None

    def start(self) -> None:
        """Bind the socket; return once the kubelet can call.

        Raises:
            FatalError: The socket cannot be bound.
        """
        server = grpc.server(self._pool, options=_OPTIONS)
        server.add_generic_rpc_handlers(self._services)
        # The socket is bound under a name that the kubelet ignores and then renamed, so that the
        # kubelet finds a socket that already listens and has its mode. Also, gRPC removes the path
        # that it has bound when a server ends. If that were the final path, it could remove the
        # socket of a successor that has bound the same path by then.
        hidden = sockets.hidden(self._path)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            sockets.remove_stale(self._path)
            # "unix:", not "unix://": with the slashes, gRPC accepts two bytes less of path.
            server.add_insecure_port(f"unix:{hidden}")
            hidden.chmod(_SOCKET_MODE)
            server.start()
            hidden.rename(self._path)
            found = self._path.lstat()
        except (RuntimeError, OSError) as error:
            with suppress(OSError):
                hidden.unlink()
            raise FatalError(f"{self._path}: cannot be served: {error}") from error
        self._server = server
        self._bound = (found.st_dev, found.st_ino)

    @property
    def is_reachable(self) -> bool:
        """True if the socket file is still the one that start() created."""
        try:
            found = self._path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._bound

    def restart(self, *, grace_seconds: float) -> None:
        """Serve on a new socket; calls in flight on the old one may finish within the time.

        Raises:
            FatalError: The socket cannot be bound. The old server keeps running.
        """
        old = self._server
        if self.is_reachable:
            self._path.unlink(missing_ok=True)
        self.start()
        if old is not None:
            old.stop(grace_seconds)

    def close(self) -> None:
        """Remove the socket and accept no new calls; those in flight go on until stop()."""
        if self._server is None:
            return
        # Removed before the listener ends; otherwise other instances would see a dead socket.
        if self.is_reachable:
            self._path.unlink(missing_ok=True)
        self._server.stop(_MAX_CALL_SECONDS)

    def stop(self, *, grace_seconds: float) -> None:
        """Stop the server; return once it has ended. Calls in flight may finish within the time."""
        self.close()
        if self._server is not None:
            self._server.stop(grace_seconds).wait(grace_seconds + _CLOSING_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)


class PluginServers:
    """The servers on both sockets, from the announcement of the plugin to the end of the last call.

    The registration socket has the Registration service, with which the kubelet asks for the
    plugin's name and reports whether it has registered it.

    Attributes:
        calls_cancelled: Number of calls still in flight at the end of the drain.
    """

    def __init__(self, paths: SocketPaths, dra: DraService, health: HealthService) -> None:
        self._paths = paths
        self._registration = RegistrationView()
        self._dra = dra
        self._health = health
        self._guard = Lock()  # guards the servers, between keep() and stop()
        self._ended = False
        self._dra_server = UnixServer(
            paths.dra, [*dra.services(), *health.services()], workers=DRA_WORKERS
        )
        plugin = registration_pb.PluginInfo(
            type=names.PLUGIN_TYPE,
            name=names.DRIVER,
            endpoint=str(paths.dra),
            supported_versions=list(names.SUPPORTED_VERSIONS),
        )
        registration = grpc.method_handlers_generic_handler(
            "pluginregistration.Registration",
            {
                "GetInfo": grpc.unary_unary_rpc_method_handler(
                    lambda _request, _context: plugin,
                    request_deserializer=registration_pb.InfoRequest.FromString,
                    response_serializer=registration_pb.PluginInfo.SerializeToString,
                ),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                    self._notify,
                    request_deserializer=registration_pb.RegistrationStatus.FromString,
                    response_serializer=registration_pb.RegistrationStatusResponse.SerializeToString,
                ),
            },
        )
        self._registration_server = UnixServer(
            paths.registration, [registration], workers=_REGISTRATION_WORKERS
        )
        self._announced = 0.0
        self.calls_cancelled = 0

    def serve(self) -> None:
        """Start answering calls; the kubelet does not know the socket yet.

        Raises:
            FatalError: The socket cannot be bound.
            RetryableError: Another instance holds the lock for binding sockets for too long.
        """
        self._sweep()
        with sockets.exclusive(self._paths.dra.parent):
            self._dra_server.start()

    def announce(self) -> None:
        """Let the kubelet discover this instance; it may call at once.

        Raises:
            FatalError: The socket cannot be bound.
            RetryableError: Another instance holds the lock for binding sockets for too long.
        """
        with sockets.exclusive(self._paths.dra.parent):
            self._registration_server.start()
        self._announced = time.monotonic()

    def check(self) -> None:
        """Return if the kubelet could register this instance and prepare claims with it.

        Calls both sockets as the kubelet does, from any thread. Each call has a new connection:
        an open one would outlive its socket's name.

        Raises:
            RetryableError: A socket does not exist, or its service does not answer; the text has
                the socket.
        """
        info = _call(
            self._paths.registration,
            "/pluginregistration.Registration/GetInfo",
            registration_pb.InfoRequest(),
            registration_pb.PluginInfo,
        )
        if info.name != names.DRIVER:
            raise RetryableError(
                f"{self._paths.registration}: found {info.name!r}, expected {names.DRIVER!r}"
            )
        _call(
            self._paths.dra,
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            dra_pb.NodePrepareResourcesRequest(),
            dra_pb.NodePrepareResourcesResponse,
        )

    def check_registered(self) -> None:
        """Return if the kubelet has registered this instance.

        Raises:
            RetryableError: It has not, or no longer.
        """
        if self._registration.state is not RegistrationState.REGISTERED:
            raise RetryableError(f"{self._paths.dra}: not registered by the kubelet")

    def registration(self) -> RegistrationView:
        """Return what the kubelet last reported."""
        return self._registration

    def keep(self, stopping: Event) -> None:
        """Bind sockets again that vanish, and remove those of dead instances, until stopping.

        If a kubelet's folder is emptied or recreated, the socket files are gone. This process would
        go on running, but the kubelet would never find it again.
        """
        swept = time.monotonic()
        throttle = LogThrottle(quiet_seconds=math.inf)
        while not stopping.wait(_POLL_SECONDS):
            try:
                with self._guard:
                    if not self._ended:
                        self._bind_what_vanished()
                throttle.over()
            except (FatalError, RetryableError) as error:
                # No reason to end the process: open connections still work.
                throttle.warn("socket_bind_failed", error)
            if time.monotonic() - swept >= _SWEEP_SECONDS:
                self._sweep()
                swept = time.monotonic()

    def stop(self, *, drain_seconds: float, stop_now: Callable[[], bool]) -> None:
        """Answer calls until none is in flight, then remove both sockets.

        The registration socket is removed last. Within a second of its removal the kubelet closes
        its connection to this instance, which cancels the calls on it (conn.Close() in
        pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go). A cancelled prepare delays its pod by a
        minute. New calls are answered during the drain too, because there may be no other instance.
        When the DRA server's end closes the connection, the kubelet turns to the instance that is
        still connected.

        Args:
            drain_seconds: The longest wait for calls in flight; after it they are cancelled.
            stop_now: Polled during the wait; True ends it.
        """
        with self._guard:
            self._ended = True
        calls, started = self._dra.calls, time.monotonic()
        calls.wait_none(seconds=drain_seconds, until=stop_now)
        self._health.stop()
        self._dra_server.close()
        # A call may have arrived just before the close.
        left_seconds = started + drain_seconds - time.monotonic()
        self.calls_cancelled = calls.wait_none(seconds=left_seconds, until=stop_now)
        if self.calls_cancelled:
            spent = round(time.monotonic() - started, 1)
            log.warning("calls_cancelled", calls=self.calls_cancelled, seconds=spent)
        self._dra_server.stop(grace_seconds=0.0 if self.calls_cancelled else _ANSWER_SECONDS)
        self._registration_server.stop(grace_seconds=0)

    def _bind_what_vanished(self) -> None:
        if not self._dra_server.is_reachable:
            with sockets.exclusive(self._paths.dra.parent):
                self._dra_server.restart(grace_seconds=KUBELET_SECONDS)
            log.warning("socket_rebound", socket=str(self._paths.dra))
        silent = time.monotonic() - self._announced >= _SILENCE_SECONDS
        unseen = silent and self._registration.state is RegistrationState.WAITING
        if unseen:
            log.warning("kubelet_awaited", seconds=_SILENCE_SECONDS, endpoint=str(self._paths.dra))
        if unseen or not self._registration_server.is_reachable:
            with sockets.exclusive(self._paths.dra.parent):
                self._registration_server.restart(grace_seconds=0)
            self._announced = time.monotonic()
            log.warning("socket_rebound", socket=str(self._paths.registration))

    def _notify(
        self, request: registration_pb.RegistrationStatus, _context: grpc.ServicerContext
    ) -> registration_pb.RegistrationStatusResponse:
        is_registered = request.plugin_registered
        self._registration = RegistrationView(
            state=RegistrationState.REGISTERED if is_registered else RegistrationState.REFUSED,
            since=datetime.now(UTC),
            error="" if is_registered else request.error,
        )
        if is_registered:
            log.info("registered", endpoint=str(self._paths.dra))
        else:
            # The kubelet tries again, with a growing delay, as long as the socket exists.
            log.warning("registration_refused", error=request.error)
        return registration_pb.RegistrationStatusResponse()

    def _sweep(self) -> None:
        try:
            for path in sockets.sweep(self._paths):
                log.info("dead_socket_removed", socket=str(path))
        except RetryableError as error:
            log.warning("socket_sweep_failed", error=str(error))


def _call(socket: Path, method: str, request: Any, response: Any) -> Any:
    # No shared subchannels: two channels to one path would otherwise be one connection.
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        call = channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            return call(request, timeout=_CHECK_SECONDS)
        except grpc.RpcError as error:
            raise RetryableError(f"{socket}: {error.code().name}: {error.details()}") from error
