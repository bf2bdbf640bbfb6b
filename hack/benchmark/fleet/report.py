"""The figures of a fleet as text."""

from collections.abc import Mapping
from typing import Any

Figures = Mapping[str, Any]

_CLIENTS = (
    ("requests", "requests"),
    ("requests_per_node", "per node"),
    ("peak_in_1_s", "most in 1 s"),
    ("peak_in_100_ms", "in 0.1 s"),
    ("spread_seconds", "spread s"),
    ("received_bytes_per_node", "B in/node"),
    ("sent_bytes_per_node", "B out/node"),
)
_SERVER = (
    ("requests", "requests"),
    ("rejected", "rejected"),
    ("read_bytes", "B of reads"),
    ("slice_events", "events"),
    ("etcd_requests", "to etcd"),
    ("cpu_seconds", "CPU s"),
    ("watches", "watches"),
    ("goroutines", "goroutines"),
    ("heap_mib", "heap MiB"),
    ("rss_mib", "RSS MiB"),
)


def text(figures: Figures) -> str:
    """Return the figures as tables."""
    rows = figures["phases"]
    width = max(len("clients"), *(len(row["phase"]) for row in rows))
    lines = [
        f"{figures['nodes']} publishers, {figures['gpus']}, pool source {figures['pool_source']}",
        "",
        *_table(rows, "clients", _CLIENTS, width),
        "",
        *_table(rows, "server", _SERVER, width),
        "",
        "requests by kind",
    ]
    for row in rows:
        lines.append(f"  {row['phase']}")
        counted = row["clients"]["by_kind"].items()
        lines += [f"{number:>10}  {kind}" for kind, number in counted]
        failed = row["clients"]["errors"].items()
        lines += [f"{number:>10}  failed: {error}" for error, number in failed]
    alone = figures["server_alone"]
    if "cpu_seconds" in alone["start"]:
        lines += [
            "",
            f"without publishers, the API server takes {alone['start']['cpu_seconds']} s of CPU to "
            f"start, {alone['rest']['cpu_seconds']} s in {alone['rest_seconds']:g} s at rest, and "
            f"{alone['state']['rss_mib']} MiB",
        ]
    return "\n".join(lines)


def _table(
    rows: list[Figures], part: str, columns: tuple[tuple[str, str], ...], width: int
) -> list[str]:
    titles = "".join(f"{title:>13}" for name, title in columns if name in rows[0][part])
    lines = [f"{part:{width}}{'seconds':>9}{titles}"]
    for row in rows:
        cells = "".join(f"{row[part][name]:>13,}" for name, _ in columns if name in row[part])
        lines.append(f"{row['phase']:{width}}{row['seconds']:>9.1f}{cells}")
    return lines
