"""The floor of a prepare: the least that each of its steps costs on this machine, in Python.

- an empty call: NodePrepareResources without a claim, at the driver's socket;
- one GET of a ResourceSlice, by the driver's own client;
- one flush: 4 KiB appended to a file in the given folder, and fdatasync;
- one file: 1.5 KiB written and renamed in a folder, without a flush.

Each step is measured twice: one after the other, and after a pause, as between calls of a kubelet.
After a pause the processor's caches hold other data, which makes the same work slower.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmark import target
from benchmark.target import Target, TargetError
from tensorfusion_dra.state import atomic

_SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
_PAUSE_SECONDS: Final = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Medians of one step, in ms."""

    in_a_row: float
    after_pause: float


def measured(
    at: Target, kubeconfig: Path, *, disk: Path, run: Path, calls: int
) -> Mapping[str, Step]:
    """Return the times of each step.

    Args:
        at: The driver.
        kubeconfig: Its API server.
        disk: Folder on the disk of the ledger.
        run: Folder on the disk of the CDI specs.
        calls: Number of calls of each.

    Raises:
        TargetError: There is no ResourceSlice to read.
    """
    api = target.api_of(kubeconfig)
    slices = api.call("GET", _SLICES, query={"limit": "1"}).get("items") or []
    if not slices:
        raise TargetError(f"{kubeconfig}: found no ResourceSlice, expected one to read")
    path = f"{_SLICES}/{slices[0]['metadata']['name']}"
    plugin = target.connected(at)
    try:
        plugin.prepare([])
        with tempfile.TemporaryFile(dir=disk) as log, tempfile.TemporaryDirectory(dir=run) as files:
            steps: dict[str, Callable[[], object]] = {
                "an empty call": lambda: plugin.prepare([]),
                "one GET": lambda: api.call("GET", path),
                "one flush": lambda: _flush(log.fileno()),
                "one file": lambda: atomic.write(
                    Path(files, "a.json"), bytes(1500), mode=0o644, durable=False
                ),
            }
            return {name: _measured(step, calls) for name, step in steps.items()}
    finally:
        plugin.close()


def text(found: Mapping[str, Step]) -> str:
    """Return a table with a line for each step."""
    head = f"{'p50 ms':15}{'in a row':>10}{f'after {1000 * _PAUSE_SECONDS:.0f} ms':>12}"
    lines = [f"{name:15}{at.in_a_row:10.3f}{at.after_pause:12.3f}" for name, at in found.items()]
    return "\n".join([head, *lines])


def _flush(descriptor: int) -> None:
    os.write(descriptor, bytes(4096))
    os.fdatasync(descriptor)


def _measured(step: Callable[[], object], calls: int) -> Step:
    return Step(
        in_a_row=_median_ms(step, calls, pause_seconds=0.0),
        after_pause=_median_ms(step, calls, pause_seconds=_PAUSE_SECONDS),
    )


def _median_ms(step: Callable[[], object], calls: int, *, pause_seconds: float) -> float:
    times = []
    for _ in range(calls):
        if pause_seconds:
            time.sleep(pause_seconds)
        began = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(times), 3)
