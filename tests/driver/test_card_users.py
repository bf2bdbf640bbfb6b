"""Cards that a device plugin or another DRA driver gives to containers as well."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.other_users import Allocations
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.publish import DeviceCatalog
from tensorfusion_dra.runtime.loops import Wakeup
from tests.support.builders.devices import NODE
from tests.support.ports import FixedDiscovery
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    Setup,
    put_claim,
    share_result,
    simulated_inventory,
)

UUID = simulated_inventory().gpus[0].uuid
DEVICE = frozenset({("nvidia.com/gpu", UUID)})
BY_PLUGIN = Allocations(offered=DEVICE, held=DEVICE)
SLICE: dict[str, Any] = {
    "spec": {
        "driver": "gpu.nvidia.com",
        "pool": {"name": "p"},
        "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": UUID}}}],
    }
}


class Kubelet:
    """The kubelet's answer; None if it does not answer."""

    def __init__(self) -> None:
        self.answer: Allocations | None = Allocations()
        self.calls = 0

    def __call__(self) -> Allocations:
        self.calls += 1
        if self.answer is None:
            raise RetryableError("kubelet.sock: no answer")
        return self.answer


class Beside(Setup):
    """A node whose kubelet is asked who holds its cards."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.kubelet = Kubelet()
        self.changes = 0
        self.wakeup = Wakeup()
        self.use(
            catalog=DeviceCatalog(
                FixedDiscovery(simulated_inventory()),
                NODE,
                allocations=self.kubelet,
                wakeup=self.wakeup,
                on_change=self._changed,
            )
        )
        self.catalog.refresh()

    def _changed(self) -> None:
        self.changes += 1

    def device(self, name: str = GPU_0) -> Device:
        catalog = self.catalog.current()
        assert catalog is not None
        return catalog.by_name()[name]

    def shown(self, name: str = GPU_0) -> tuple[object, ...]:
        """Return `used_by` and the taints."""
        device = self.device(name)
        taints = (f"{each.key}={each.value}:{each.effect}" for each in device.taints)
        return device.attributes["used_by"], *taints


@pytest.fixture
def node(tmp_path: Path) -> Beside:
    return Beside(tmp_path)


PLUGIN = ("nvidia-device-plugin", "tensor-fusion.ai/used-by=nvidia-device-plugin:NoSchedule")


def test_a_card_of_the_device_plugin_is_tainted_until_plugin_and_container_are_gone(
    node: Beside,
) -> None:
    node.kubelet.answer = Allocations(offered=DEVICE)
    node.catalog.refresh()
    assert (node.shown(), node.shown(GPU_1)) == (PLUGIN, ("",))
    node.kubelet.answer = Allocations(held=DEVICE)
    changes = node.changes
    node.catalog.refresh()
    assert node.changes == changes

    node.kubelet.answer = Allocations()
    node.catalog.refresh()

    assert node.shown() == ("",)


def test_a_card_that_another_dra_driver_publishes_is_tainted_at_once(node: Beside) -> None:
    node.catalog.set_other_slices([SLICE])
    woken = node.wakeup.wait(0)
    node.wakeup.next_round()
    node.catalog.refresh()
    node.catalog.set_other_slices([{**SLICE}])

    assert (woken, node.wakeup.wait(0)) == (True, False)
    assert node.shown() == ("gpu.nvidia.com", "tensor-fusion.ai/used-by=gpu.nvidia.com:NoSchedule")


def test_as_long_as_the_kubelet_does_not_answer_its_last_answer_counts(node: Beside) -> None:
    node.kubelet.answer = BY_PLUGIN
    node.catalog.refresh()
    node.kubelet.answer = None

    with capture_logs() as logs:
        node.catalog.refresh()
        node.catalog.refresh()

    assert node.shown() == PLUGIN
    assert [each["event"] for each in logs] == ["allocations_unknown"]


def test_a_claim_on_a_card_that_another_container_got_since_the_last_reading_waits(
    node: Beside,
) -> None:
    held = put_claim(node, "held", share_result(device=GPU_0))
    free = put_claim(node, "free", share_result(device=GPU_1))
    node.kubelet.answer = Allocations(offered=DEVICE)
    node.catalog.refresh()
    node.kubelet.answer = BY_PLUGIN

    assert node.refused(held) == (
        f"claim {held}: {GPU_0}: found a container that has this GPU from nvidia-device-plugin, "
        "expected only claims of this driver"
    )
    node.prepared(free)
    node.kubelet.answer = Allocations()
    node.prepared(held)


def test_a_prepare_asks_the_kubelet_only_beside_something_else_that_gives_cards(
    node: Beside,
) -> None:
    devices = [
        {"name": "eth-0", "attributes": {"resource.kubernetes.io/pciBusID": {"string": "a"}}}
    ]
    network = {"spec": {"driver": "net.example.com", "pool": {"name": "p"}, "devices": devices}}
    node.catalog.set_other_slices([network])
    asked = node.kubelet.calls
    node.prepared(put_claim(node, "alone", share_result(device=GPU_0)))
    alone = node.kubelet.calls - asked
    node.catalog.set_other_slices([network, SLICE])

    node.prepared(put_claim(node, "beside", share_result(device=GPU_0)))

    assert (alone, node.kubelet.calls - asked) == (0, 1)


def test_a_prepared_claim_a_published_card_and_a_monitor_are_not_refused(node: Beside) -> None:
    before = put_claim(node, "before", share_result(device=GPU_0))
    node.prepared(before)
    node.catalog.set_other_slices([SLICE])
    published = put_claim(node, "published", share_result(device=GPU_0))
    node.prepared(published)
    node.kubelet.answer = BY_PLUGIN

    node.prepared(before)
    node.prepared(put_claim(node, "monitor", {**share_result(device=GPU_0), "adminAccess": True}))
