"""A node plugin with bad providers: it publishes, runs pods and stops as without them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tests.app.node_plugin.test_node_plugin_process import cluster_with, log_lines, run_pod, start
from tests.support.installed_packages import install

pytestmark = pytest.mark.process

CODE = """
import threading

def forever(*_):
    threading.Event().wait()

if __name__ == "hang_import":
    forever()
"""


@contextmanager
def node_with_pod(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCluster]:
    """Yield a node whose plugin finds the packages in a folder, with a pod that runs."""
    with cluster_with() as cluster:
        monkeypatch.setattr(plugin_process, "spawn", plugin_process.spawn_command)
        monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
        start(cluster)
        run_pod(cluster, "a")
        yield cluster


def test_hanging_providers_delay_nothing_but_what_they_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {
        f"tensorfusion_dra.{kind}": {"hangs": "hang_calls:forever"}
        for kind in ("attributes", "capacities", "health_sources")
    }
    install(tmp_path, "hang-calls", groups, CODE)
    install(tmp_path, "hang-import", {"tensorfusion_dra.attributes": {"h": "hang_import:f"}}, CODE)
    with node_with_pod(tmp_path, monkeypatch) as cluster:
        late = log_lines(cluster, "provider_failed")
        code = cluster.stop_plugin()

    assert sorted((line["kind"], line["provider"]) for line in late) == [
        ("attributes", "h"),
        ("attributes", "hangs"),
        ("capacities", "hangs"),
        ("health", "hangs"),
    ]
    (error,) = {line["error"] for line in late}
    assert error == "no answer within 2 s; the last good answers remain in use"
    assert code == 0
