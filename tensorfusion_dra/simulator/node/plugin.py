"""One registered plugin: its connection, its calls and its health stream."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any, Final

import grpc

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.kubelet.pb import (
    dra_health_v1_pb2,
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    dra_v1beta1_pb2,
)
from tensorfusion_dra.simulator.node.rpc import is_served, rpc_text
from tensorfusion_dra.simulator.node.timings import Timings

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
"""Names of the channel options that say how long to wait before connecting again."""

_CONNECT_SECONDS: Final = 0.1


class PluginError(DriverError):
    """A plugin does not do what a kubelet expects of it."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as plugins are told of it."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """A device as a plugin answers it.

    Attributes:
        requests: Which requests of the claim it is for; empty for all.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """What a plugin says of a device.

    Attributes:
        status: HEALTHY, UNHEALTHY or UNKNOWN.
        until: On the monotonic clock, when it is too old to be believed.
    """

    status: str
    message: str
    until: float


class Plugin:
    """The kubelet's end of a plugin; a connection is kept up from the beginning until `close`."""

    def __init__(
        self,
        driver: str,
        endpoint: str,
        *,
        services: tuple[str, str],
        timings: Timings,
        changed: Callable[[], None],
    ) -> None:
        """A plugin that is being connected to.

        Args:
            services: Which of DRA_SERVICES and which of HEALTH_SERVICES to call.
            changed: Called as the connection comes or goes, in a thread of its own.
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
                # Not Go's 1 s to 120 s: who simulates does not want to wait.
                *((f"grpc.{name}_reconnect_backoff_ms", backoff_ms) for name in BACKOFFS),
            ],
        )
        self._health_thread: Final = Thread(target=self._watch_health, name=f"health-{driver}")

    def open(self) -> None:
        """Connects, now and whenever the connection is lost."""
        self._health_thread.start()

    def close(self) -> None:
        """Returns once the connection is closed."""
        self._closing.set()
        with self._lock:
            if self._stream is not None:
                self._stream.cancel()
        if self._health_thread.ident is not None:
            self._health_thread.join(_JOIN_SECONDS)
        self._channel.close()

    @property
    def is_connected(self) -> bool:
        """Whether calls can be expected to arrive."""
        return self._is_connected

    @property
    def health(self) -> dict[tuple[str, str], DeviceHealth]:
        """By pool and device, what the plugin said last and what still holds."""
        now = time.monotonic()
        with self._lock:
            return {name: found for name, found in self._health.items() if found.until > now}

    def prepare(self, claims: Sequence[ClaimRef]) -> dict[str, tuple[PreparedDevice, ...]]:
        """The devices of each claim, by UID.

        Raises:
            PluginError: The call failed, or the answer for a claim is an error, is missing or is
                for a claim that was not asked for.
        """
        answers = self._call("NodePrepareResources", claims)
        return {
            uid: tuple(_device(device) for device in answer.devices)
            for uid, answer in answers.items()
        }

    def unprepare(self, claims: Sequence[ClaimRef]) -> None:
        """Returns once the plugin has given the claims' devices up.

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
        """Keeps a health stream open, by which also the state of the connection is known.

        The channel could tell it too, but only to a thread of its own that cannot be joined.
        """
        while not self._closing.is_set():
            stream = self._open_stream()
            if not stream.ended.wait(_CONNECT_SECONDS):
                # Nobody listening would have been noticed by now.
                self._set_connected(connected=True)
            try:
                for response in stream.call:
                    self._received(response)
            except grpc.RpcError:
                pass
            with self._lock:
                self._health = {}
            # Any other end, such as Unimplemented, is an answer of the plugin's.
            if stream.call.code() is grpc.StatusCode.UNAVAILABLE:
                self._set_connected(connected=False)
                self._closing.wait(_RECONNECT_SECONDS)
            else:
                self._pause_while_connected(self._timings.health_retry_seconds)

    def _pause_while_connected(self, seconds: float) -> None:
        """Waits before the next stream; a plugin that ends its stream may be about to go."""
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

    def _received(self, response: Any) -> None:
        """Adds what a message says; devices that it leaves out stay until they are too old."""
        now = time.monotonic()
        for device in response.devices:
            seconds = device.health_check_timeout_seconds
            if seconds <= 0:
                seconds = self._timings.health_timeout_seconds
            said = DeviceHealth(
                status=self._health_messages.HealthStatus.Name(device.health),
                message=device.message[:_MAX_MESSAGE],
                until=now + seconds,
            )
            with self._lock:
                self._health[device.device.pool_name, device.device.device_name] = said


class _Stream:
    """An open health stream."""

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
