"""A kubelet that comes back knows what it has to give up, and prepares again what it needs."""

import json
from pathlib import Path

from tensorfusion_dra.simulator.runtime import Runtime
from tests.simulator.kubelets import NodeUnderTest
from tests.simulator.objects import Json
from tests.simulator.tiny_plugin import TinyPlugin
from tests.simulator.waiting import eventually


def test_after_a_restart_running_pods_go_on_and_are_given_up_later(
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


def test_after_a_restart_a_claim_is_prepared_again_for_the_next_pod(
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


def test_after_a_reboot_pods_are_prepared_again(node: NodeUnderTest, plugin: TinyPlugin) -> None:
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")
    node.stop()
    for path in plugin.cdi_dir.iterdir():
        path.unlink()

    node.runtime = Runtime([plugin.cdi_dir])
    node.start()

    eventually(node.env)
    eventually(lambda: plugin.methods == ["Prepare", "Prepare"])


def test_a_pod_deleted_by_force_while_no_kubelet_ran_is_given_up(
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
    """The claims that the kubelet would know after a restart."""
    found: list[Json] = json.loads((root_dir / "dra_manager_state").read_text())
    return found
