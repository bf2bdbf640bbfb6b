"""A gRPC server on one unix socket."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import grpc

from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.kubelet import sockets

_SOCKET_MODE: Final = 0o600
_CLOSING_SECONDS: Final = 1.0
_LONGEST_CALL_SECONDS: Final = 600.0

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
        self._server.stop(_LONGEST_CALL_SECONDS)

    def stop(self, *, grace_seconds: float) -> None:
        """Stop the server; return once it has ended. Calls in flight may finish within the time."""
        self.close()
        if self._server is not None:
            self._server.stop(grace_seconds).wait(grace_seconds + _CLOSING_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)
