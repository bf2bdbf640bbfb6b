"""Restarts of the kubelet: claims of its checkpoint are unprepared later or prepared again."""

import json
from pathlib import Path

from dra_simulator.runtime import Runtime
from tests.dra_simulator.kubelets import NodeUnderTest
from tests.dra_simulator.tiny_plugin import TinyPlugin
from tests.dra_simulator.waiting import eventually
from tests.support.objects import Json


def test_running_pod_survives_a_restart_and_is_unprepared_when_deleted(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")
    node.stop()

    node.start()
    eventually(node.is_registered)

    eventually(node.env)
    node.delete()
    eventually(lambda: node.phase() == "")
    assert plugin.methods == ["Prepare", "Unprepare"]


def test_claim_is_prepared_again_for_a_pod_that_starts_after_a_restart(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claim = node.claim()
    node.pod("a", claim=claim)
    eventually(lambda: node.phase("a") == "Running")
    node.stop()
    node.start()
    eventually(node.is_registered)

    node.pod("b", claim=claim)

    eventually(lambda: node.phase("b") == "Running")
    assert plugin.methods == ["Prepare", "Prepare"]


def test_claims_of_running_pods_are_prepared_again_after_a_reboot(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")
    node.stop()
    for path in plugin.cdi_dir.iterdir():
        path.unlink()

    node.runtime = Runtime([plugin.cdi_dir])
    node.start()

    eventually(node.env)
    eventually(lambda: plugin.methods == ["Prepare", "Prepare"])


def test_claim_of_pod_force_deleted_while_no_kubelet_ran_is_unprepared(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")
    node.stop()
    node.delete(force=True)

    node.start()

    eventually(lambda: plugin.methods == ["Prepare", "Unprepare"])
    eventually(lambda: checkpoint(node.folder / "k") == [])


def checkpoint(root_dir: Path) -> list[Json]:
    """Return the claims in the kubelet's checkpoint."""
    found: list[Json] = json.loads((root_dir / "dra_manager_state").read_text())
    return found
