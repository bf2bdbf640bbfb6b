"""Memory of the node plugin by import, by hack/bench."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmark import memory
from tests.guard import sitecustomize as path_guard
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> Any:
    """Run hack/bench and return its JSON."""
    ended = subprocess.run(
        [sys.executable, ROOT / "hack" / "bench", *arguments, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=path_guard.environment(),
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def line(module: str, importer: str = "", **weights: float) -> dict[str, Any]:
    usual = {"kib": 0, "ms": 0.0, "began_kib": 0, "began_ms": 0.0}
    return {"module": module, "importer": importer, **usual, **weights}


def test_weights_are_summed_by_package_and_ours_by_folder() -> None:
    rows = memory.by_package(
        [
            line("grpc._channel", "grpc", kib=5, ms=1.04),
            line("grpc", "tensorfusion_dra.kubelet.dra", kib=10, ms=2.0),
            line("tensorfusion_dra.kubelet.dra", "tensorfusion_dra.app.process", kib=1, ms=1.0),
            line("tensorfusion_dra.kubelet", "tensorfusion_dra.app.process", kib=2, ms=1.0),
            line("email.utils", "http.client", kib=3, ms=1.0),
        ]
    )

    assert [(row["package"], row["modules"], row["kib"], row["ms"]) for row in rows] == [
        ("grpc", 2, 15, 3.0),
        ("email", 1, 3, 1.0),
        ("tensorfusion_dra.kubelet", 2, 3, 2.0),
    ]
    assert [row["importer"] for row in rows] == [
        "tensorfusion_dra.kubelet.dra",
        "http.client",
        "tensorfusion_dra.app.process",
    ]
    assert [row["standard_library"] for row in rows] == [False, True, False]


def test_memory_of_the_real_process_has_every_import_and_moment() -> None:
    found = bench("--memory", "--claims", "2", "--held", "1")["memory"]

    weights = {row["package"]: row["kib"] for row in found["imports"]}
    assert weights["grpc"] > 1000
    start = found["starts"]
    assert start["interpreter"]["rss_kib"] < start["the kubelet can call"]["rss_kib"]
    assert list(found["moments"]) == [
        "idle",
        *(f"after 2 claims, {callers} at a time" for callers in (1, 8, 64)),
    ]
    for moment in found["moments"].values():
        # What imports added is most of what the process has.
        assert sum(weights.values()) > moment["rss_kib"] / 2
        assert moment["private_dirty_kib"] < moment["rss_kib"]
