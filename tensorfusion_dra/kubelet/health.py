"""The health streams, v1 and v1alpha1: the kubelet opens one and keeps it open for ever."""

import time
from collections.abc import Iterator
from threading import Event
from typing import Final

import grpc

from tensorfusion_dra.driver import health
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.health import DeviceHealth
from tensorfusion_dra.kubelet.pb import dra_health_v1_pb2 as pb

_SERVICES: Final = (
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",  # the same messages; what a kubelet up to 1.36 calls
)
_TIMEOUT_SECONDS: Final = 30


class HealthService:
    """Streams the health of all devices to any number of readers."""

    def __init__(self, catalog: CatalogReader) -> None:
        self._catalog = catalog
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

        # When the reader goes, its worker thread must not wait for the next heartbeat.
        context.add_callback(self._catalog.wake_waiting)
        for report in health.reports(self._catalog, stopped):
            yield pb.NodeWatchResourcesResponse(devices=[_message(item) for item in report])


def _message(item: DeviceHealth) -> pb.DeviceHealth:
    return pb.DeviceHealth(
        device=pb.DeviceIdentifier(pool_name=item.pool, device_name=item.device),
        health=pb.HealthStatus.HEALTHY if item.healthy else pb.HealthStatus.UNHEALTHY,
        last_updated_time=int(time.time()),
        health_check_timeout_seconds=_TIMEOUT_SECONDS,
        message=item.message,
    )
