"""Figures of the node plugin under the simulator: start, memory, latencies, writes at restart.

Absolute times depend on the machine; compare how they change with the number of prepared claims.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

from benchmark import compare, node, process, subject, tables
from benchmark.cells import Cell
from benchmark.node import BareNode

_GPUS: Final = "8xA100-SXM4-80GB"
_SETTLE_SECONDS: Final = 4.0


def measured(cells: Sequence[Cell], *, calls: int, starts: int, progress: compare.Progress) -> Any:
    """Start a node plugin several times and return its figures.

    Args:
        cells: Settings at which latencies are measured.
        calls: Calls that are measured at each of them.
    """
    with node.running(_GPUS) as cluster:
        times = []
        for _ in range(starts):
            times.append(_start_seconds(cluster))
            cluster.stop_plugin()
        pid = cluster.start_plugin()
        time.sleep(_SETTLE_SECONDS)  # until the imports and first readings of a start are over
        figures: dict[str, Any] = {
            "start_to_published_s": [min(times), round(statistics.median(times), 3), max(times)],
            "rss_idle_mib": process.rss_mib(pid),
        }
        with subject.of_node(cluster) as live:
            figures["rows"] = compare.rows([live], cells, calls=calls, rounds=1, progress=progress)
        figures["rss_end_mib"] = process.rss_mib(pid)
        cluster.stop_plugin()
        cluster.server.requests.reset()
        figures["restart_with_claims_s"] = _start_seconds(cluster)
        time.sleep(_SETTLE_SECONDS)
        figures["api_writes_at_restart"] = _plugin_writes(cluster)
        figures["specs_held"] = len(cluster.spec_files())
    return figures


def _start_seconds(cluster: BareNode) -> float:
    """Return the seconds from the start of the process until it serves and has published."""
    started = time.monotonic()
    cluster.start_plugin()
    return round(time.monotonic() - started, 3)


def _plugin_writes(cluster: BareNode) -> int:
    """Return the number of writes to slices, all by the node plugin, and to claims' status."""
    count = cluster.server.requests.count
    verbs = ("create", "update", "patch", "delete", "deletecollection")
    slices = sum(count(verb, "resourceslices") for verb in verbs)
    return slices + count("patch", "resourceclaims/status")


def text(figures: Any) -> str:
    """Return the figures for a terminal."""
    least, median, most = figures["start_to_published_s"]
    return "\n".join(
        (
            f"start to published    {median} s ({least} to {most})",
            f"RSS                   {figures['rss_idle_mib']} MiB idle, "
            f"{figures['rss_end_mib']} MiB at the end",
            "",
            tables.latencies(figures["rows"]),
            "",
            f"restart with {figures['specs_held']} claims held: published after "
            f"{figures['restart_with_claims_s']} s, {figures['api_writes_at_restart']} API writes",
        )
    )
