"""Simulated cluster whose node plugin follows the cards' health fast enough for a test."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_simulator.rest import Json
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core import names
from tensorfusion_dra.kubelet.pb.dra_health_v1_pb2 import HealthStatus
from tests.app.node_plugin.test_node_plugin_process import as_the_kubelet, cluster_with, start

FAST = (
    *("--poll-seconds", "0.2"),
    *("--health-quiet-seconds", "1"),
)
NO_POLL = ("--poll-seconds", "3600")
"""Flags without polling: changes follow from the driver's reports alone."""
SHORT_WAIT = ("--nvml-wait-seconds", "1")
"""Flags for a driver that hangs."""
SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


@dataclass
class Profile:
    """Simulated cards, in a file that the node plugin reads again when it changes."""

    file: Path
    gpus: list[dict[str, Any]] = field(default_factory=lambda: [{}, {}])
    node: dict[str, Any] = field(default_factory=dict)

    def write(self) -> None:
        gpus = [{"product": "A100-SXM4-80GB", **gpu} for gpu in self.gpus]
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps({"gpus": gpus, **self.node}), encoding="utf-8")
        fresh.replace(self.file)

    def make(self, index: int, **faults: Any) -> None:
        """Give one card exactly these faults."""
        self.gpus[index] = faults
        self.write()

    def make_node(self, **fields: Any) -> None:
        """Give the node exactly these fields."""
        self.node = fields
        self.write()


@contextmanager
def sick_cluster(
    folder: Path, *flags: str, **options: Any
) -> Iterator[tuple[SimulatedCluster, Profile]]:
    """Yield a cluster that has published its two cards, and their profile."""
    profile = Profile(folder / "gpus.yaml")
    profile.write()
    with cluster_with(str(profile.file), **options) as cluster:
        cluster.plugin_flags.extend([*FAST, *flags])
        start(cluster)
        yield cluster, profile


def devices(cluster: SimulatedCluster) -> dict[str, Json]:
    """Return the published devices by name."""
    return {
        device["name"]: device
        for item in cluster.slices()
        for device in item["spec"].get("devices") or ()
    }


def taints(cluster: SimulatedCluster) -> dict[str, Json]:
    """Return the taint of each tainted device."""
    found = {}
    for name, device in devices(cluster).items():
        for taint in device.get("taints") or ():
            assert taint["key"] == names.TAINT_UNHEALTHY
            found[name] = taint
    return found


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


def device_of(cluster: SimulatedCluster, pod: str) -> str:
    """Return the device of a running pod."""
    claim = cluster.claim_of(cluster.pod(pod))
    assert claim is not None
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    return str(result["device"])


def ready(cluster: SimulatedCluster, pod: str) -> tuple[str, str]:
    """Return status and reason of the Ready condition of the only device in a pod's claim."""
    claim = cluster.claim_of(cluster.pod(pod)) or {}
    for entry in claim.get("status", {}).get("devices") or ():
        (condition,) = (each for each in entry["conditions"] if each["type"] == "Ready")
        return condition["status"], condition["reason"]
    return "", ""
