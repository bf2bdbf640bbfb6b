"""Plugins of a node: their registration, the calls to them, and slices of absent drivers.

Sources, release 1.37: pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go; pluginwatcher, reconciler
and operationexecutor in pkg/kubelet/pluginmanager.
"""

import contextlib
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Event, Lock, Thread
from typing import Any, Final
from urllib.parse import quote

import grpc

from dra_simulator.rest import SLICES, Client, RestError
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.kubelet.pb import (
    dra_health_v1_pb2,
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    dra_v1beta1_pb2,
)
from tensorfusion_dra.kubelet.pb import pluginregistration_v1_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Times of a kubelet, with the values of Kubernetes as defaults.

    Exceptions are the socket poll, because a real kubelet uses inotify instead, and the two retry
    delays that do not grow here.

    Attributes:
        socket_poll_seconds: Interval between two scans of the registration folder.
        dial_seconds, get_info_seconds, notify_seconds: Timeouts of the steps of a registration.
        registration_retry_seconds: Delay before a retry of a failed registration; a real
            kubelet waits longer from try to try.
        call_seconds: Timeout of one prepare or unprepare call.
        health_retry_seconds: Delay before an ended health stream is opened again.
        health_timeout_seconds: Validity of a health message that has no timeout of its own.
        wipe_delay_seconds: Time that a driver may be away before its slices are deleted.
        wipe_retry_seconds: Delay before a retry of a failed deletion of slices; as above.
        prepare_retry_seconds: Delay before a retry for a pod whose claims could not be prepared.
        container_retry_seconds: Delay before a retry for a container that could not be created.
        unprepare_retry_seconds: Delay before a retry for a pod whose claims could not be
            unprepared.
    """

    socket_poll_seconds: float = 0.1
    dial_seconds: float = 10.0
    get_info_seconds: float = 1.0
    notify_seconds: float = 5.0
    registration_retry_seconds: float = 0.5
    call_seconds: float = 45.0
    health_retry_seconds: float = 5.0
    health_timeout_seconds: float = 30.0
    wipe_delay_seconds: float = 30.0
    wipe_retry_seconds: float = 1.0
    prepare_retry_seconds: float = 60.0
    container_retry_seconds: float = 10.0
    unprepare_retry_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One event in a kubelet's journal.

    Attributes:
        seconds: Time since the epoch.
        event: Name in the past tense, for example ``plugin_registered``.
    """

    seconds: float
    event: str
    facts: Mapping[str, str]

    def __str__(self) -> str:
        return " ".join([self.event, *(f"{name}={value}" for name, value in self.facts.items())])


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletContext:
    """Node, API client, times and journal of one kubelet; the journal is in order of time."""

    node_name: str
    client: Client
    timings: Timings
    journal: list[Entry] = field(default_factory=list)

    def note(self, event: str, **facts: str) -> None:
        """Append an entry to the journal."""
        self.journal.append(Entry(time.time(), event, facts))


DRA_SERVICES: Final[Mapping[str, Any]] = {
    "v1.DRAPlugin": dra_v1_pb2,
    "v1beta1.DRAPlugin": dra_v1beta1_pb2,
}
HEALTH_SERVICES: Final[Mapping[str, Any]] = {
    "v1.DRAResourceHealth": dra_health_v1_pb2,
    "v1alpha1.DRAResourceHealth": dra_health_v1alpha1_pb2,
}

_PACKAGE: Final = "k8s.io.kubelet.pkg.apis.dra"
_MAX_MESSAGE: Final = 1024
_RECONNECT_SECONDS: Final = 0.05
BACKOFFS: Final = ("initial", "max")
"""Prefixes of the channel options that set the delays before a reconnect."""

_CONNECT_SECONDS: Final = 0.1


class PluginError(DriverError):
    """A plugin violates the kubelet's protocol, or a call to it failed."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """Reference to a claim in calls to plugins."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """Prepared device in a plugin's response.

    Attributes:
        requests: Requests of the claim that the device is for; empty for all.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """Health of a device, as reported by its plugin.

    Attributes:
        status: HEALTHY, UNHEALTHY or UNKNOWN.
        until: End of the report's validity, on the monotonic clock.
    """

    status: str
    message: str
    until: float


class Plugin:
    """Kubelet's client of a plugin; it keeps a connection from `open` until `close`.

    Attributes:
        is_connected: True while the plugin can be expected to receive calls.
    """

    def __init__(
        self,
        driver: str,
        endpoint: str,
        *,
        services: tuple[str, str],
        timings: Timings,
        changed: Callable[[], None],
    ) -> None:
        """Create the client; `open` connects it.

        Args:
            services: Names of the services to call, one of DRA_SERVICES and one of
                HEALTH_SERVICES.
            changed: Called when the connection is established or lost, in the health thread.
        """
        self.driver: Final = driver
        self.endpoint: Final = endpoint
        self.service, self._health_service = services
        self._messages: Final = DRA_SERVICES[self.service]
        self._health_messages: Final = HEALTH_SERVICES[self._health_service]
        self._timings: Final = timings
        self._changed: Final = changed
        self.is_connected = False
        self._closing: Final = Event()
        self._lock: Final = Lock()  # guards _health and _stream
        self._health: dict[tuple[str, str], DeviceHealth] = {}
        self._stream: Any = None
        backoff_ms = int(_RECONNECT_SECONDS * 1000)
        self._channel: Final = grpc.insecure_channel(
            "unix:" + endpoint,
            options=[
                ("grpc.default_authority", "localhost"),
                # Shorter than grpc-go's 1 s to 120 s, so that simulations need not wait.
                *((f"grpc.{name}_reconnect_backoff_ms", backoff_ms) for name in BACKOFFS),
            ],
        )
        self._health_thread: Final = Thread(target=self._watch_health, name=f"health-{driver}")

    def open(self) -> None:
        """Connect, and reconnect whenever the connection is lost."""
        self._health_thread.start()

    def close(self) -> None:
        """Close the connection and return once its thread has ended."""
        self._closing.set()
        with self._lock:
            if self._stream is not None:
                self._stream.cancel()
        if self._health_thread.ident is not None:
            self._health_thread.join(_JOIN_SECONDS)
        self._channel.close()

    @property
    def health(self) -> dict[tuple[str, str], DeviceHealth]:
        """Latest valid reports by pool and device."""
        now = time.monotonic()
        with self._lock:
            return {name: found for name, found in self._health.items() if found.until > now}

    def prepare(self, claims: Sequence[ClaimRef]) -> dict[str, tuple[PreparedDevice, ...]]:
        """Prepare claims and return the devices of each, by claim UID.

        Raises:
            PluginError: The call failed, or the response has an error for a claim, lacks a claim
                or has a claim that the call did not name.
        """
        answers = self._call("NodePrepareResources", claims)
        return {
            uid: tuple(_device(device) for device in answer.devices)
            for uid, answer in answers.items()
        }

    def unprepare(self, claims: Sequence[ClaimRef]) -> None:
        """Unprepare claims.

        Raises:
            PluginError: As for `prepare`.
        """
        self._call("NodeUnprepareResources", claims)

    def _call(self, method: str, claims: Sequence[ClaimRef]) -> Mapping[str, Any]:
        messages = self._messages
        version = self.service.partition(".")[0]
        request = getattr(messages, f"{method}Request")(
            claims=[
                messages.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)
                for claim in claims
            ]
        )
        call = self._channel.unary_unary(
            f"/{_PACKAGE}.{version}.DRAPlugin/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(messages, f"{method}Response").FromString,
        )
        try:
            response = call(request, timeout=self._timings.call_seconds)
        except (grpc.RpcError, ValueError) as error:
            raise PluginError(f"{method}: {rpc_text(error)}") from error
        names = {claim.uid: claim.name for claim in claims}
        for uid, answer in response.claims.items():
            if uid not in names:
                raise PluginError(f"{method} returned result for unknown claim UID {uid}")
            if answer.error:
                text = f"{method} failed for ResourceClaim {names[uid]}: {answer.error}"
                raise PluginError(text)
        unfinished = len(names) - len(response.claims)
        if unfinished:
            raise PluginError(f"{method} skipped {unfinished} ResourceClaims")
        found: Mapping[str, Any] = response.claims
        return found

    def _watch_health(self) -> None:
        """Keep a health stream open, which also shows the state of the connection.

        The channel reports that state too, but only in a thread of its own that cannot be joined.
        """
        while not self._closing.is_set():
            stream, ended = self._open_stream()
            if not ended.wait(_CONNECT_SECONDS):
                # The stream would have failed by now if no process listened.
                self._set_connected(connected=True)
            with contextlib.suppress(grpc.RpcError):
                for response in stream:
                    self._store_health(response)
            with self._lock:
                self._health = {}
            # Any other status, such as Unimplemented, is a response of the plugin.
            if stream.code() is grpc.StatusCode.UNAVAILABLE:
                self._set_connected(connected=False)
                self._closing.wait(_RECONNECT_SECONDS)
            else:
                self._pause_while_connected(self._timings.health_retry_seconds)

    def _pause_while_connected(self, seconds: float) -> None:
        """Wait before the next stream, and notice if the plugin goes away meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._closing.wait(min(left, _CONNECT_SECONDS)):
                return
            if not is_served(self.endpoint):
                self._set_connected(connected=False)
                return

    def _open_stream(self) -> tuple[Any, Event]:
        """Return a new health stream, and an event that is set when it ends."""
        messages = self._health_messages
        package = self._health_service.partition(".")[0]
        call = self._channel.unary_stream(
            f"/{package}.DRAResourceHealth/NodeWatchResources",
            request_serializer=messages.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=messages.NodeWatchResourcesResponse.FromString,
        )(messages.NodeWatchResourcesRequest())
        ended = Event()
        if not call.add_callback(ended.set):
            ended.set()
        with self._lock:
            self._stream = call
            if self._closing.is_set():
                call.cancel()
        return call, ended

    def _set_connected(self, *, connected: bool) -> None:
        if connected is not self.is_connected and not self._closing.is_set():
            self.is_connected = connected
            self._changed()

    def _store_health(self, response: Any) -> None:
        """Store the reports of a message; devices that it lacks keep theirs until it expires."""
        now = time.monotonic()
        for device in response.devices:
            seconds = device.health_check_timeout_seconds
            if seconds <= 0:
                seconds = self._timings.health_timeout_seconds
            reported = DeviceHealth(
                status=self._health_messages.HealthStatus.Name(device.health),
                message=device.message[:_MAX_MESSAGE],
                until=now + seconds,
            )
            with self._lock:
                self._health[device.device.pool_name, device.device.device_name] = reported


def _device(device: Any) -> PreparedDevice:
    has_share = "share_id" in device.DESCRIPTOR.fields_by_name and device.HasField("share_id")
    return PreparedDevice(
        requests=tuple(device.request_names),
        pool=device.pool_name,
        device=device.device_name,
        cdi_ids=tuple(device.cdi_device_ids),
        share_id=device.share_id if has_share else None,
    )


def is_served(endpoint: str) -> bool:
    """Return True if a process listens on the socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(endpoint)
        except TimeoutError:
            return True
        except OSError:
            return False
    return True


def rpc_code(error: Exception) -> grpc.StatusCode | None:
    """Return the gRPC status code of an error; None if the call was not sent."""
    # grpcio's errors are also its calls, which its type stubs do not declare.
    found: grpc.StatusCode | None = error.code() if hasattr(error, "code") else None
    return found


def rpc_text(error: Exception) -> str:
    """Return the text of a failed call in the format of grpc-go."""
    code = rpc_code(error)
    if code is None or not hasattr(error, "details"):
        return str(error)
    name = "".join(part.capitalize() for part in code.name.split("_"))
    return f"rpc error: code = {name} desc = {error.details()}"


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
        self._setting: Final = setting
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
            timings=self._setting.timings,
            changed=lambda: self._schedule_wipe(driver),
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
        self._setting.note("plugin_registered", **facts)

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
        self._setting.note("plugin_deregistered", driver=driver, endpoint=endpoint)

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

    def _schedule_wipe(self, driver: str) -> None:
        """Schedule or cancel the deletion of a driver's slices."""
        with self._changed:
            if any(plugin.is_connected for plugin in self._plugins.get(driver, ())):
                self._wipes.pop(driver, None)
            else:
                due = time.monotonic() + self._setting.timings.wipe_delay_seconds
                self._wipes.setdefault(driver, due)
            self._changed.notify_all()

    def _wipe_when_due(self) -> None:
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
            is_wiped = self._wipe(driver)
            with self._changed:
                if is_wiped:
                    self._wipes.pop(driver, None)
                elif driver in self._wipes:
                    self._wipes[driver] = (
                        time.monotonic() + self._setting.timings.wipe_retry_seconds
                    )

    def _wipe(self, driver: str) -> bool:
        selector = f"spec.nodeName={self._setting.node_name}"
        if driver != _EVERY_DRIVER:
            selector += f",spec.driver={driver}"
        try:
            found = self._setting.client.delete_all(SLICES, field_selector=selector)
        except RestError as error:
            self._setting.note("slices_not_wiped", driver=driver, error=str(error))
            return False
        names = ", ".join(item["metadata"]["name"] for item in found.get("items") or ())
        self._setting.note("slices_wiped", driver=driver, slices=names)
        return True


def chosen_services(driver: str, endpoint: str, versions: Sequence[str]) -> tuple[str, str]:
    """Return the DRA service to call, the first known one in the plugin's list, and health's.

    Of the listed health services, that is the newest. The kubelet calls none that is not listed;
    this one always calls one, to see the state of the connection.

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
    listed = (health for health in HEALTH_SERVICES if health in versions)
    return service, next(listed, HEALTH_OF_1_36)


class PluginSockets:
    """Watcher of one folder.

    One thread scans it. Each socket has a thread of its own, which registers the plugin behind it,
    and deregisters it once the socket is gone.
    """

    def __init__(self, folder: Path, plugins: Plugins, *, setting: KubeletContext) -> None:
        self._folder: Final = folder
        self._plugins: Final = plugins
        self._setting: Final = setting
        self._stopping: Final = Event()
        # By path: a socket's identity, the event of its end, and its thread.
        self._watched: Final[dict[Path, tuple[Identity, Event, Thread]]] = {}
        self._threads: Final[list[Thread]] = []
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
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._scan()
            self._stopping.wait(self._setting.timings.socket_poll_seconds)

    def _scan(self) -> None:
        present = dict(_sockets(self._folder))
        ended: dict[Path, Thread] = {}
        for path, (identity, gone, thread) in list(self._watched.items()):
            if present.get(path) != identity:
                gone.set()
                ended[path] = thread
                del self._watched[path]
        for path, identity in present.items():
            if path not in self._watched:
                gone = Event()
                thread = Thread(
                    target=self._keep_registered,
                    args=(path, gone, ended.get(path)),
                    name=f"register-{path.name}",
                )
                self._watched[path] = identity, gone, thread
                self._threads.append(thread)
                thread.start()

    def _keep_registered(self, path: Path, gone: Event, before: Thread | None) -> None:
        """Register the plugin, repeatedly until it succeeds, and deregister it at the end.

        Args:
            before: Thread of a socket that was at this path before; it ends first.
        """
        if before is not None:
            before.join()
        while not gone.is_set():
            try:
                driver, endpoint = self._register(path)
            except PluginError as error:
                if not self._stopping.is_set():
                    self._setting.note(
                        "plugin_registration_failed", socket=str(path), error=str(error)
                    )
                gone.wait(self._setting.timings.registration_retry_seconds)
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
        with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
            try:
                return self._handshake(channel, path)
            except grpc.RpcError as error:
                raise PluginError(f"{_ERROR} socket {path}: {rpc_text(error)}") from error

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
        except grpc.RpcError:
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
        until = time.monotonic() + self._setting.timings.dial_seconds
        while True:
            try:
                return get_info(pb.InfoRequest(), timeout=self._setting.timings.get_info_seconds)
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
        notify(status, timeout=self._setting.timings.notify_seconds)


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
