"""A node plugin with providers that hang: it publishes, runs pods and stops as without them."""

from pathlib import Path

import pytest

from tensorfusion_dra.app.simulate import plugin_process
from tests.app.node_plugin.test_node_plugin_process import cluster_with, log_lines, start
from tests.support.installed_packages import install

CODE = """
import threading

def forever(*_):
    threading.Event().wait()

if __name__ == "hang_import":
    forever()
"""


def test_hanging_providers_delay_nothing_but_what_they_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {
        f"tensorfusion_dra.{kind}": {"hangs": "hang_calls:forever"}
        for kind in ("attributes", "capacities", "health_sources")
    }
    install(tmp_path, "hang-calls", groups, CODE)
    install(tmp_path, "hang-import", {"tensorfusion_dra.attributes": {"h": "hang_import:f"}}, CODE)
    with cluster_with() as cluster:
        monkeypatch.setattr(plugin_process, "spawn", plugin_process.spawn_command)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

        start(cluster)
        cluster.submit("a", {"tflops": "50", "vram": "8Gi"})
        cluster.until("runs", lambda: cluster.container_of("a") is not None)

        failed = log_lines(cluster, "provider_failed")
        code = cluster.stop_plugin()

    assert sorted((line["kind"], line["provider"]) for line in failed) == [
        ("attributes", "h"),
        ("attributes", "hangs"),
        ("capacities", "hangs"),
        ("health", "hangs"),
    ]
    assert {line["error"] for line in failed} == {
        "no answer within 2 s; the last good answers stand"
    }
    assert code == 0
