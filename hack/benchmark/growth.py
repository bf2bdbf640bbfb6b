"""Growth of the node plugin's memory over many prepares.

A fixed set of claims is prepared in turn, over and over: each is prepared, prepared again when it
is the newest, and unprepared when it is the oldest, so that the same number is held at any time.
Nothing is created at the API server meanwhile. The first fifth fills caches and pools and is not
judged.
"""

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmark import memory, node, target
from benchmark.target import Claims

if TYPE_CHECKING:
    from dra_simulator.node.plugin import ClaimRef

SAMPLES: Final = 100
SHOWN: Final = 20
UNIT: Final = 100_000
"""Prepares for which the growth is given."""

FIGURES: Final = ("rss_kib", "private_dirty_kib", "threads", "open_files")
_UNJUDGED: Final = 0.2
_HEADS: Final = ("prepares", "RSS MB", "private MB", "threads", "open files")
_HEAD: Final = "".join(f"{head:>12}" for head in _HEADS)

Figures = dict[str, Any]


def measured(
    *, gpus: str, prepares: int, held: int, python: str, progress: Callable[[str], None]
) -> Figures:
    """Run the node plugin and return its samples and its growth.

    Args:
        prepares: First prepares; each is followed by a prepare again and, later, an unprepare.
        held: Claims that are held at any time.
        python: Interpreter of the node plugin.
        progress: Called with a line for each sample.
    """
    progress(_HEAD)
    with node.running(gpus) as cluster, node.plugins_as("tensorfusion_dra", {}, python=python):
        pid = cluster.start_plugin()
        written = Claims(target.api_of(cluster.kubeconfig), cluster.target, with_pods=False)
        plugin = target.connected(cluster.target)
        oldest: deque[ClaimRef] = deque()
        samples: list[Figures] = []
        every = max(1, prepares // SAMPLES)
        try:
            turns = cycle(written.create(held + 1))
            for number, ref in enumerate(islice(turns, prepares), start=1):
                plugin.prepare([ref])
                plugin.prepare([ref])
                oldest.append(ref)
                if len(oldest) > held:
                    plugin.unprepare([oldest.popleft()])
                if number % every == 0:
                    samples.append({"prepares": number, **_sample(pid)})
                    progress(_line(samples[-1]))
        finally:
            plugin.close()
    return {"growth": growth(samples), "samples": samples}


def _sample(pid: int) -> Figures:
    found = memory.memory(pid)
    found["open_files"] = len([*Path(f"/proc/{pid}/fd").iterdir()])
    return {name: found[name] for name in FIGURES}


def growth(samples: Sequence[Figures]) -> dict[str, float | None]:
    """Return the growth of each figure for UNIT prepares by least squares; None for too few."""
    judged = samples[int(len(samples) * _UNJUDGED) :]
    if len(judged) < 3:
        return dict.fromkeys(FIGURES)
    numbers = [sample["prepares"] for sample in judged]
    slopes: dict[str, float | None] = {}
    for name in FIGURES:
        slope, _ = statistics.linear_regression(numbers, [sample[name] for sample in judged])
        slopes[name] = round(slope * UNIT, 1)
    return slopes


def text(figures: Figures) -> str:
    """Return a table of some samples, and the growth."""
    samples = figures["samples"]
    lines = [_HEAD, *map(_line, samples[:: max(1, len(samples) // SHOWN)])]
    found = figures["growth"]
    if found["rss_kib"] is None:
        return "\n".join([*lines, "too few samples for the growth"])
    lines.append(
        f"growth for {UNIT} prepares: RSS {found['rss_kib'] / 1024:+.2f} MB, private "
        f"{found['private_dirty_kib'] / 1024:+.2f} MB, {found['threads']:+.1f} threads, "
        f"{found['open_files']:+.1f} open files"
    )
    return "\n".join(lines)


def _line(sample: Figures) -> str:
    return (
        f"{sample['prepares']:>12}{sample['rss_kib'] / 1024:>12.1f}"
        f"{sample['private_dirty_kib'] / 1024:>12.1f}{sample['threads']:>12}"
        f"{sample['open_files']:>12}"
    )
