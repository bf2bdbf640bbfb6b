"""Watcher of registration sockets, and the registration of the plugins behind them.

Source: pkg/kubelet/pluginmanager: pluginwatcher, reconciler and operationexecutor, release 1.36.
"""

import stat
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final
from urllib.parse import quote

import grpc

from dra_simulator.node.kubelet_context import KubeletContext
from dra_simulator.node.plugin import BACKOFFS, PluginError
from dra_simulator.node.plugins import Plugins, chosen_services
from dra_simulator.node.rpc import rpc_code, rpc_text
from tensorfusion_dra.kubelet.pb import pluginregistration_v1_pb2 as pb

Identity = tuple[int, int]

_PLUGIN_TYPE: Final = "DRAPlugin"
_ERROR: Final = "RegisterPlugin error --"
_MAX_REGISTRATIONS: Final = 8
_JOIN_SECONDS: Final = 15.0
_DIAL_POLL_MS: Final = 50
_DIAL_POLL_SECONDS: Final = _DIAL_POLL_MS / 1000


@dataclass(slots=True)
class _Socket:
    """Registration socket in the folder, and the state of its registration.

    Attributes:
        identity: Changes if the socket is removed and created again between two scans.
        running: Registration in progress; None if there is none.
        registered: Driver and endpoint once the registration has succeeded.
        next_try: Earliest time of the next registration, on the monotonic clock.
        backoff_seconds: Delay after the next failure.
    """

    identity: Identity
    backoff_seconds: float
    running: "Future[tuple[str, str]] | None" = None
    registered: tuple[str, str] | None = None
    next_try: float = 0.0


class PluginSockets:
    """Watcher of one folder; a thread scans it, and each socket has one registration at a time."""

    def __init__(self, folder: Path, plugins: Plugins, *, setting: KubeletContext) -> None:
        self._folder: Final = folder
        self._plugins: Final = plugins
        self._timings: Final = setting.timings
        self._journal: Final = setting.journal
        self._stopping: Final = Event()
        self._pool: Final = ThreadPoolExecutor(_MAX_REGISTRATIONS, thread_name_prefix="register")
        self._lock: Final = Lock()  # guards _channels
        self._channels: Final[set[grpc.Channel]] = set()
        self._sockets: Final[dict[Path, _Socket]] = {}
        self._orphaned: Final[list[Future[tuple[str, str]]]] = []
        self._thread: Final = Thread(target=self._run, name="plugin-sockets")

    def start(self) -> None:
        """Start registering the plugins of present and future sockets."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and return once no registration runs any more."""
        self._stopping.set()
        with self._lock:
            channels = list(self._channels)
        for channel in channels:
            channel.close()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)
        self._pool.shutdown()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._scan()
            self._stopping.wait(self._timings.socket_poll_seconds)

    def _scan(self) -> None:
        present = dict(_sockets(self._folder))
        for path, known in list(self._sockets.items()):
            if present.get(path) != known.identity:
                del self._sockets[path]
                self._forget(known)
        self._orphaned[:] = [
            running for running in self._orphaned if not self._undo_when_done(running)
        ]
        for path, identity in present.items():
            backoff = self._timings.first_backoff_seconds
            known = self._sockets.setdefault(path, _Socket(identity, backoff))
            if known.running is not None and known.running.done():
                self._finish(path, known, known.running)
            is_due = known.running is None and time.monotonic() >= known.next_try
            if known.registered is None and is_due:
                known.running = self._pool.submit(self._register, path)

    def _finish(self, path: Path, known: _Socket, running: "Future[tuple[str, str]]") -> None:
        known.running = None
        error = running.exception()
        if error is None:
            known.registered = running.result()
            return
        if not isinstance(error, PluginError):
            raise error
        if not self._stopping.is_set():
            self._journal.add("plugin_registration_failed", socket=str(path), error=str(error))
        known.next_try = time.monotonic() + known.backoff_seconds
        known.backoff_seconds = min(known.backoff_seconds * 2, self._timings.most_backoff_seconds)

    def _forget(self, known: _Socket) -> None:
        if known.registered is not None:
            self._plugins.deregister(*known.registered)
        if known.running is not None:
            self._orphaned.append(known.running)

    def _undo_when_done(self, running: "Future[tuple[str, str]]") -> bool:
        """Undo the registration of a socket that is gone; return False while it still runs."""
        if not running.done():
            return False
        if running.exception() is None:
            self._plugins.deregister(*running.result())
        return True

    def _register(self, path: Path) -> tuple[str, str]:
        """Register the plugin, notify it and return its driver and endpoint.

        Raises:
            PluginError: One of the steps failed.
        """
        options = [
            # As in grpc-go for a bare path; some servers reject this authority.
            ("grpc.default_authority", quote(str(path), safe="")),
            *((f"grpc.{name}_reconnect_backoff_ms", _DIAL_POLL_MS) for name in BACKOFFS),
        ]
        channel = grpc.insecure_channel(f"unix:{path}", options=options)
        with self._lock:
            self._channels.add(channel)
        try:
            return self._handshake(channel, path)
        except (grpc.RpcError, ValueError) as error:
            raise PluginError(f"{_ERROR} socket {path}: {rpc_text(error)}") from error
        finally:
            with self._lock:
                self._channels.discard(channel)
            channel.close()

    def _handshake(self, channel: grpc.Channel, path: Path) -> tuple[str, str]:
        plugin = self._info(channel, path)
        endpoint = plugin.endpoint or str(path)
        try:
            self._validate_and_register(plugin, endpoint, path)
        except PluginError as error:
            text = f"{_ERROR} {error}"
            self._notify(channel, pb.RegistrationStatus(plugin_registered=False, error=text))
            raise PluginError(text) from error
        try:
            self._notify(channel, pb.RegistrationStatus(plugin_registered=True))
        except (grpc.RpcError, ValueError):
            self._plugins.deregister(plugin.name, endpoint)
            raise
        return plugin.name, endpoint

    def _info(self, channel: grpc.Channel, path: Path) -> pb.PluginInfo:
        """Call GetInfo, repeatedly until a process listens on the socket or the time is over."""
        get_info = channel.unary_unary(
            "/pluginregistration.Registration/GetInfo",
            request_serializer=pb.InfoRequest.SerializeToString,
            response_deserializer=pb.PluginInfo.FromString,
        )
        until = time.monotonic() + self._timings.dial_seconds
        while True:
            try:
                return get_info(pb.InfoRequest(), timeout=self._timings.get_info_seconds)
            except grpc.RpcError as error:
                is_refused = rpc_code(error) is grpc.StatusCode.UNAVAILABLE
                if is_refused and time.monotonic() < until and not self._stopping.is_set():
                    self._stopping.wait(_DIAL_POLL_SECONDS)
                    continue
                raise PluginError(
                    f"{_ERROR} failed to get plugin info using RPC GetInfo at socket {path},"
                    f" err: {rpc_text(error)}"
                ) from error

    def _validate_and_register(self, plugin: pb.PluginInfo, endpoint: str, path: Path) -> None:
        if plugin.type != _PLUGIN_TYPE:
            raise PluginError(
                f"no handler registered for plugin type: {plugin.type} at socket {path}"
            )
        try:
            chosen_services(plugin.name, endpoint, plugin.supported_versions)
        except PluginError as error:
            raise PluginError(f"plugin validation failed with err: {error}") from error
        try:
            self._plugins.register(plugin.name, endpoint, plugin.supported_versions)
        except PluginError as error:
            raise PluginError(f"plugin registration failed with err: {error}") from error

    def _notify(self, channel: grpc.Channel, status: pb.RegistrationStatus) -> None:
        notify = channel.unary_unary(
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            request_serializer=pb.RegistrationStatus.SerializeToString,
            response_deserializer=pb.RegistrationStatusResponse.FromString,
        )
        notify(status, timeout=self._timings.notify_seconds)


def _sockets(folder: Path) -> Iterator[tuple[Path, Identity]]:
    """Yield all sockets in a folder and its subfolders, except names that begin with a dot."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    for path in paths:
        if path.name.startswith("."):
            continue
        try:
            found = path.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode):
            yield from _sockets(path)
        elif stat.S_ISSOCK(found.st_mode):
            yield path, (found.st_ino, found.st_mtime_ns)
