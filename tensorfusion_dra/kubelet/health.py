"""The health streams, v1 and v1alpha1: the kubelet opens one and keeps it open."""

import time
from collections.abc import Iterator
from threading import Event, Semaphore
from typing import Final

import grpc
import structlog

from tensorfusion_dra.core import printable
from tensorfusion_dra.driver.catalog import Catalog, DeviceCatalog
from tensorfusion_dra.kubelet.pb import dra_health_v1_pb2 as pb

log = structlog.get_logger()

_SERVICES: Final = (
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",  # the same messages; what a kubelet up to 1.36 calls
)
_TIMEOUT_SECONDS: Final = 30
"""Age of a report after which the kubelet calls a device's health unknown."""
HEARTBEAT_SECONDS: Final = 10.0
"""Interval between reports without a change: a third of that time."""
_MAX_MESSAGE: Final = 1024
"""Characters; the kubelet cuts a longer message."""
MOST_STREAMS: Final = 8
"""A kubelet opens one. Each takes a worker of the server for as long as it is open."""


class HealthService:
    """Streams the health of all devices to a few readers at a time."""

    def __init__(self, catalog: DeviceCatalog) -> None:
        self._catalog = catalog
        self._free = Semaphore(MOST_STREAMS)
        self._stop = Event()

    def services(self) -> Iterator[grpc.GenericRpcHandler]:
        """Yield the services for a server on the DRA socket."""
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
        """End all streams."""
        self._stop.set()
        self._catalog.wake_waiting()

    def _watch(
        self, _request: pb.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.NodeWatchResourcesResponse]:
        """Yield the list of all devices: at once, after every change and at every heartbeat."""

        def stopped() -> bool:
            return self._stop.is_set() or not context.is_active()

        if not self._free.acquire(blocking=False):
            log.warning("health_stream_refused", error=f"{MOST_STREAMS} are open already")
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"health streams: found {MOST_STREAMS} open, expected room for one more",
            )
        try:
            # When the reader goes, its worker thread must not wait for the next heartbeat.
            context.add_callback(self._catalog.wake_waiting)
            while not stopped():
                seen = self._catalog.current()
                yield pb.NodeWatchResourcesResponse(devices=_devices(seen))
                self._catalog.wait_changed(seen, seconds=HEARTBEAT_SECONDS, stopped=stopped)
        finally:
            self._free.release()


def _devices(catalog: Catalog | None) -> list[pb.DeviceHealth]:
    """Return the health of each device, absent ones included: their pods have to know."""
    if catalog is None:
        return []
    listed = dict.fromkeys([*(device.name for device in catalog.devices), *sorted(catalog.sick)])
    return [_device(catalog, name) for name in listed]


def _device(catalog: Catalog, name: str) -> pb.DeviceHealth:
    sickness = catalog.sick.get(name)
    text = printable.one_line(sickness.worst.text) if sickness else ""
    return pb.DeviceHealth(
        device=pb.DeviceIdentifier(pool_name=catalog.node.pool, device_name=name),
        health=pb.HealthStatus.UNHEALTHY if sickness else pb.HealthStatus.HEALTHY,
        last_updated_time=int(time.time()),
        health_check_timeout_seconds=_TIMEOUT_SECONDS,
        message=text.encode("ascii", "replace").decode()[:_MAX_MESSAGE],
    )
