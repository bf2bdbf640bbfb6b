"""Deletion of ResourceSlices by the kubelet, and its view of device health."""

from dataclasses import replace

import pytest

from dra_simulator.rest import SLICES
from tensorfusion_dra.kubelet.pb import dra_health_v1alpha1_pb2 as pb
from tests.dra_simulator.kubelets import FAST, NodeUnderTest
from tests.dra_simulator.waiting import always, eventually
from tests.support import objects
from tests.support.objects import DRIVER, NODE, Json


def slices(node: NodeUnderTest) -> list[str]:
    """Return the names of all slices."""
    return [found["metadata"]["name"] for found in node.client.list(SLICES).items]


@pytest.fixture
def published(node: NodeUnderTest) -> list[str]:
    """Create a slice of the driver, one of another driver and one of another node."""
    found: list[Json] = [objects.resource_slice(name=name, pool=name) for name in ("a", "b", "c")]
    found[1]["spec"]["driver"] = "other.example.com"
    found[2]["spec"]["nodeName"] = "node-b"
    return [node.client.create(SLICES, document)["metadata"]["name"] for document in found]


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("how", ["withdrawn", "dead"])
def test_slices_of_a_driver_are_deleted_some_time_after_it_is_gone(
    node: NodeUnderTest, how: str
) -> None:
    node.start()
    plugin = node.plugin()
    eventually(lambda: node.is_registered() and node.kubelet.registered[DRIVER][0].is_connected)

    if how == "withdrawn":
        plugin.withdraw()
    else:
        plugin.end()

    always(lambda: slices(node) == ["a", "b", "c"], seconds=0.2)
    eventually(lambda: slices(node) == ["b", "c"])
    (entry,) = eventually(lambda: node.happened("slices_wiped"))
    assert entry.facts == {"driver": DRIVER, "slices": "a"}


@pytest.mark.usefixtures("published")
def test_driver_that_reconnects_in_time_keeps_its_slices(node: NodeUnderTest) -> None:
    node.start(timings=replace(FAST, wipe_delay_seconds=2.0))
    plugin = node.plugin()
    eventually(lambda: node.is_registered() and node.kubelet.registered[DRIVER][0].is_connected)

    plugin.end()
    eventually(lambda: not node.kubelet.registered[DRIVER][0].is_connected)
    plugin.serve()

    eventually(lambda: node.kubelet.registered[DRIVER][0].is_connected)
    always(lambda: slices(node) == ["a", "b", "c"], seconds=2.2)


@pytest.mark.usefixtures("published")
def test_all_slices_of_the_node_are_deleted_at_start_with_wipe_at_start(
    node: NodeUnderTest,
) -> None:
    node.start(wipe_at_start=True)

    eventually(lambda: slices(node) == ["c"])


@pytest.mark.usefixtures("published")
def test_slices_survive_the_start_without_wipe_at_start(node: NodeUnderTest) -> None:
    node.start()

    always(lambda: slices(node) == ["a", "b", "c"], seconds=0.2)


def health(name: str, status: pb.HealthStatus, **fields: object) -> pb.DeviceHealth:
    """Return a plugin's health report of one device."""
    device = pb.DeviceIdentifier(pool_name=NODE, device_name=name)
    return pb.DeviceHealth(device=device, health=status, **fields)  # type: ignore[arg-type]


def known(node: NodeUnderTest) -> dict[str, tuple[str, str]]:
    """Return the health that the kubelet knows, as status and message by device."""
    return {
        device: (report.status, report.message)
        for (_, _, device), report in node.kubelet.health.items()
    }


def test_health_is_known_while_the_stream_is_open(node: NodeUnderTest) -> None:
    node.start()
    plugin = node.plugin(announced=False)
    plugin.health = [
        health("gpu-0", pb.HealthStatus.HEALTHY),
        health("gpu-1", pb.HealthStatus.UNHEALTHY, message="XID 79"),
    ]
    plugin.serve()
    plugin.announce()
    expected = {"gpu-0": ("HEALTHY", ""), "gpu-1": ("UNHEALTHY", "XID 79")}
    eventually(lambda: known(node) == expected)

    plugin.end()

    eventually(lambda: known(node) == {})
    plugin.serve()
    eventually(lambda: known(node) == expected)


def test_health_of_a_device_without_further_reports_expires(node: NodeUnderTest) -> None:
    node.start(timings=replace(FAST, health_timeout_seconds=0.2))
    plugin = node.plugin(announced=False)
    plugin.health = [health("gpu-0", pb.HealthStatus.HEALTHY)]
    plugin.serve()
    plugin.announce()
    eventually(lambda: known(node))

    plugin.health = []

    eventually(lambda: known(node) == {})
