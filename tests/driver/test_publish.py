"""Publication of slices: few writes, and none without a change."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.slice_normal_form import (
    GATE_CONSUMABLE_CAPACITY,
    GATE_DEVICE_TAINTS,
)
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.driver.publish import Publisher, Repairs
from tests.support.builders.devices import NODE
from tests.support.ports import (
    EventsInMemory,
    FixedDiscovery,
    OneNode,
    RightInMemory,
    SlicesInMemory,
)
from tests.support.prepared_node import simulated_inventory

SLICE = "tensor-fusion-resource-slice-node-01"
XID_79 = CardEvent(
    gpu_uuid=simulated_inventory("1xT4").gpus[0].uuid,
    kind=EventKind.XID,
    code=79,
)


class Setup:
    """A publisher with its ports; another Setup with the same slices is a restart."""

    def __init__(
        self,
        slices: SlicesInMemory | None = None,
        inventory: Inventory | None = None,
        *,
        repairs: Repairs | None = None,
    ) -> None:
        self.discovery = FixedDiscovery(inventory or simulated_inventory())
        self.slices = slices or SlicesInMemory()
        self.node = OneNode()
        self.catalog = DeviceCatalog(self.discovery, NODE)
        self.right = RightInMemory()
        self.events = EventsInMemory()
        self.publisher = Publisher(
            self.catalog,
            self.slices,
            self.node,
            self.events,
            right=self.right,
            repairs=repairs,
        )

    def publish(self) -> None:
        self.catalog.refresh()
        self.publisher.publish()


def test_first_publication_creates_one_slice_of_generation_1() -> None:
    setup = Setup()

    setup.publish()

    assert setup.slices.writes == [f"create {SLICE}"]
    spec = setup.slices.items[SLICE]["spec"]
    assert spec["pool"] == {"name": "default/node-01", "resourceSliceCount": 1, "generation": 1}
    assert len(spec["devices"]) == 2


def test_unchanged_slices_are_not_written() -> None:
    setup = Setup()
    setup.publish()

    setup.publish()

    assert setup.slices.writes == [f"create {SLICE}"]


def test_restart_writes_nothing() -> None:
    before = Setup()
    before.publish()

    Setup(before.slices).publish()

    assert before.slices.writes == [f"create {SLICE}"]
    assert before.slices.trials == 0


def test_deleted_slice_is_created_again() -> None:
    setup = Setup()
    setup.publish()
    setup.slices.items.clear()

    setup.publish()

    assert list(setup.slices.items) == [SLICE]


def test_change_by_another_writer_is_undone_in_one_write_of_the_same_generation() -> None:
    setup = Setup()
    setup.publish()
    changed = dict(setup.slices.items[SLICE])
    changed["spec"] = {**changed["spec"], "devices": []}
    setup.slices.items[SLICE] = changed

    setup.publish()

    assert setup.slices.writes[1:] == [f"replace {SLICE}"]
    assert setup.slices.items[SLICE]["spec"]["pool"]["generation"] == 1
    assert len(setup.slices.items[SLICE]["spec"]["devices"]) == 2


def test_recreated_node_object_becomes_the_owner_once_its_slices_are_collected() -> None:
    setup = Setup()
    setup.publish()
    setup.node.current = "node-uid-2"
    setup.slices.items.clear()
    setup.publisher.slices_changed()

    setup.publish()

    owner = setup.slices.items[SLICE]["metadata"]["ownerReferences"][0]
    assert owner["uid"] == "node-uid-2"


def test_slices_are_kept_while_the_cards_cannot_be_read() -> None:
    before = Setup()
    before.publish()
    after = Setup(before.slices)
    after.discovery.inventory = None

    with pytest.raises(RetryableError, match="waiting for the NVIDIA driver"):
        after.catalog.refresh()
    after.publisher.publish()

    assert before.slices.writes == [f"create {SLICE}"]


def test_node_without_cards_has_no_slice() -> None:
    setup = Setup(inventory=Inventory(gpus=()))

    setup.publish()

    assert setup.slices.writes == []


def test_card_that_the_api_would_refuse_is_left_out_and_the_others_are_published() -> None:
    inventory = simulated_inventory()
    broken = replace(inventory.gpus[0], uuid="GPU-not a DNS label")
    setup = Setup(inventory=replace(inventory, gpus=(broken, inventory.gpus[1])))

    with capture_logs() as logs:
        setup.publish()

    assert len(setup.slices.items[SLICE]["spec"]["devices"]) == 1
    assert [line["device"] for line in logs if line["event"] == "gpu_left_out"] == [
        "gpu-not a dns label"
    ]


def test_dropped_fields_are_logged_once_with_their_gate_and_not_written_again() -> None:
    setup = Setup(SlicesInMemory(gates_off=frozenset({GATE_CONSUMABLE_CAPACITY})))

    with capture_logs() as logs:
        setup.publish()
        setup.publish()

    assert setup.slices.writes == [f"create {SLICE}"]
    reports = [line for line in logs if line["event"] == "slice_fields_dropped"]
    assert [line["feature_gates"] for line in reports] == [["DRAConsumableCapacity"]]


def test_restart_with_the_gate_off_makes_only_a_dry_run() -> None:
    before = Setup(SlicesInMemory(gates_off=frozenset({GATE_CONSUMABLE_CAPACITY})))
    before.publish()
    after = Setup(before.slices)

    with capture_logs() as logs:
        after.publish()
        after.publish()

    assert before.slices.writes == [f"create {SLICE}"]
    assert before.slices.trials == 1
    assert "slice_fields_dropped" in [line["event"] for line in logs]


def test_gate_that_was_turned_on_is_used_once_the_server_returns() -> None:
    setup = Setup(SlicesInMemory(gates_off=frozenset({GATE_CONSUMABLE_CAPACITY})))
    setup.publish()
    setup.slices.gates_off = frozenset()

    setup.publisher.server_returned()
    setup.publish()

    assert setup.slices.writes[1:] == [f"replace {SLICE}"]
    assert setup.slices.items[SLICE]["spec"]["devices"][0]["allowMultipleAllocations"] is True


def test_unhealthy_card_is_tainted_in_one_write() -> None:
    setup = Setup()
    setup.publish()
    setup.catalog.note_event(XID_79)

    for _ in range(3):
        setup.publish()

    assert setup.slices.writes[1:] == [f"replace {SLICE}"]
    first, second = setup.slices.items[SLICE]["spec"]["devices"]
    (taint,) = first["taints"]
    assert (taint["key"], taint["value"]) == ("tensor-fusion.ai/unhealthy", "xid-79")
    assert taint["timeAdded"].endswith("Z")
    assert first["attributes"]["phase"] == {"string": "Unknown"}
    assert "taints" not in second


def test_restart_with_dropped_taints_in_any_slice_writes_nothing() -> None:
    slices = SlicesInMemory(gates_off=frozenset({GATE_DEVICE_TAINTS}))
    inventory = simulated_inventory("130xT4")
    last_two = [replace(XID_79, gpu_uuid=inventory.gpus[index].uuid) for index in (65, 129)]
    written, generations = [], []
    for _ in range(2):
        setup = Setup(slices, inventory=inventory)
        setup.catalog.refresh()
        for event in last_two:
            setup.catalog.note_event(event)
        setup.publisher.publish()
        written.append(len(slices.writes))
        generations.append(setup.publisher.state.view().generation)

    assert written == [3, 3]
    assert slices.trials == 1
    assert generations == [1, 1]


def test_every_device_has_every_documented_attribute() -> None:
    setup = Setup()

    setup.publish()

    documented = {value for key, value in vars(names).items() if key.startswith("ATTR_")}
    for device in setup.slices.items[SLICE]["spec"]["devices"]:
        assert device["attributes"].keys() >= documented
