"""The health streams, v1 and v1alpha1: the kubelet opens one and keeps it open for ever."""

import time
from collections.abc import Iterator
from threading import Event, Semaphore
from typing import Final

import grpc
import structlog

from tensorfusion_dra.driver import health
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.health import DeviceHealth
from tensorfusion_dra.kubelet.pb import dra_health_v1_pb2 as pb

log = structlog.get_logger()

_SERVICES: Final = (
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",  # the same messages; what a kubelet up to 1.36 calls
)
_TIMEOUT_SECONDS: Final = 30
MOST_STREAMS: Final = 8
"""A kubelet opens one. Each takes a worker of the server for as long as it is open."""


class HealthService:
    """Streams the health of all devices to a few readers at a time."""

    def __init__(self, catalog: CatalogReader, *, most_streams: int = MOST_STREAMS) -> None:
        """Streams nothing yet.

        Args:
            most_streams: Less than the server has workers, so that some are left to prepare.
        """
        self._catalog = catalog
        self._most_streams = most_streams
        self._free = Semaphore(most_streams)
        self._stop = Event()

    def services(self) -> Iterator[grpc.GenericRpcHandler]:
        """The services for a server on the DRA socket."""
        methods = {
            "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
                self._watch,
                request_deserializer=pb.NodeWatchResourcesRequest.FromString,
                response_serializer=pb.NodeWatchResourcesResponse.SerializeToString,
            )
        }
        for service in _SERVICES:
            yield grpc.method_handlers_generic_handler(service, methods)

    def stop(self) -> None:
        """Ends all streams."""
        self._stop.set()
        self._catalog.wake_waiting()

    def _watch(
        self, _request: pb.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.NodeWatchResourcesResponse]:
        def stopped() -> bool:
            return self._stop.is_set() or not context.is_active()

        if not self._free.acquire(blocking=False):
            log.warning("health_stream_refused", error=f"{self._most_streams} are open already")
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"health streams: found {self._most_streams} open, expected room for one more",
            )
        try:
            # When the reader goes, its worker thread must not wait for the next heartbeat.
            context.add_callback(self._catalog.wake_waiting)
            for report in health.reports(self._catalog, stopped):
                yield pb.NodeWatchResourcesResponse(devices=[_message(item) for item in report])
        finally:
            self._free.release()


def _message(item: DeviceHealth) -> pb.DeviceHealth:
    return pb.DeviceHealth(
        device=pb.DeviceIdentifier(pool_name=item.pool, device_name=item.device),
        health=pb.HealthStatus.HEALTHY if item.healthy else pb.HealthStatus.UNHEALTHY,
        last_updated_time=int(time.time()),
        health_check_timeout_seconds=_TIMEOUT_SECONDS,
        message=item.message,
    )
