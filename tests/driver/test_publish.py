"""Publication of the node's cards as ResourceSlices."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.core.devices.slices import Slice, WriteReason
from tensorfusion_dra.core.errors import MissingPermissionError, RetryableError
from tensorfusion_dra.core.kubernetes.device_rules import (
    GATE_CONSUMABLE_CAPACITY,
    GATE_DEVICE_TAINTS,
)
from tensorfusion_dra.core.observed import PublishingView
from tensorfusion_dra.driver import publish
from tensorfusion_dra.driver.publish import DeviceCatalog, Publisher, Repairs
from tensorfusion_dra.runtime import loops
from tensorfusion_dra.runtime.loops import Wakeup
from tests.support.builders.devices import NODE
from tests.support.ports import (
    EventsInMemory,
    FixedDiscovery,
    LeaseInMemory,
    OneNode,
    SlicesInMemory,
)
from tests.support.prepared_node import simulated_inventory
from tests.support.threads import running
from tests.support.virtual_time import VirtualTime
from tests.support.waiting import eventually

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
        self.wakeup = Wakeup()
        self.catalog = DeviceCatalog(self.discovery, NODE, on_change=self.wakeup.wake)
        self.lease = LeaseInMemory()
        self.events = EventsInMemory()
        self.publisher = Publisher(
            self.catalog,
            self.slices,
            self.node,
            self.events,
            lease=self.lease,
            repairs=repairs,
            wakeup=self.wakeup,
        )

    def publish(self) -> None:
        self.catalog.refresh()
        self.publisher.publish()


def test_first_publication_creates_one_slice_that_a_restart_leaves_as_it_is() -> None:
    setup = Setup()
    assert setup.publisher.view() == PublishingView()

    setup.publish()
    restarted = Setup(setup.slices)
    restarted.publish()

    assert setup.slices.writes == [f"create {SLICE}"]
    spec = setup.slices.items[SLICE]["spec"]
    assert spec["pool"] == {"name": "default/node-01", "resourceSliceCount": 1, "generation": 1}
    documented = {value for key, value in vars(names).items() if key.startswith("ATTR_")}
    for device in spec["devices"]:
        assert device["attributes"].keys() >= documented
    for view in (setup.publisher.view(), restarted.publisher.view()):
        assert (view.generation, view.slices, view.devices) == (1, 1, 2)
        assert view.confirmed_at is not None
    assert setup.publisher.view().written_at == setup.publisher.view().confirmed_at
    assert restarted.publisher.view().written_at is None


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


def test_dropped_fields_are_logged_once_and_a_restart_writes_once() -> None:
    slices = SlicesInMemory(gates_off=frozenset({GATE_CONSUMABLE_CAPACITY}))
    for writes in ([f"create {SLICE}"], [f"create {SLICE}", f"replace {SLICE}"]):
        setup = Setup(slices)
        with capture_logs() as logs:
            setup.publish()
            setup.publish()

        assert slices.writes == writes
        reports = [line for line in logs if line["event"] == "slice_fields_dropped"]
        assert [line["feature_gates"] for line in reports] == [["DRAConsumableCapacity"]]
        view = setup.publisher.view()
        assert (view.dropped_gates, view.generation) == ((GATE_CONSUMABLE_CAPACITY,), 1)


def test_gate_that_was_turned_on_is_used_once_the_server_returns() -> None:
    setup = Setup(SlicesInMemory(gates_off=frozenset({GATE_CONSUMABLE_CAPACITY})))
    setup.publish()
    setup.slices.gates_off = frozenset()

    setup.publisher.server_returned()
    setup.publish()

    assert setup.slices.writes[1:] == [f"replace {SLICE}"]
    assert setup.slices.items[SLICE]["spec"]["devices"][0]["allowMultipleAllocations"] is True
    assert setup.publisher.view().dropped_gates == ()


def test_server_that_returns_with_the_same_gates_off_is_no_repair() -> None:
    setup = Setup(SlicesInMemory(gates_off=frozenset({GATE_DEVICE_TAINTS})))
    setup.publish()
    setup.catalog.on_event(XID_79)
    for _ in range(3):
        setup.publisher.server_returned()
        setup.publish()
        setup.publish()

    assert WriteReason.REPAIR not in counted(setup)
    assert setup.events.written == []
    assert setup.publisher.view().dropped_gates == (GATE_DEVICE_TAINTS,)


@contextmanager
def running_publisher(setup: Setup) -> Iterator[None]:
    if setup.discovery.inventory is not None:
        setup.catalog.refresh()
    with running(setup.publisher.run, stop=setup.publisher.stop):
        yield


def test_publication_is_retried_until_the_server_answers_and_a_wake_publishes_at_once() -> None:
    setup = Setup()
    setup.slices.away = True
    with running_publisher(setup):
        assert not eventually(lambda: bool(setup.slices.items), seconds=0.5)
        assert setup.publisher.view().error == "no answer"

        setup.slices.away = False
        assert eventually(lambda: SLICE in setup.slices.items)
        assert eventually(lambda: not setup.publisher.view().error)

        setup.slices.items.clear()
        setup.wakeup.wake()
        assert eventually(lambda: SLICE in setup.slices.items)


def test_nothing_is_read_or_written_while_a_newer_instance_publishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish, "_LEASE_SECONDS", 0.02)
    setup = Setup()
    with capture_logs() as logs, running_publisher(setup):
        assert eventually(lambda: SLICE in setup.slices.items)
        setup.lease.newer = True
        setup.slices.items.clear()

        setup.wakeup.wake()
        assert not eventually(lambda: bool(setup.slices.items), seconds=0.3)
        setup.lease.newer = False

        assert eventually(lambda: SLICE in setup.slices.items)
    assert [line["event"] for line in logs if line["event"].startswith("publishing")] == [
        "publishing_left_to_newer_instance",
        "publishing_resumed",
    ]
    assert setup.lease.released


def test_lease_is_taken_only_if_there_is_something_to_publish() -> None:
    setup = Setup()
    setup.discovery.inventory = None
    with running_publisher(setup):
        assert not eventually(lambda: setup.lease.taken > 0, seconds=0.2)
        setup.slices.away = True
        setup.discovery.inventory = simulated_inventory()
        setup.catalog.refresh()
        setup.wakeup.wake()
        assert not eventually(lambda: setup.lease.taken > 0, seconds=0.2)
        setup.slices.away = False
        setup.wakeup.wake()

        assert eventually(lambda: setup.lease.taken > 0)


@pytest.mark.parametrize(
    ("error", "least_seconds"),
    [
        (RetryableError("no answer within the time"), 15),
        (MissingPermissionError("403: no right", "update on resourceslices"), 60),
        (RetryableError("429: slow down", after_seconds=40), 40),
    ],
)
def test_six_hour_outage_costs_few_requests_and_one_log_line(
    monkeypatch: pytest.MonkeyPatch, error: RetryableError, least_seconds: float
) -> None:
    virtual = VirtualTime(hours=6)
    monkeypatch.setattr(loops, "Event", virtual.event)
    setup = Setup()
    setup.catalog.refresh()
    fetches = []

    def fetch() -> list[Slice]:
        fetches.append(virtual.seconds)
        raise error

    monkeypatch.setattr(setup.slices, "fetch", fetch)

    with capture_logs() as logs:
        setup.publisher.run()

    most = 6 * 3600 / least_seconds
    assert most / 2 + 10 < len(fetches) <= most + 10
    assert [line["error"] for line in logs if "error" in line] == [str(error)]
    assert setup.lease.released


class OtherWriter:
    """Writer that changes the node's slice after each publication, under its own manager name."""

    def __init__(self, setup: Setup, *, manager: str) -> None:
        self._setup = setup
        self._manager = manager
        self._replace, self._create = setup.slices.replace, setup.slices.create
        setup.slices.replace = self.replace  # type: ignore[method-assign]
        setup.slices.create = self.create  # type: ignore[method-assign]

    def replace(self, item: Slice) -> Slice:
        return self._changed(self._replace(item))

    def create(self, item: Slice) -> Slice:
        return self._changed(self._create(item))

    def _changed(self, stored: Slice) -> Slice:
        changed: Any = copy.deepcopy(dict(stored))
        changed["metadata"]["labels"] = {}
        changed["metadata"]["managedFields"] = [
            {"manager": "tensorfusion-dra", "time": "2026-03-01T00:00:00Z"},
            {"manager": self._manager, "time": "2026-03-01T00:00:01Z"},
        ]
        self._setup.slices.items[SLICE] = changed
        self._setup.publisher.slices_changed()
        return stored


def contested(monkeypatch: pytest.MonkeyPatch, *, hours: float) -> Setup:
    """Return a publisher in virtual time, whose slice another writer always changes."""
    virtual = VirtualTime(hours=hours)
    monkeypatch.setattr(loops, "Event", virtual.event)
    setup = Setup(repairs=Repairs(clock=lambda: virtual.seconds))
    setup.catalog.refresh()
    OtherWriter(setup, manager="kubectl\n-edit")
    return setup


def test_changes_of_another_writer_are_undone_once_a_minute_and_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = contested(monkeypatch, hours=1)

    with capture_logs() as logs:
        setup.publisher.run()

    assert 60 <= len(setup.slices.writes) <= 3600 / 30 + 10
    (line,) = [line for line in logs if line["event"] == "slices_contested"]
    assert line["writers"] == "kubectl\n-edit"
    ((reason, text),) = setup.events.written
    assert reason == "ResourceSlicesContested"
    assert "found them written by kubectl\n-edit again and again" in text


def test_own_change_is_written_at_once_while_another_writer_interferes() -> None:
    setup = Setup(repairs=Repairs(clock=lambda: 1000.0))
    setup.publish()
    OtherWriter(setup, manager="other")
    setup.slices.items.clear()
    setup.publish()
    setup.publish()
    assert len(setup.slices.writes) == 2  # the second repair waits

    setup.discovery.inventory = simulated_inventory("3xA100-SXM4-80GB")
    setup.publish()

    assert len(setup.slices.writes) == 3


def test_slices_unchanged_for_long_are_repaired_at_once_again() -> None:
    now = [0.0]
    setup = Setup(repairs=Repairs(clock=lambda: now[0]))
    setup.publish()
    for _ in range(3):
        now[0] += 700
        setup.slices.items.clear()
        setup.publish()

    assert len(setup.slices.writes) == 4
    assert setup.events.written == []


OVERSUBSCRIBED = Oversubscription(tflops_percent=150, host_memory_percent=0, host_disk_percent=0)


def counted(setup: Setup) -> dict[WriteReason, int]:
    """Return the reasons that were counted."""
    return {reason: number for reason, number in setup.publisher.view().writes.items() if number}


def published() -> Setup:
    """Return a publisher that has found its slices as it wants them."""
    before = Setup(inventory=simulated_inventory("1xT4"))
    before.publish()
    setup = Setup(before.slices, simulated_inventory("1xT4"))
    setup.publish()
    assert counted(setup) == {}
    return setup


def add_card(setup: Setup) -> None:
    setup.discovery.inventory = simulated_inventory("2xT4")


def report_xid(setup: Setup) -> None:
    setup.catalog.on_event(XID_79)


def report_xid_without_taints(setup: Setup) -> None:
    setup.catalog._taint_effect = ""
    setup.catalog.on_event(XID_79)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (add_card, WriteReason.DEVICES),
        (report_xid, WriteReason.HEALTH),
        (report_xid_without_taints, WriteReason.HEALTH),
        (
            lambda setup: setup.catalog.set_node(replace(NODE, oversubscription=OVERSUBSCRIBED)),
            WriteReason.VALUES,
        ),
        (lambda setup: setup.slices.items.clear(), WriteReason.REPAIR),
    ],
)
def test_write_is_counted_by_its_reason(
    change: Callable[[Setup], object], reason: WriteReason
) -> None:
    setup = published()
    change(setup)

    setup.publish()

    assert counted(setup) == {reason: 1}


def test_failed_write_is_counted_as_a_retry_once_it_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = published()
    report_xid(setup)
    with monkeypatch.context() as patched:
        patched.setattr(setup.slices, "replace", setup.slices.create)  # which answers 409
        with pytest.raises(RetryableError):
            setup.publish()
    assert counted(setup) == {}
    setup.publish()
    add_card(setup)

    setup.publish()

    assert counted(setup) == {WriteReason.RETRY: 1, WriteReason.DEVICES: 1}
