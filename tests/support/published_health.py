"""The published health of simulated cards: attributes, taints, and the stream to the kubelet."""

from dra_simulator.rest import Json
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core import names
from tensorfusion_dra.kubelet.pb.dra_health_v1_pb2 import HealthStatus
from tests.support.node_plugin_process import as_the_kubelet

FAST = (
    *("--poll-seconds", "0.2"),
    *("--health-quiet-seconds", "1"),
)
NO_POLL = ("--poll-seconds", "3600")
"""Flags without polling: changes follow from the driver's reports alone."""
SHORT_WAIT = ("--nvml-wait-seconds", "1")
"""Flags for a driver that hangs."""
SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


def devices(cluster: SimulatedCluster) -> dict[str, Json]:
    """Return the published devices by name."""
    return {
        device["name"]: device
        for item in cluster.slices()
        for device in item["spec"].get("devices") or ()
    }


def taints(cluster: SimulatedCluster) -> dict[str, Json]:
    """Return the taint of each tainted device."""
    return {
        name: taint
        for name, device in devices(cluster).items()
        for taint in device.get("taints") or ()
        if taint["key"] == names.TAINT_UNHEALTHY
    }


def reasons(cluster: SimulatedCluster) -> dict[str, str]:
    return {name: taint["value"] for name, taint in taints(cluster).items()}


def phases(cluster: SimulatedCluster) -> dict[str, str]:
    return {
        name: device["attributes"]["phase"]["string"] for name, device in devices(cluster).items()
    }


def streamed(cluster: SimulatedCluster, service: str) -> dict[str, tuple[str, str]]:
    """Return the first message to a new reader of a health stream: status and text by device."""
    with as_the_kubelet(cluster) as kubelet:
        first = next(kubelet.watch_health(service))
    return {
        item.device.device_name: (HealthStatus.Name(item.health), item.message)
        for item in first.devices
    }
