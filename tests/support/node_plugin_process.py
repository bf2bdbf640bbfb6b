"""The real node-plugin process in a simulated cluster, and what it logs, writes and publishes."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra_simulator.rest import EVENTS, SLICES
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tests.support.kubelet import PluginClient

SHARE = {"tflops": "100", "vram": "16Gi"}


@contextmanager
def cluster_with(gpus: str = "2xA100-SXM4-80GB", **options: Any) -> Iterator[SimulatedCluster]:
    with tempfile.TemporaryDirectory(prefix="tft-") as folder:
        cluster = SimulatedCluster(Path(folder), gpus=gpus, **options)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()


def start(cluster: SimulatedCluster, pod_uid: str = "") -> None:
    """Start the node plugin; return once it is registered and the node's slices exist."""
    register(cluster, pod_uid)
    cluster.until("published", lambda: bool(cluster.slices()))


def register(cluster: SimulatedCluster, pod_uid: str = "") -> None:
    cluster.start_plugin(pod_uid)
    cluster.until("registered", lambda: bool(cluster.kubelet.registered))


def stop(cluster: SimulatedCluster) -> int | None:
    """Stop the node plugin; return its exit code once the kubelet has deregistered it."""
    code = cluster.stop_plugin()
    cluster.until("deregistered", lambda: not cluster.kubelet.registered)
    return code


def run_pod(cluster: SimulatedCluster, name: str) -> ClaimRef:
    """Run a pod with a share of a card; return its claim."""
    cluster.submit(name, SHARE)
    cluster.until(f"{name} runs", lambda: cluster.container_of(name) is not None)
    return claim_of(cluster, name)


def claim_of(cluster: SimulatedCluster, pod: str) -> ClaimRef:
    claim = cluster.claim_of(cluster.pod(pod))
    assert claim is not None
    metadata = claim["metadata"]
    return ClaimRef(namespace="default", name=metadata["name"], uid=metadata["uid"])


def as_the_kubelet(cluster: SimulatedCluster) -> PluginClient:
    """Return a further client of the node plugin, beside the simulated kubelet."""
    return PluginClient(cluster.kubelet_root / "plugins" / names.DRIVER / "dra.sock")


def event_messages(cluster: SimulatedCluster, reason: str) -> list[str]:
    found = cluster.client.list(EVENTS).items
    return [event["message"] for event in found if event["reason"] == reason]


def log_lines(cluster: SimulatedCluster, event: str, pod_uid: str = "") -> list[dict[str, Any]]:
    lines = map(json.loads, cluster.log_file_of(pod_uid).read_text().splitlines())
    return [line for line in lines if line["event"] == event]


def condition(cluster: SimulatedCluster, pod: str, kind: str) -> tuple[str, str]:
    """Return status and reason of a condition of the only device in a pod's claim."""
    status = (cluster.claim_of(cluster.pod(pod)) or {}).get("status", {})
    for each in (each for entry in status.get("devices") or () for each in entry["conditions"]):
        if each["type"] == kind:
            return each["status"], each["reason"]
    return "", ""


def slice_writes(cluster: SimulatedCluster) -> int:
    verbs = ("create", "update", "patch", "delete", "deletecollection")
    return sum(cluster.server.requests.count(verb, "resourceslices") for verb in verbs)


def writes_until_repaired(cluster: SimulatedCluster) -> int:
    """Delete the slices; return slice_writes() but for this, once they are created again."""
    stored = cluster.slices()
    for item in stored:
        cluster.client.delete(SLICES, item["metadata"]["name"])
    cluster.until("created again", lambda: bool(cluster.slices()))
    return slice_writes(cluster) - len(stored)
