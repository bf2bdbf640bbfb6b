"""The gRPC services of the DRA socket.

- The DRA service, v1 and v1beta1: claims in, CDI device IDs out.
- The health streams, v1 and v1alpha1: the kubelet opens one and keeps it open.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Semaphore
from typing import Any, Final

import grpc
import structlog
from structlog.contextvars import bind_contextvars, reset_contextvars

from tensorfusion_dra.core import printable
from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.driver.operations import Failure
from tensorfusion_dra.driver.prepare import Preparer
from tensorfusion_dra.driver.publish import Catalog, DeviceCatalog
from tensorfusion_dra.kubelet.pb import dra_health_v1_pb2 as health_pb
from tensorfusion_dra.kubelet.pb import dra_v1_pb2 as pb
from tensorfusion_dra.runtime.calls import CallsInFlight

log = structlog.get_logger()

_SERVICES: Final = (
    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    # The same messages, except for Device.share_id, which a v1beta1 reader skips as unknown.
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
)
KUBELET_SECONDS: Final = 45.0
"""The kubelet's deadline for both calls."""
_MARGIN_SECONDS: Final = 1.0
"""An error must arrive before the kubelet's deadline; after it, nobody sees the error."""


_HEALTH_SERVICES: Final = (
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",  # the same messages; what a kubelet up to 1.36 calls
)
_TIMEOUT_SECONDS: Final = 30
"""Age of a report after which the kubelet calls a device's health unknown."""
HEARTBEAT_SECONDS: Final = 10.0
"""Interval between reports without a change: a third of that time."""
_MAX_MESSAGE: Final = 1024
"""Characters; the kubelet cuts a longer message."""
MAX_STREAMS: Final = 8
"""A kubelet opens one. Each takes a worker of the server for as long as it is open."""


class DraService:
    """The DRA service: answers each claim of a request with its devices or its own error.

    Attributes:
        calls: The calls that are not answered yet.
    """

    def __init__(
        self, preparer: Preparer, calls: CallsInFlight, on_fatal: Callable[[FatalError], None]
    ) -> None:
        self.calls: Final = calls
        self._preparer = preparer
        self._on_fatal = on_fatal

    def services(self) -> Iterator[grpc.GenericRpcHandler]:
        """Yield the gRPC services for a server on the DRA socket."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                self._prepare,
                request_deserializer=pb.NodePrepareResourcesRequest.FromString,
                response_serializer=pb.NodePrepareResourcesResponse.SerializeToString,
            ),
            "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                self._unprepare,
                request_deserializer=pb.NodeUnprepareResourcesRequest.FromString,
                response_serializer=pb.NodeUnprepareResourcesResponse.SerializeToString,
            ),
        }
        for service in _SERVICES:
            yield grpc.method_handlers_generic_handler(service, methods)

    def _prepare(
        self, request: pb.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodePrepareResourcesResponse:
        with self._call(request.claims, context) as (refs, deadline):
            outcomes = self._preparer.prepare(refs, deadline=deadline)
        # Filled in place: messages that are passed to a constructor are copied.
        response = pb.NodePrepareResourcesResponse()
        for uid, outcome in outcomes.items():
            answer = response.claims[uid]
            if isinstance(outcome, Failure):
                answer.error = _text(outcome)
                continue
            for share, ids in zip(outcome.shares, cdi.ids_by_share(outcome), strict=True):
                answer.devices.add(
                    request_names=[share.request],
                    pool_name=share.pool,
                    device_name=share.device,
                    cdi_device_ids=ids,
                    share_id=share.share_id,
                )
        return response

    def _unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodeUnprepareResourcesResponse:
        with self._call(request.claims, context) as (refs, deadline):
            outcomes = self._preparer.unprepare(refs, deadline=deadline)
        response = pb.NodeUnprepareResourcesResponse()
        for uid, failure in outcomes.items():
            response.claims[uid].error = _text(failure) if failure else ""
        return response

    @contextmanager
    def _call(
        self, claims: Iterable[pb.Claim], context: grpc.ServicerContext
    ) -> Iterator[tuple[Sequence[ClaimRef], float]]:
        """Count and log a call; yield its claims, and its deadline on the monotonic clock.

        A fatal error ends the call and then the process.
        """
        seconds = min(context.time_remaining(), KUBELET_SECONDS)
        with self.calls:
            bound = bind_contextvars(op_id=f"{random.getrandbits(32):08x}")
            try:
                refs = [ClaimRef(namespace=c.namespace, name=c.name, uid=c.uid) for c in claims]
                yield refs, time.monotonic() + seconds - _MARGIN_SECONDS
            except FatalError as error:
                log.error("call_failed_fatally", error=str(error))
                self._on_fatal(error)
                context.abort(grpc.StatusCode.INTERNAL, str(error))
            except Exception as error:
                # gRPC reports the error to the kubelet, but does not log it here.
                log.error("call_failed", error=repr(error), exc_info=True)
                raise
            finally:
                reset_contextvars(**bound)


def _text(failure: Failure) -> str:
    """Return the failure's text without lone surrogates.

    API objects may contain them, but a protobuf string cannot.
    """
    return failure.text.encode(errors="replace").decode()


class HealthService:
    """Streams the health of all devices to a few readers at a time."""

    def __init__(self, catalog: DeviceCatalog) -> None:
        self._catalog = catalog
        self._free = Semaphore(MAX_STREAMS)
        self._stop = Event()

    def services(self) -> Iterator[grpc.GenericRpcHandler]:
        """Yield the services for a server on the DRA socket."""
        methods = {
            "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
                self._watch,
                request_deserializer=health_pb.NodeWatchResourcesRequest.FromString,
                response_serializer=health_pb.NodeWatchResourcesResponse.SerializeToString,
            )
        }
        for service in _HEALTH_SERVICES:
            yield grpc.method_handlers_generic_handler(service, methods)

    def stop(self) -> None:
        """End all streams."""
        self._stop.set()
        self._catalog.wake_waiting()

    def _watch(
        self, _request: health_pb.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[health_pb.NodeWatchResourcesResponse]:
        """Yield the list of all devices: at once, after every change and at every heartbeat."""

        def stopped() -> bool:
            return self._stop.is_set() or not context.is_active()

        if not self._free.acquire(blocking=False):
            log.warning("health_stream_refused", error=f"{MAX_STREAMS} are open already")
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"health streams: found {MAX_STREAMS} open, expected room for one more",
            )
        try:
            # When the reader goes, its worker thread must not wait for the next heartbeat.
            context.add_callback(self._catalog.wake_waiting)
            while not stopped():
                seen = self._catalog.current()
                yield health_pb.NodeWatchResourcesResponse(devices=_devices(seen))
                self._catalog.wait_changed(seen, seconds=HEARTBEAT_SECONDS, stopped=stopped)
        finally:
            self._free.release()


def _devices(catalog: Catalog | None) -> list[health_pb.DeviceHealth]:
    """Return the health of each device, absent ones included: their pods have to know."""
    if catalog is None:
        return []
    names = dict.fromkeys(
        [*(device.name for device in catalog.devices), *sorted(catalog.unhealthy)]
    )
    found = []
    for name in names:
        unhealthy = catalog.unhealthy.get(name)
        text = printable.one_line(unhealthy.worst.text) if unhealthy else ""
        found.append(
            health_pb.DeviceHealth(
                device=health_pb.DeviceIdentifier(pool_name=catalog.node.pool, device_name=name),
                health=health_pb.UNHEALTHY if unhealthy else health_pb.HEALTHY,
                last_updated_time=int(time.time()),
                health_check_timeout_seconds=_TIMEOUT_SECONDS,
                message=text.encode("ascii", "replace").decode()[:_MAX_MESSAGE],
            )
        )
    return found
