"""Memory of the node plugin: by import, and by moment of its life.

Two node plugins run under the simulator, one after the other. The first weighs its imports
(weighed_plugin.py); the second is measured as it is, when it is idle and after claims were
prepared, prepared again and unprepared.

RSS counts pages of libraries that other processes of the node share; private memory does not.
"""

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import tensorfusion_dra
from benchmark import node, target, weighed_plugin
from benchmark.node import BareNode
from benchmark.target import Claims
from dra_simulator.node.plugin import Plugin

CLIENT: Final = "kubernetes"
"""The package that reads the kubeconfig, after the kubelet can call. A pod loads none."""

_PACKAGE: Final = "tensorfusion_dra"
_AT_A_TIME: Final = (1, 8, 64)
_SETTLE_SECONDS: Final = 4.0
_SHOWN_KIB: Final = 200

Figures = dict[str, Any]


def measured(*, gpus: str, claims: int, held: int, python: str) -> Figures:
    """Run both node plugins and return the figures.

    Args:
        python: Interpreter of the node plugins. In an environment with more packages than the
            image's they weigh more: some libraries load optional ones that they find.
        claims: Claims that are prepared, prepared again and unprepared in each row.
        held: Claims that stay prepared meanwhile.
    """
    package = Path(tensorfusion_dra.__file__).parent
    subprocess.run([python, "-m", "compileall", "-q", package], check=True)
    lines = _weights(gpus, python)
    with node.running(gpus) as cluster:
        with node.plugins_as(_PACKAGE, {}, python=python):
            pid = _started(cluster)
        moments: dict[str, Figures] = {"idle": memory(pid)}
        written = Claims(target.api_of(cluster.kubeconfig), cluster.target)
        plugin = target.connected(cluster.target)
        try:
            for ref in written.create(held):
                plugin.prepare([ref])
            for callers in _AT_A_TIME:
                _cycle(plugin, written, claims, callers)
                moments[f"after {claims} claims, {callers} at a time"] = memory(pid)
        finally:
            plugin.close()
    return {
        "memory": {
            "starts": start(lines),
            "imports": by_package(lines),
            "moments": moments,
        }
    }


def _weights(gpus: str, python: str) -> Sequence[Figures]:
    with node.running(gpus) as cluster:
        file = cluster.folder / "weights"
        environment = {weighed_plugin.VARIABLE: str(file)}
        with node.plugins_as("benchmark.weighed_plugin", environment, python=python):
            _started(cluster)
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _started(cluster: BareNode) -> int:
    pid = cluster.start_plugin()
    time.sleep(_SETTLE_SECONDS)  # until the imports and first readings of a start are over
    return pid


def _cycle(plugin: Plugin, written: Claims, count: int, callers: int) -> None:
    refs = written.create(count)
    with ThreadPoolExecutor(callers) as pool:
        for act in (plugin.prepare, plugin.prepare, plugin.unprepare):
            list(pool.map(act, [[ref] for ref in refs]))
    written.delete(refs)


def start(lines: Sequence[Mapping[str, Any]]) -> Figures:
    """Return the memory and CPU time of a start until its first import and until the client's."""
    client = next(line for line in lines if line["module"] == CLIENT)
    first = min(lines, key=lambda line: line["began_ms"])
    return {
        "interpreter": {"rss_kib": first["began_kib"], "cpu_ms": first["began_ms"]},
        "the kubelet can call": {"rss_kib": client["began_kib"], "cpu_ms": client["began_ms"]},
    }


def by_package(lines: Iterable[Mapping[str, Any]]) -> Sequence[Figures]:
    """Return the weight of each top-level package, and of each of ours, heaviest first."""
    found: dict[str, Figures] = {}
    modules: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        name = package(line["module"])
        row = found.setdefault(name, {"package": name, "kib": 0, "ms": 0.0, "importer": ""})
        row["kib"] += line["kib"]
        row["ms"] += line["ms"]
        modules[name].add(line["module"])
        if package(line["importer"]) != name:
            row["importer"] = row["importer"] or line["importer"]
    for name, row in found.items():
        row["modules"] = len(modules[name])
        row["ms"] = round(row["ms"], 1)
        row["standard_library"] = name in sys.stdlib_module_names
    return sorted(found.values(), key=lambda row: (-row["kib"], row["package"]))


def package(module: str) -> str:
    """Return the top-level package of a module; for a module of ours also the folder."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == _PACKAGE else parts[0]


def memory(pid: int) -> Figures:
    """Return the memory and CPU time of a process."""
    found = _fields(Path(f"/proc/{pid}/smaps_rollup"))
    status = _fields(Path(f"/proc/{pid}/status"))
    return {
        "rss_kib": found["Rss"],
        "pss_kib": found["Pss"],
        "private_dirty_kib": found["Private_Dirty"],
        "anonymous_kib": status["RssAnon"],
        "files_kib": status["RssFile"],
        "threads": status["Threads"],
    }


def _fields(file: Path) -> Mapping[str, int]:
    """Return the fields of a file in /proc that are a number, in KiB if they have a unit."""
    pairs = (line.partition(":") for line in file.read_text(encoding="utf-8").splitlines())
    words = {name: value.split() for name, _, value in pairs}
    return {name: int(value[0]) for name, value in words.items() if value and value[0].isdigit()}


def text(figures: Figures) -> str:
    """Return the tables of all figures."""
    found = figures["memory"]
    return "\n\n".join((_starts(found["starts"]), _imports(found["imports"]), _moments(found)))


def _starts(rows: Mapping[str, Mapping[str, float]]) -> str:
    lines = [f"{'start until':<26}{'RSS MB':>8}{'CPU ms':>9}"]
    for name, row in rows.items():
        lines.append(f"{name:<26}{row['rss_kib'] / 1024:>8.1f}{row['cpu_ms']:>9.0f}")
    return "\n".join(lines)


def _imports(rows: Sequence[Figures]) -> str:
    lines = [f"{'import':<28}{'modules':>8}{'RSS KB':>8}{'CPU ms':>8}  first imported by"]
    for row in [row for row in rows if row["kib"] >= _SHOWN_KIB]:
        lines.append(
            f"{row['package']:<28}{row['modules']:>8}{row['kib']:>8}{row['ms']:>8.1f}"
            f"  {row['importer']}"
        )
    rest = [row for row in rows if row["kib"] < _SHOWN_KIB]
    for name, part in ((f"{len(rest)} smaller ones", rest), ("all", rows)):
        sums = [sum(row[key] for row in part) for key in ("modules", "kib", "ms")]
        lines.append(f"{name:<28}{sums[0]:>8}{sums[1]:>8}{sums[2]:>8.1f}")
    return "\n".join(lines)


def _moments(found: Figures) -> str:
    names = ("rss", "pss", "private_dirty", "anonymous", "files")
    width = max(map(len, found["moments"])) + 2
    heads = "".join(f"{name.replace('_', ' '):>15}" for name in names)
    lines = [f"{'MB':<{width}}{heads}{'threads':>9}"]
    for moment, row in found["moments"].items():
        values = "".join(f"{row[f'{name}_kib'] / 1024:>15.1f}" for name in names)
        lines.append(f"{moment:<{width}}{values}{row['threads']:>9}")
    return "\n".join(lines)
