"""The floor of a prepare, measured at a node plugin under the simulated API server."""

from pathlib import Path

from benchmark import floor, node
from tests.support.waiting import eventually


def test_every_step_takes_some_time(tmp_path: Path) -> None:
    with node.running("1xA100-SXM4-80GB") as cluster:
        cluster.start_plugin()
        assert eventually(lambda: bool(cluster.slices()))

        found = floor.measured(
            cluster.target, cluster.kubeconfig, disk=tmp_path, run=tmp_path, calls=3
        )

    assert list(found) == ["an empty call", "one GET", "one flush", "one file"]
    assert all(step.in_a_row > 0 and step.after_pause > 0 for step in found.values())
    assert len(floor.text(found).splitlines()) == 1 + len(found)
