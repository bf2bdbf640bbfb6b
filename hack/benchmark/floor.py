"""The floor of a prepare: the least that each of its steps costs on this machine, in Python.

- an empty call: NodePrepareResources without a claim, at the driver's socket;
- one GET of a ResourceSlice, by the driver's own client;
- one flush: 4 KiB appended to a file in the given folder, and fdatasync;
- one file: 1.5 KiB written and renamed in a folder, without a flush.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmark import target
from benchmark.target import Target, TargetError
from tensorfusion_dra.state import atomic

_SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def measured(
    at: Target, kubeconfig: Path, *, disk: Path, run: Path, calls: int
) -> Mapping[str, float]:
    """Return the median of each step, in ms.

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
            return {name: _median_ms(step, calls) for name, step in steps.items()}
    finally:
        plugin.close()


def text(found: Mapping[str, float]) -> str:
    """Return a line for each step."""
    return "\n".join(f"{name:15}{value:8.3f} ms" for name, value in found.items())


def _flush(descriptor: int) -> None:
    os.write(descriptor, bytes(4096))
    os.fdatasync(descriptor)


def _median_ms(step: Callable[[], object], calls: int) -> float:
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(times), 3)
