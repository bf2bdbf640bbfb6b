"""A gRPC server on one unix socket."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc

from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.kubelet import sockets

_SOCKET_MODE: Final = 0o600

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # The kubelet's connection idles for long and pings meanwhile (Go's keepalive); by default the
    # server answers frequent pings without data with GOAWAY.
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
)


class UnixServer:
    """Serves from start() to stop(); the socket exists exactly that long."""

    def __init__(
        self, path: Path, services: Iterable[grpc.GenericRpcHandler], *, workers: int
    ) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=path.stem)
        self._server = grpc.server(self._pool, options=_OPTIONS)
        self._server.add_generic_rpc_handlers(tuple(services))

    def start(self) -> None:
        """Returns once the kubelet can call.

        Raises:
            FatalError: The socket cannot be bound.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        sockets.make_way(self._path)
        try:
            # "unix:" and not "unix://": with the slashes, gRPC fits two bytes less.
            self._server.add_insecure_port(f"unix:{self._path}")
            self._path.chmod(_SOCKET_MODE)
        except (RuntimeError, OSError) as error:
            raise FatalError(f"{self._path}: cannot be served: {error}") from error
        self._server.start()

    def stop(self, *, grace_seconds: float) -> None:
        """Takes no new calls, lets running ones finish within the time, removes the socket."""
        stopped = self._server.stop(grace_seconds)
        self._path.unlink(missing_ok=True)
        stopped.wait(grace_seconds + 5)
        self._pool.shutdown(wait=False, cancel_futures=True)


def unlink(path: Path) -> None:
    """Takes a socket's name away while its server still answers calls in flight."""
    path.unlink(missing_ok=True)
