"""Figures of the node plugin under the simulator: start, memory, latencies, writes at restart.

Claims are written with their allocation, as a scheduler does, and then prepared over the plugin's
socket one call at a time, as the kubelet does for one pod after another. Absolute times depend on
the machine; compare how they change with the number of prepared claims.
"""

import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmark import process
from dra_simulator.node.context import Timings
from dra_simulator.node.plugin import ClaimRef, Plugin
from dra_simulator.rest import CLAIMS
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.app.simulate.objects import NAMESPACE
from tensorfusion_dra.core import names

_GPUS: Final = "8xA100-SXM4-80GB"
_CONSUMED: Final = {"tflops": "2", "vram": "256Mi"}


def measured(*, held: Sequence[int], calls: int, starts: int) -> dict[str, Any]:
    """Start a node plugin and return its figures.

    Args:
        held: Numbers of prepared claims at which latencies are measured, in ascending order.
        calls: Calls that are measured at each of them.
        starts: Starts that are measured.
    """
    folder = Path(tempfile.mkdtemp(prefix="tfb-"))
    cluster = SimulatedCluster(folder, gpus=_GPUS)
    try:
        cluster.start()
        return _measured(cluster, held, calls=calls, starts=starts)
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def _measured(
    cluster: SimulatedCluster, levels: Sequence[int], *, calls: int, starts: int
) -> dict[str, Any]:
    start_times = [start_seconds(cluster) for _ in range(starts)]
    pid = cluster.start_plugin()
    cluster.until("published", lambda: bool(cluster.slices()), seconds=20)
    time.sleep(4)  # until imports and first readings are over; the memory left is the idle memory
    figures: dict[str, Any] = {
        "start_to_registered_s": spread(start_times),
        "rss_idle_mib": process.rss_mib(pid),
        "levels": [],
    }
    plugin = connected(cluster)
    try:
        held: list[ClaimRef] = []
        for level in levels:
            while len(held) < level:
                batch = [allocated_claim(cluster, len(held) + n) for n in range(level - len(held))]
                for ref in batch:
                    plugin.prepare([ref])
                held += batch
            figures["levels"].append({"held": level, **latencies(cluster, plugin, calls)})
    finally:
        plugin.close()
    figures["rss_end_mib"] = process.rss_mib(pid)
    cluster.stop_plugin()
    cluster.server.requests.reset()
    figures["restart_with_claims_s"] = start_seconds(cluster, stop=False)
    time.sleep(3)
    figures["api_writes_at_restart"] = plugin_writes(cluster)
    figures["specs_held"] = len(cluster.spec_files())
    return figures


def start_seconds(cluster: SimulatedCluster, *, stop: bool = True) -> float:
    """Return the seconds from the start of the process until the kubelet has registered it."""
    started = time.monotonic()
    cluster.start_plugin()
    cluster.until("registered", lambda: bool(cluster.kubelet.registered), seconds=20)
    seconds = time.monotonic() - started
    if stop:
        cluster.stop_plugin()
        cluster.until("deregistered", lambda: not cluster.kubelet.registered, seconds=20)
    return seconds


def connected(cluster: SimulatedCluster) -> Plugin:
    folder = cluster.kubelet_root / "plugins" / names.DRIVER
    plugin = Plugin(
        names.DRIVER,
        str(folder / "dra.sock"),
        services=("v1.DRAPlugin", "v1.DRAResourceHealth"),
        timings=Timings(),
        changed=lambda: None,
    )
    plugin.open()
    cluster.until("connected", lambda: plugin.is_connected, seconds=5)
    return plugin


def allocated_claim(cluster: SimulatedCluster, number: int) -> ClaimRef:
    (item,) = cluster.slices()
    devices = item["spec"]["devices"]
    requests = [{"name": "gpu", "exactly": {"deviceClassName": names.DEVICE_CLASS}}]
    stored = cluster.client.create(
        CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": f"bench-{uuid.uuid4().hex[:10]}", "namespace": NAMESPACE},
            "spec": {"devices": {"requests": requests}},
        },
    )
    result = {
        "request": "gpu",
        "driver": names.DRIVER,
        "pool": item["spec"]["pool"]["name"],
        "device": devices[number % len(devices)]["name"],
        "shareID": str(uuid.uuid4()),
        "consumedCapacity": _CONSUMED,
    }
    stored["status"] = {"allocation": {"devices": {"results": [result]}}}
    cluster.client.replace_status(CLAIMS, stored)
    metadata = stored["metadata"]
    return ClaimRef(namespace=NAMESPACE, name=metadata["name"], uid=metadata["uid"])


def latencies(cluster: SimulatedCluster, plugin: Plugin, calls: int) -> dict[str, Any]:
    refs = [allocated_claim(cluster, number) for number in range(calls)]
    return {
        "prepare_ms": timed(lambda ref: plugin.prepare([ref]), refs),
        "prepare_again_ms": timed(lambda ref: plugin.prepare([ref]), refs),
        "unprepare_ms": timed(lambda ref: plugin.unprepare([ref]), refs),
    }


def timed(call: Callable[[ClaimRef], object], refs: list[ClaimRef]) -> dict[str, float]:
    taken = []
    for ref in refs:
        start = time.perf_counter()
        call(ref)
        taken.append((time.perf_counter() - start) * 1000)
    cuts = statistics.quantiles(taken, n=100)
    return {"p50": round(cuts[49], 2), "p95": round(cuts[94], 2), "p99": round(cuts[98], 2)}


def spread(values: list[float]) -> dict[str, float]:
    return {
        "min": round(min(values), 3),
        "median": round(statistics.median(values), 3),
        "max": round(max(values), 3),
    }


def plugin_writes(cluster: SimulatedCluster) -> int:
    """Return the number of writes to slices, all by the node plugin, and to claims' status."""
    verbs = ("create", "update", "patch", "delete", "deletecollection")
    slices = sum(cluster.server.requests.count(verb, "resourceslices") for verb in verbs)
    return slices + cluster.server.requests.count("patch", "resourceclaims/status")


def text(figures: dict[str, Any]) -> str:
    start = figures["start_to_registered_s"]
    lines = [
        f"start to registered   {start['median']} s ({start['min']} to {start['max']})",
        f"RSS                   {figures['rss_idle_mib']} MiB idle, "
        f"{figures['rss_end_mib']} MiB at the end",
        "",
        "claims held   call            p50 ms   p95 ms   p99 ms",
    ]
    for level in figures["levels"]:
        for call in ("prepare", "prepare_again", "unprepare"):
            cuts = level[f"{call}_ms"]
            name = call.replace("_", " ")
            lines.append(
                f"{level['held']:>11}   {name:<13}{cuts['p50']:>9}{cuts['p95']:>9}{cuts['p99']:>9}"
            )
    lines += [
        "",
        f"restart with {figures['specs_held']} claims held: registered after "
        f"{figures['restart_with_claims_s']:.3f} s, {figures['api_writes_at_restart']} API writes",
    ]
    return "\n".join(lines)
