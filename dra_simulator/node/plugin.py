"""Connection, calls and health stream of one registered plugin."""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any, Final

import grpc

from dra_simulator.node.context import Timings
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.kubelet.pb import (
    dra_health_v1_pb2,
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    dra_v1beta1_pb2,
)

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
_JOIN_SECONDS: Final = 5.0
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
    """Kubelet's client of a plugin; it keeps a connection from `open` until `close`."""

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
        self._is_connected = False
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
    def is_connected(self) -> bool:
        """True while the plugin can be expected to receive calls."""
        return self._is_connected

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
            stream = self._open_stream()
            if not stream.ended.wait(_CONNECT_SECONDS):
                # The stream would have failed by now if no process listened.
                self._set_connected(connected=True)
            try:
                for response in stream.call:
                    self._store_health(response)
            except grpc.RpcError:
                pass
            with self._lock:
                self._health = {}
            # Any other status, such as Unimplemented, is a response of the plugin.
            if stream.call.code() is grpc.StatusCode.UNAVAILABLE:
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

    def _open_stream(self) -> "_Stream":
        messages = self._health_messages
        package = self._health_service.partition(".")[0]
        call = self._channel.unary_stream(
            f"/{package}.DRAResourceHealth/NodeWatchResources",
            request_serializer=messages.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=messages.NodeWatchResourcesResponse.FromString,
        )(messages.NodeWatchResourcesRequest())
        stream = _Stream(call)
        if not call.add_callback(stream.ended.set):
            stream.ended.set()
        with self._lock:
            self._stream = call
            if self._closing.is_set():
                call.cancel()
        return stream

    def _set_connected(self, *, connected: bool) -> None:
        if connected is not self._is_connected and not self._closing.is_set():
            self._is_connected = connected
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


class _Stream:
    """Open health stream."""

    def __init__(self, call: Any) -> None:
        self.call: Final = call
        self.ended: Final = Event()


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
