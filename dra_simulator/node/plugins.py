"""Registration of plugins at a node, and the deletion of slices of drivers that are gone.

Sources, release 1.36: pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go; pluginwatcher, reconciler
and operationexecutor in pkg/kubelet/pluginmanager.
"""

import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Condition, Event, Lock, Thread
from typing import Final
from urllib.parse import quote

import grpc

from dra_simulator.node.context import KubeletContext
from dra_simulator.node.plugin import (
    BACKOFFS,
    DRA_SERVICES,
    HEALTH_SERVICES,
    DeviceHealth,
    Plugin,
    PluginError,
    rpc_code,
    rpc_text,
)
from dra_simulator.rest import SLICES, RestError
from tensorfusion_dra.kubelet.pb import pluginregistration_v1_pb2 as pb

Identity = tuple[int, int]

HEALTH_OF_1_36: Final = "v1alpha1.DRAResourceHealth"
"""Health service that the kubelet calls if a plugin lists no known one."""

_JOIN_SECONDS: Final = 15.0
_EVERY_DRIVER: Final = ""
_PLUGIN_TYPE: Final = "DRAPlugin"
_ERROR: Final = "RegisterPlugin error --"
_DIAL_POLL_MS: Final = 50


class Plugins:
    """Plugins by driver; several instances of a driver overlap during its update."""

    def __init__(self, setting: KubeletContext) -> None:
        self._client: Final = setting.client
        self._node_name: Final = setting.node_name
        self._timings: Final = setting.timings
        self._note: Final = setting.note
        self._changed: Final = Condition()  # guards everything below
        self._plugins: Final[dict[str, list[Plugin]]] = {}
        self._wipes: Final[dict[str, float]] = {}
        self._is_stopping = False
        self._wiper: Final = Thread(target=self._wipe_when_due, name="slice-wiper")

    def start(self, *, wipe_all: bool) -> None:
        """Start deleting slices of absent drivers, and with wipe_all first all slices."""
        if wipe_all:
            self._wipes[_EVERY_DRIVER] = time.monotonic()
        self._wiper.start()

    def stop(self) -> None:
        """Close all connections and return once all threads have ended."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            plugins = [plugin for found in self._plugins.values() for plugin in found]
            self._plugins.clear()
        if self._wiper.ident is not None:
            self._wiper.join(_JOIN_SECONDS)
        for plugin in plugins:
            plugin.close()

    def register(self, driver: str, endpoint: str, versions: Sequence[str]) -> None:
        """Add a plugin and connect to it.

        Raises:
            PluginError: It supports no known service, another plugin of the driver has its
                endpoint, or the kubelet is stopping.
        """
        plugin = Plugin(
            driver,
            endpoint,
            services=chosen_services(driver, endpoint, versions),
            timings=self._timings,
            changed=lambda: self._connection_changed(driver),
        )
        with self._changed:
            if self._is_stopping:
                raise PluginError("the kubelet is stopping")
            found = self._plugins.setdefault(driver, [])
            if any(other.endpoint == endpoint for other in found):
                raise PluginError(
                    f"endpoint {endpoint} already registered for DRA driver plugin {driver}"
                )
            found.append(plugin)
            plugin.open()
            self._schedule_wipe(driver)
        facts = {"driver": driver, "endpoint": endpoint, "service": plugin.service}
        self._note("plugin_registered", **facts)

    def deregister(self, driver: str, endpoint: str) -> None:
        """Remove a plugin, if it is registered, and close its connection."""
        with self._changed:
            found = self._plugins.get(driver, [])
            plugin = next((other for other in found if other.endpoint == endpoint), None)
            if plugin is None:
                return
            found.remove(plugin)
            if not found:
                del self._plugins[driver]
            self._schedule_wipe(driver)
        # Outside of the lock: close() waits for a thread that reports changes and takes the lock.
        plugin.close()
        self._note("plugin_deregistered", driver=driver, endpoint=endpoint)

    def plugin(self, driver: str) -> Plugin:
        """Return the driver's newest connected plugin, or its newest if none is connected.

        Raises:
            PluginError: The driver has no registered plugin.
        """
        with self._changed:
            found = self._plugins.get(driver)
            if not found:
                raise PluginError(f"DRA driver {driver} is not registered")
            connected = [plugin for plugin in found if plugin.is_connected]
            return (connected or found)[-1]

    @property
    def registered(self) -> dict[str, tuple[Plugin, ...]]:
        """Plugins by driver, in the order of their registration."""
        with self._changed:
            return {driver: tuple(found) for driver, found in self._plugins.items()}

    @property
    def health(self) -> dict[tuple[str, str, str], DeviceHealth]:
        """Valid health reports by driver, pool and device; other devices are Unknown."""
        return {
            (driver, *device): reported
            for driver, found in self.registered.items()
            for plugin in found
            for device, reported in plugin.health.items()
        }

    def _connection_changed(self, driver: str) -> None:
        with self._changed:
            self._schedule_wipe(driver)

    def _schedule_wipe(self, driver: str) -> None:
        """Schedule or cancel the deletion of a driver's slices; the caller holds the lock."""
        if any(plugin.is_connected for plugin in self._plugins.get(driver, ())):
            self._wipes.pop(driver, None)
        else:
            due = time.monotonic() + self._timings.wipe_delay_seconds
            self._wipes.setdefault(driver, due)
        self._changed.notify_all()

    def _wipe_when_due(self) -> None:
        retry_seconds = dict.fromkeys([_EVERY_DRIVER], self._timings.first_wipe_retry_seconds)
        while True:
            with self._changed:
                if self._is_stopping:
                    return
                driver, due = min(
                    self._wipes.items(), key=lambda item: item[1], default=(None, 0.0)
                )
                wait = due - time.monotonic()
                if driver is None or wait > 0:
                    self._changed.wait(None if driver is None else wait)
                    continue
            if self._wipe(driver):
                retry_seconds.pop(driver, None)
                with self._changed:
                    self._wipes.pop(driver, None)
                continue
            pause = retry_seconds.get(driver, self._timings.first_wipe_retry_seconds)
            retry_seconds[driver] = min(pause * 2, self._timings.most_wipe_retry_seconds)
            with self._changed:
                if driver in self._wipes:
                    self._wipes[driver] = time.monotonic() + pause

    def _wipe(self, driver: str) -> bool:
        selector = f"spec.nodeName={self._node_name}"
        if driver != _EVERY_DRIVER:
            selector += f",spec.driver={driver}"
        try:
            found = self._client.delete_all(SLICES, field_selector=selector)
        except RestError as error:
            self._note("slices_not_wiped", driver=driver, error=str(error))
            return False
        names = ", ".join(item["metadata"]["name"] for item in found.get("items") or ())
        self._note("slices_wiped", driver=driver, slices=names)
        return True


def chosen_services(driver: str, endpoint: str, versions: Sequence[str]) -> tuple[str, str]:
    """Return the DRA and the health service to call: the first known ones in the plugin's list.

    Raises:
        PluginError: The list is empty or has no known DRA service.
    """
    prefix = f"invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}"
    if not versions:
        raise PluginError(
            f"{prefix}: empty list of supported gRPC services (aka supported versions)"
        )
    service = next((version for version in versions if version in DRA_SERVICES), None)
    if service is None:
        offered, known = (
            " ".join(f'"{name}"' for name in names) for names in (versions, DRA_SERVICES)
        )
        raise PluginError(
            f"{prefix}: none of services supported by the plugin ([{offered}]) are supported by the"
            f" kubelet ([{known}])"
        )
    listed = (version for version in versions if version in HEALTH_SERVICES)
    return service, next(listed, HEALTH_OF_1_36)


class PluginSockets:
    """Watcher of one folder.

    One thread scans it. Each socket has a thread of its own, which registers the plugin behind it,
    and deregisters it once the socket is gone.
    """

    def __init__(self, folder: Path, plugins: Plugins, *, setting: KubeletContext) -> None:
        self._folder: Final = folder
        self._plugins: Final = plugins
        self._timings: Final = setting.timings
        self._note: Final = setting.note
        self._stopping: Final = Event()
        self._lock: Final = Lock()  # guards _channels
        self._channels: Final[set[grpc.Channel]] = set()
        # By path: a socket's identity, the event of its end, and its thread.
        self._watched: Final[dict[Path, tuple[Identity, Event, Thread]]] = {}
        self._ending: Final[list[Thread]] = []
        self._thread: Final = Thread(target=self._run, name="plugin-sockets")

    def start(self) -> None:
        """Start registering the plugins of present and future sockets."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and return once no registration runs any more."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)
        for _, gone, _ in self._watched.values():
            gone.set()
        with self._lock:
            channels = list(self._channels)
        for channel in channels:
            channel.close()
        for thread in (*self._ending, *(found[2] for found in self._watched.values())):
            thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._scan()
            self._stopping.wait(self._timings.socket_poll_seconds)

    def _scan(self) -> None:
        present = dict(_sockets(self._folder))
        self._ending[:] = [thread for thread in self._ending if thread.is_alive()]
        ended: dict[Path, Thread] = {}
        for path, (identity, gone, thread) in list(self._watched.items()):
            if present.get(path) != identity:
                gone.set()
                ended[path] = thread
                del self._watched[path]
        self._ending.extend(ended.values())
        for path, identity in present.items():
            if path not in self._watched:
                gone = Event()
                thread = Thread(
                    target=self._keep_registered,
                    args=(path, gone, ended.get(path)),
                    name=f"register-{path.name}",
                )
                self._watched[path] = identity, gone, thread
                thread.start()

    def _keep_registered(self, path: Path, gone: Event, before: Thread | None) -> None:
        """Register the plugin, repeatedly until it succeeds, and deregister it at the end.

        Args:
            before: Thread of a socket that was at this path before; it ends first.
        """
        if before is not None:
            before.join()
        backoff_seconds = self._timings.first_backoff_seconds
        while not gone.is_set():
            try:
                driver, endpoint = self._register(path)
            except PluginError as error:
                if not self._stopping.is_set():
                    self._note("plugin_registration_failed", socket=str(path), error=str(error))
                gone.wait(backoff_seconds)
                backoff_seconds = min(backoff_seconds * 2, self._timings.most_backoff_seconds)
                continue
            gone.wait()
            if not self._stopping.is_set():
                self._plugins.deregister(driver, endpoint)

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
            self._add(plugin, endpoint)
        except PluginError as error:
            text = f"{_ERROR} plugin registration failed with err: {error}"
            self._notify(channel, pb.RegistrationStatus(plugin_registered=False, error=text))
            raise PluginError(text) from error
        try:
            self._notify(channel, pb.RegistrationStatus(plugin_registered=True))
        except (grpc.RpcError, ValueError):
            self._plugins.deregister(plugin.name, endpoint)
            raise
        return plugin.name, endpoint

    def _add(self, plugin: pb.PluginInfo, endpoint: str) -> None:
        if plugin.type != _PLUGIN_TYPE:
            text = f"no handler registered for plugin type: {plugin.type} at {endpoint}"
            raise PluginError(text)
        self._plugins.register(plugin.name, endpoint, plugin.supported_versions)

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
                    self._stopping.wait(_DIAL_POLL_MS / 1000)
                    continue
                raise PluginError(
                    f"{_ERROR} failed to get plugin info using RPC GetInfo at socket {path},"
                    f" err: {rpc_text(error)}"
                ) from error

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
