"""Publication of the node's cards as ResourceSlices, by the GPUPool that it follows."""

import copy
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.devices.capacity import NO_MORE
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.core.devices.slices import Slice, WriteReason
from tensorfusion_dra.core.errors import InputError, MissingPermissionError, RetryableError
from tensorfusion_dra.core.kubernetes.device_rules import (
    GATE_CONSUMABLE_CAPACITY,
    GATE_DEVICE_TAINTS,
)
from tensorfusion_dra.core.observed import PublishingView
from tensorfusion_dra.driver import publish
from tensorfusion_dra.driver.pool_follower import PoolFollower, member
from tensorfusion_dra.driver.publish import CatalogBuilder, Publisher, Repairs
from tensorfusion_dra.runtime import loops
from tensorfusion_dra.runtime.loops import Wakeup
from tests.support.builders.devices import NODE
from tests.support.builders.gpupools import gpupool_document
from tests.support.builders.gpus import gpu
from tests.support.logs import capture_logs
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
from tests.support.waiting import PATIENCE_SECONDS, eventually

SLICE = "tensor-fusion-resource-slice-node-01"

XID_79 = CardEvent(gpu_uuid=simulated_inventory("1xT4").gpus[0].uuid, kind=EventKind.XID, code=79)
GATES = frozenset({GATE_CONSUMABLE_CAPACITY})


class Setup:
    """A publisher with its ports; another Setup with the same slices is a restart."""

    def __init__(
        self,
        slices: SlicesInMemory | None = None,
        cards: str = "2xA100-SXM4-80GB",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.discovery = FixedDiscovery(simulated_inventory(cards))
        self.slices = slices or SlicesInMemory()
        self.node = OneNode()
        self.wakeup = Wakeup()
        self.cards = CatalogBuilder(self.discovery, NODE, on_change=self.wakeup.wake)
        self.catalog = self.cards.catalog
        self.lease = LeaseInMemory()
        self.events = EventsInMemory()
        self.publisher = Publisher(
            self.catalog,
            self.slices,
            self.node,
            self.events,
            lease=self.lease,
            repairs=Repairs(clock=clock),
            wakeup=self.wakeup,
        )

    @property
    def view(self) -> PublishingView:
        return self.publisher.view()

    def publish(self) -> None:
        self.cards.refresh()
        self.publisher.publish()

    def is_published(self) -> bool:
        return SLICE in self.slices.items

    @contextmanager
    def running(self) -> Iterator[None]:
        if self.discovery.inventory is not None:
            self.cards.refresh()
        with running(self.publisher.run, stop=self.publisher.stop):
            yield


def test_first_publication_creates_one_slice_that_a_restart_leaves_as_it_is() -> None:
    setup = Setup()
    assert setup.view == PublishingView()

    setup.publish()
    restarted = Setup(setup.slices)
    restarted.publish()
    without_driver = Setup(setup.slices)
    without_driver.discovery.inventory = None
    with suppress(RetryableError):
        without_driver.cards.refresh()
    without_driver.publisher.publish()

    assert setup.slices.writes == [f"create {SLICE}"]
    spec = setup.slices.items[SLICE]["spec"]
    assert spec["pool"] == {"name": "default/node-01", "resourceSliceCount": 1, "generation": 1}
    documented = {value for key, value in vars(names).items() if key.startswith("ATTR_")}
    assert all(device["attributes"].keys() >= documented for device in spec["devices"])
    for view in (setup.view, restarted.view):
        assert (view.generation, view.slices, view.devices) == (1, 1, 2)
        assert view.confirmed_at is not None
    assert setup.view.written_at == setup.view.confirmed_at
    assert restarted.view.written_at is None


def test_recreated_node_object_becomes_the_owner_once_its_slices_are_collected() -> None:
    setup = Setup()
    setup.publish()
    setup.node.current = "node-uid-2"
    setup.slices.items.clear()
    setup.publisher.slices_changed()

    setup.publish()

    assert setup.slices.items[SLICE]["metadata"]["ownerReferences"][0]["uid"] == "node-uid-2"


def test_dropped_fields_are_logged_once_and_a_restart_writes_once() -> None:
    slices = SlicesInMemory(gates_off=GATES)
    for writes in ([f"create {SLICE}"], [f"create {SLICE}", f"replace {SLICE}"]):
        setup = Setup(slices)
        with capture_logs() as logs:
            setup.publish()
            setup.publish()

        assert slices.writes == writes
        reports = [line for line in logs if line["event"] == "slice_fields_dropped"]
        assert [line["feature_gates"] for line in reports] == [["DRAConsumableCapacity"]]
        assert (setup.view.dropped_gates, setup.view.generation) == (tuple(GATES), 1)


def test_gate_that_was_turned_on_is_used_once_the_server_returns() -> None:
    setup = Setup(SlicesInMemory(gates_off=GATES))
    setup.publish()
    setup.slices.gates_off = frozenset()

    setup.publisher.server_returned()
    setup.publish()

    assert setup.slices.writes[1:] == [f"replace {SLICE}"]
    assert setup.slices.items[SLICE]["spec"]["devices"][0]["allowMultipleAllocations"] is True
    assert setup.view.dropped_gates == ()


def test_server_that_returns_with_the_same_gates_off_is_no_repair() -> None:
    setup = Setup(SlicesInMemory(gates_off=frozenset({GATE_DEVICE_TAINTS})))
    setup.publish()
    setup.cards.on_event(XID_79)
    for _ in range(3):
        setup.publisher.server_returned()
        setup.publish()
        setup.publish()

    assert WriteReason.REPAIR not in counted(setup)
    assert setup.events.written == []
    assert setup.view.dropped_gates == (GATE_DEVICE_TAINTS,)


def test_publication_is_retried_until_the_server_answers_and_a_wake_publishes_at_once() -> None:
    setup = Setup()
    setup.slices.away = True
    with setup.running():
        assert eventually(lambda: setup.view.error == "no answer")
        assert not setup.is_published()

        setup.slices.away = False
        assert eventually(setup.is_published)
        assert eventually(lambda: not setup.view.error)

        setup.slices.items.clear()
        setup.wakeup.wake()
        assert eventually(setup.is_published)


def test_nothing_is_read_or_written_while_a_newer_instance_publishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish, "_LEASE_SECONDS", 0.02)
    setup = Setup()
    with capture_logs() as logs, setup.running():
        assert eventually(setup.is_published)
        setup.lease.newer = True
        setup.slices.items.clear()

        setup.wakeup.wake()
        assert not eventually(setup.is_published, seconds=0.3)
        setup.lease.newer = False

        assert eventually(setup.is_published)
    assert [line["event"] for line in logs if line["event"].startswith("publishing")] == [
        "publishing_left_to_newer_instance",
        "publishing_resumed",
    ]
    assert setup.lease.released


def test_lease_is_taken_only_if_there_is_something_to_publish() -> None:
    setup = Setup()
    cards, setup.discovery.inventory = setup.discovery.inventory, None
    setup.slices.away = True
    with setup.running():
        assert not eventually(lambda: setup.lease.taken > 0, seconds=0.2)
        setup.discovery.inventory = cards
        setup.cards.refresh()
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
    setup.cards.refresh()
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


class ContestedSlices(SlicesInMemory):
    """Slices that another writer changes after each publication, under its own manager name."""

    publisher: Publisher

    def _keep(self, verb: str, item: Slice, *, uid: str) -> Slice:
        stored = super()._keep(verb, item, uid=uid)
        changed: Any = copy.deepcopy(dict(stored))
        changed["metadata"]["labels"] = {}
        changed["metadata"]["managedFields"] = [
            {"manager": "tensorfusion-dra", "time": "2026-03-01T00:00:00Z"},
            {"manager": "kubectl\n-edit", "time": "2026-03-01T00:00:01Z"},
        ]
        self.items[SLICE] = changed
        self.publisher.slices_changed()
        return stored


def contested(clock: Callable[[], float]) -> Setup:
    slices = ContestedSlices()
    setup = Setup(slices, clock=clock)
    slices.publisher = setup.publisher
    return setup


def test_changes_of_another_writer_are_undone_once_a_minute_and_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    virtual = VirtualTime(hours=1)
    monkeypatch.setattr(loops, "Event", virtual.event)
    setup = contested(lambda: virtual.seconds)
    setup.cards.refresh()

    with capture_logs() as logs:
        setup.publisher.run()

    assert 60 <= len(setup.slices.writes) <= 3600 / 30 + 10
    (line,) = [line for line in logs if line["event"] == "slices_contested"]
    assert line["writers"] == "kubectl\n-edit"
    ((reason, text),) = setup.events.written
    assert reason == "ResourceSlicesContested"
    assert "found them written by kubectl\n-edit again and again" in text


def test_own_change_is_written_at_once_while_another_writer_interferes() -> None:
    setup = contested(lambda: 1000.0)
    for _ in range(3):
        setup.publish()
    assert len(setup.slices.writes) == 2  # the second repair waits

    setup.discovery.inventory = simulated_inventory("3xA100-SXM4-80GB")
    setup.publish()

    assert len(setup.slices.writes) == 3


def test_slices_unchanged_for_long_are_repaired_at_once_again() -> None:
    setup = Setup(clock=itertools.count(0.0, 700.0).__next__)
    setup.publish()
    for _ in range(3):
        setup.slices.items.clear()
        setup.publish()

    assert len(setup.slices.writes) == 4
    assert setup.events.written == []


def counted(setup: Setup) -> dict[WriteReason, int]:
    """Return the reasons that were counted."""
    return {reason: number for reason, number in setup.view.writes.items() if number}


def published() -> Setup:
    """Return a publisher that has found its slices as it wants them."""
    before = Setup(cards="1xT4")
    before.publish()
    setup = Setup(before.slices, "1xT4")
    setup.publish()
    assert counted(setup) == {}
    return setup


def add_card(setup: Setup) -> None:
    setup.discovery.inventory = simulated_inventory("2xT4")


def report_xid_without_taints(setup: Setup) -> None:
    setup.cards._taint_effect = ""
    setup.cards.on_event(XID_79)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (add_card, WriteReason.DEVICES),
        (lambda setup: setup.cards.on_event(XID_79), WriteReason.HEALTH),
        (report_xid_without_taints, WriteReason.HEALTH),
        (
            lambda setup: setup.cards.set_node(
                replace(NODE, oversubscription=replace(NO_MORE, tflops_percent=150))
            ),
            WriteReason.VALUES,
        ),
        (lambda setup: setup.slices.items.clear(), WriteReason.REPAIR),
    ],
    ids=["card", "health", "health without taints", "pool", "slices"],
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
    setup.cards.on_event(XID_79)
    with monkeypatch.context() as patched:
        patched.setattr(setup.slices, "replace", setup.slices.create)  # which answers 409
        with pytest.raises(RetryableError):
            setup.publish()
    assert counted(setup) == {}
    setup.publish()
    add_card(setup)

    setup.publish()

    assert counted(setup) == {WriteReason.RETRY: 1, WriteReason.DEVICES: 1}


# The GPUPool that the node follows: an unusable one changes nothing

Found = Sequence[Mapping[str, Any]] | InputError | RetryableError
NODE_01 = {"metadata": {"name": "node-01"}}


class Objects:
    """Objects in memory, or the error of reading them."""

    def __init__(self, found: Found) -> None:
        self.found = found

    def items(self) -> Sequence[Mapping[str, Any]]:
        if isinstance(self.found, Sequence):
            return self.found
        raise self.found


class Following:
    """A follower of the pool `prod`, or of the pool that selects the node.

    Attributes:
        pools, nodes: Objects, or the error of reading them.
    """

    def __init__(
        self, *pools: Mapping[str, Any], by_name: bool = True, expands_memory: bool = True
    ) -> None:
        self.pools: Found = pools
        self.nodes: Found = [NODE_01]
        self.events = EventsInMemory()
        self.served = 0
        discovery = FixedDiscovery(Inventory(gpus=(gpu(),)))
        self.cards = CatalogBuilder(discovery, None, on_change=self._count_served)
        self.catalog = self.cards.catalog
        self.cards.refresh()
        self.wakeup = Wakeup()
        pool_name = "prod" if by_name else ""
        self.follower = PoolFollower(
            lambda: member(
                Objects(self.pools), Objects(self.nodes), pool_name=pool_name, node_name="node-01"
            ),
            self.cards,
            self.events,
            expands_memory=expands_memory,
            wakeup=self.wakeup,
        )

    def _count_served(self) -> None:
        self.served += 1

    def follow(self, pools: Found | None = None) -> list[Any]:
        """Follow these pools, or the ones of before; return the lines that were logged."""
        if pools is not None:
            self.pools = pools
        with capture_logs() as logs:
            self.follower.follow()
        return list(logs)

    def qos(self) -> str | None:
        current = self.catalog.current()
        return str(current.devices[0].attributes["qos"]) if current else None

    def isolation(self) -> str | None:
        current = self.catalog.current()
        return current.node.isolation if current else None


def pool_with_qos(qos: str = "high", name: str = "prod", **spec: Any) -> dict[str, Any]:
    return gpupool_document(name, qosConfig={"defaultQoS": qos}, **spec)


def test_no_catalog_exists_before_the_pool_is_known() -> None:
    setup = Following()

    setup.follow(RetryableError("gpupools: not listed yet"))

    assert setup.catalog.current() is None
    assert setup.catalog.reason_missing == (
        "this node's GPUPool is not known yet: gpupools: not listed yet"
    )
    assert setup.events.written == []


def test_unchanged_pool_has_no_effect() -> None:
    setup = Following(pool_with_qos())
    setup.follow()

    setup.follow([{**pool_with_qos(), "status": {"phase": "Running"}}])

    assert setup.served == 1


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ((), "GPUPool prod: found none of this name"),
        ((pool_with_qos("gold"),), "GPUPool prod: spec.qosConfig.defaultQoS: found 'gold'"),
        (InputError("gpupools: no such resource"), "gpupools: no such resource"),
    ],
)
def test_unusable_pool_keeps_the_last_good_values_with_one_log_line_and_event(
    found: Found, problem: str
) -> None:
    setup = Following(pool_with_qos())
    setup.follow()

    logs = setup.follow(found) + setup.follow(found)

    assert (setup.qos(), setup.served) == ("high", 1)
    setup.follower.check()  # the instance stays ready
    ((reason, message),) = setup.events.written
    assert reason == "GPUPoolInvalid"
    assert message.startswith(problem)
    assert message.endswith("; the node's GPUs stay published as before")
    (line,) = logs
    assert line["event"] == "gpupool_unusable"
    assert line["error"].startswith(problem)


def test_event_states_that_nothing_is_published_before_the_first_usable_pool() -> None:
    setup = Following()

    (line,) = setup.follow()

    assert line["event"] == "gpupool_awaited"
    ((_, message),) = setup.events.written
    assert message.endswith("; no GPU of this node is published until this is corrected")
    assert gpupool.REMEDY in message
    assert gpupool.REMEDY in setup.catalog.reason_missing


def test_loop_follows_the_pool_at_every_wake_until_it_is_stopped() -> None:
    setup, seen = Following(), None
    with running(setup.follower.run, stop=setup.follower.stop):
        for qos in ("high", "low"):
            setup.pools = [pool_with_qos(qos)]
            setup.wakeup.wake()
            seen = setup.catalog.wait_changed(seen, seconds=PATIENCE_SECONDS, stopped=lambda: False)
            assert setup.qos() == qos


@pytest.mark.parametrize(
    ("expansion", "is_refused"),
    [
        ({"vramExpandToHostMem": 50}, True),
        ({"vramExpandToHostDisk": 50}, True),
        ({}, False),  # oversubscribes only compute
    ],
)
def test_pool_that_expands_memory_is_refused_if_the_enforcer_cannot_expand_it(
    expansion: dict[str, int], is_refused: bool
) -> None:
    none = {"tflopsOversellRatio": 200, "vramExpandToHostMem": 0, "vramExpandToHostDisk": 0}
    ratios = none | expansion
    setup = Following(
        pool_with_qos(capacityConfig={"oversubscription": ratios}), expands_memory=False
    )

    setup.follow()

    assert (setup.catalog.current() is None) is is_refused
    texts = [message for _, message in setup.events.written]
    found = f"found vramExpandToHostMem {ratios['vramExpandToHostMem']} and"
    assert [found in text for text in texts] == [True] * is_refused
    assert all("expected 0 for both: this node's enforcer" in text for text in texts)


def test_pools_rules_use_the_current_labels_of_the_node() -> None:
    rule = {"mode": "hard", "selector": {"matchLabels": {"workload": "batch"}}}
    config = {"defaultIsolationMode": "soft", "isolationModeRules": [rule]}
    setup = Following(pool_with_qos(nodeManagerConfig=config))
    modes = []
    for labels in ({}, {"workload": "batch"}):
        setup.nodes = [{"metadata": {"name": "node-01", "labels": labels}}]
        setup.follow()
        modes.append(setup.isolation())

    assert modes == ["soft", "hard"]


SELECTS_OTHERS = {
    "nodeSelectorTerms": [{"matchExpressions": [{"key": "tier", "operator": "Exists"}]}]
}

MALFORMED = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "tier", "operator": "exists"}]}]}

NO_CRDS = InputError("gpupools: no such resource")


@pytest.mark.parametrize(
    ("by_name", "found", "is_ready"),
    [
        (True, RetryableError("gpupools: not listed yet"), False),
        (True, NO_CRDS, False),
        (True, [], False),
        (True, [pool_with_qos(name="other")], False),
        (True, [pool_with_qos("gold")], False),
        (True, [pool_with_qos()], True),
        (False, NO_CRDS, False),
        (False, [], False),
        (False, [pool_with_qos(nodeManagerConfig={"nodeSelector": MALFORMED})], False),
        # Perhaps on purpose: other nodes of the DaemonSet are in the pool.
        (False, [pool_with_qos(nodeManagerConfig={"nodeSelector": SELECTS_OTHERS})], True),
    ],
)
def test_instance_is_ready_once_its_pool_is_known_or_it_is_outside_of_all_pools(
    by_name: bool, found: Found, is_ready: bool
) -> None:
    setup = Following(by_name=by_name)
    with pytest.raises(RetryableError, match="waits for a GPUPool: none was read yet"):
        setup.follower.check()

    setup.follow(found)

    waiting = pytest.raises(RetryableError, match=r"waits for a GPUPool: .*(GPUPool|gpupools)")
    with nullcontext() if is_ready else waiting:
        setup.follower.check()
