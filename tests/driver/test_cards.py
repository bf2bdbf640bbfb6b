"""The node's cards: readings and events, remembered health, other users, and announcements."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dra_simulator import allocation_results
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.capacity import NO_MORE
from tensorfusion_dra.core.devices.device import Node as NodeFacts
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import (
    CardEvent,
    EventKind,
    HealthProblem,
    Moment,
    ProblemKind,
    Unhealthy,
)
from tensorfusion_dra.core.devices.other_users import KubeletDevices
from tensorfusion_dra.core.errors import FatalError, HungError, RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver import driver_replacement, publish
from tensorfusion_dra.driver.card_health import CardHealthTracker
from tensorfusion_dra.driver.driver_replacement import DriverReplacement
from tensorfusion_dra.driver.providers import ProviderKind, Providers
from tensorfusion_dra.driver.publish import Catalog, CatalogBuilder, OtherUsersReader, ReadingLoop
from tensorfusion_dra.extend import Gpu, Problem
from tensorfusion_dra.runtime.loops import Wakeup
from tensorfusion_dra.scheduling import allocation
from tensorfusion_dra.scheduling.allocation import NoFitError
from tensorfusion_dra.state.saved_state import CARDS, SavedState
from tests.support.builders.devices import NODE
from tests.support.builders.documents import class_document
from tests.support.builders.gpus import gpus
from tests.support.builders.reported_claims import reported_claim, reported_share
from tests.support.builders.stored_claims import stored_claim
from tests.support.logs import capture_logs
from tests.support.ports import EventsInMemory, FixedDiscovery
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    RecordingReporter,
    Setup,
    put_claim,
    share_result,
    simulated_inventory,
)
from tests.support.third_party import registered
from tests.support.threads import running
from tests.support.waiting import FOREVER, eventually

A, B = gpus(2)
DEVICES = [gpu.uuid.lower() for gpu in (A, B)]


def xid(code: int, uuid: str | None = A.uuid) -> CardEvent:
    return CardEvent(gpu_uuid=uuid, kind=EventKind.XID, code=code)


class Fans:
    """Health source whose problems a test sets."""

    def __init__(self) -> None:
        self.stopped: set[str] = set()
        self.answer: Any = None
        self.wake: Callable[[], None] | None = None

    def listen(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def __call__(self, gpu: Gpu) -> Sequence[Problem]:
        if self.answer is not None:
            return self.answer  # type: ignore[no-any-return]
        fan = Problem(reason="fan-stopped", text="fan 2 stands still")
        return [fan] if gpu.uuid in self.stopped else []


class EventSource:
    """Source of events, which a test passes to the catalog itself."""

    def __init__(self) -> None:
        self.watched: frozenset[str] = frozenset()
        self.is_stopped = False

    def watch(self, gpu_uuids: frozenset[str]) -> None:
        self.watched = gpu_uuids

    def run(self, on_event: Callable[[CardEvent], None]) -> None:
        raise AssertionError(on_event)

    def stop(self) -> None:
        self.is_stopped = True


class Node:
    """A node whose cards are read from this object; restarted() has the same record.

    Attributes:
        error: Raised by each reading.
        disk_gib: Size of the host's disk; None if it cannot be read.
        claimed: The device with a prepared claim, `?` if the store is locked, or empty.
    """

    def __init__(
        self, folder: Path, *, node: NodeFacts = NODE, disk_gib: int | None = None
    ) -> None:
        self.folder = folder
        self.cards: tuple[Gpu, ...] = (A, B)
        self.error: Exception | None = None
        self.disk_gib = disk_gib
        self.claimed = ""
        self.seconds, self.reads, self.changes = 0.0, 0, 0
        self.fans, self.events = Fans(), EventSource()
        self.tracker = CardHealthTracker(
            records=SavedState(folder, CARDS), claims=self.claims, clock=self.now
        )
        wakeup = Wakeup()
        self.builder = CatalogBuilder(
            self,
            node,
            host=self,
            providers=Providers(
                [registered(self.fans, "fans", ProviderKind.HEALTH)],
                budget_seconds=FOREVER,
                wake=wakeup.wake,
            ),
            tracker=self.tracker,
            on_change=self._changed,
            read_soon=wakeup.wake,
        )
        self.catalog = self.builder.catalog
        self.loop = ReadingLoop(
            self.builder, poll_seconds=FOREVER, wakeup=wakeup, events=self.events
        )

    def _changed(self) -> None:
        self.changes += 1

    def read(self) -> Inventory:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return Inventory(gpus=self.cards)

    def memory_bytes(self) -> int:
        raise AssertionError

    def disk_bytes(self) -> int:
        if self.disk_gib is None:
            raise RetryableError("disk: No such file or directory")
        return self.disk_gib * GIB

    def now(self) -> Moment:
        return Moment(self.seconds, datetime(2026, 3, 1, tzinfo=UTC))

    def claims(self) -> list[PreparedClaim]:
        if self.claimed == "?":
            raise RetryableError("store: locked")
        return [reported_claim("a", reported_share(device=self.claimed))] if self.claimed else []

    def restarted(self) -> "Node":
        return Node(self.folder)

    def visible(self) -> tuple[Gpu, ...]:
        """Return the cards to publish; none as long as too little is known."""
        found = self.tracker.visible()
        return found.inventory.gpus if found else ()

    def current(self) -> Catalog:
        found = self.catalog.current()
        assert found is not None
        return found

    def reasons(self) -> dict[str, str]:
        return {name: each.worst.reason for name, each in self.catalog.unhealthy().items()}

    def reasons_after(self, seconds: float) -> dict[str, str]:
        """Read the cards again after this time."""
        self.seconds += seconds
        self.builder.refresh()
        return self.reasons()

    @contextmanager
    def running(self) -> Iterator[None]:
        with running(self.loop.run, stop=self.loop.stop):
            assert eventually(lambda: self.changes == 1)
            yield
        assert self.events.is_stopped


@pytest.fixture
def fresh(tmp_path: Path) -> Node:
    """A node whose cards were not read yet."""
    return Node(tmp_path)


@pytest.fixture
def node(fresh: Node) -> Node:
    """A node whose cards were read once."""
    fresh.builder.refresh()
    return fresh


def test_repeated_error_is_recorded_and_logged_once(node: Node) -> None:
    with capture_logs() as logs:
        node.builder.on_event(xid(79))
        recorded = (node.folder / CARDS).stat()
        for _ in range(4):
            node.builder.on_event(xid(79))

    assert [line["event"] for line in logs].count("card_event") == 1
    assert (node.folder / CARDS).stat().st_ino == recorded.st_ino
    assert node.restarted().reasons_after(0) == node.reasons() == {DEVICES[0]: "xid-79"}


@pytest.mark.parametrize(
    "event",
    [CardEvent(gpu_uuid=None, kind=EventKind.UNAVAILABLE), xid(79, "GPU-unknown"), xid(13)],
)
def test_event_that_affects_no_known_card_changes_nothing(node: Node, event: CardEvent) -> None:
    assert not node.tracker.on_event(event)
    node.builder.on_event(event)

    assert (node.reasons(), node.changes) == ({}, 1)


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ([RetryableError("no driver")] * 2, "unreadable"),
        ([HungError(f"asked {age} s ago", "uuid of GPU 1") for age in range(2)], "nvml-hung"),
    ],
)
def test_cards_are_visible_as_recorded_after_a_restart_without_a_driver(
    node: Node, errors: list[Exception], reason: str
) -> None:
    after, seen = node.restarted(), []
    with capture_logs() as logs:
        for error in errors:
            after.error = error
            after.loop.read()
            seen.append(after.visible())

    assert seen == [(), (A, B)]
    assert after.reasons() == dict.fromkeys(DEVICES, reason)
    assert [line["event"] for line in logs].count("gpus_awaited") == 1


def test_locked_ledger_hides_no_card(node: Node) -> None:
    node.claimed, node.cards = DEVICES[0], (B,)
    node.builder.refresh()
    assert node.visible() == (A, B)

    node.claimed = "?"

    assert node.visible() == (A, B)


def test_record_that_cannot_be_written_affects_nothing_else(tmp_path: Path) -> None:
    node = Node(tmp_path / "state")
    node.folder.touch()
    with capture_logs() as logs:
        node.builder.refresh()
    node.folder.unlink()

    node.builder.refresh()

    assert [line["event"] for line in logs].count("card_record_write_failed") == 1
    assert (node.folder / CARDS).exists()


def test_unusable_record_is_ignored_with_a_log_line(tmp_path: Path) -> None:
    (tmp_path / CARDS).write_text('{"version": 9}')
    with capture_logs() as logs:
        node = Node(tmp_path)
    node.builder.refresh()

    assert [line["event"] for line in logs] == ["card_record_unusable"]
    assert node.visible() == (A, B)


@pytest.mark.parametrize(
    ("before_gib", "now_gib", "virtual_vram", "errors"),
    [
        pytest.param(None, None, "80Gi", ("disk: No such file or directory",), id="unknown"),
        pytest.param(None, 100, "105Gi", (), id="appears"),
        pytest.param(100, None, "105Gi", ("disk: No such file or directory",), id="unreadable now"),
    ],
)
def test_disk_expands_memory_by_its_last_known_size(
    tmp_path: Path,
    before_gib: int | None,
    now_gib: int | None,
    virtual_vram: str,
    errors: tuple[str, ...],
) -> None:
    to_disk = replace(NODE, oversubscription=replace(NO_MORE, host_disk_percent=50))
    node = Node(tmp_path, node=to_disk, disk_gib=before_gib)

    with capture_logs() as logs:
        node.builder.refresh()
        node.disk_gib = now_gib
        node.builder.refresh()

    (device, _) = node.current().devices
    assert device.capacity["virtual_vram"].as_api()["value"] == virtual_vram
    assert node.current().host_size_errors == errors
    assert node.changes == (1 if before_gib == now_gib else 2)
    assert [line["event"] for line in logs].count("expansion_size_unknown") == 1


OVERSUBSCRIBING = replace(NODE, oversubscription=replace(NO_MORE, tflops_percent=150))


def scheduled(setup: Setup, name: str, **amounts: str) -> ClaimRef:
    """Store a claim that got what the node's slices and the other claims leave.

    Raises:
        NoFitError: They leave too little.
    """
    catalog = setup.catalog.current()
    assert catalog is not None
    plan = slices.plan(slices.wanted(catalog.devices, catalog.node, node_uid="uid"), [])
    claim = stored_claim(name)
    request = {"deviceClassName": "tensor-fusion.ai", "capacity": {"requests": amounts}}
    claim["spec"]["devices"]["requests"] = [{"name": "gpu", "exactly": request}]
    del claim["status"]
    cluster = allocation.cluster(
        slices=plan.create,
        classes=[class_document()],
        claims=[*setup.claims.stored.values(), claim],
    )
    node = {"metadata": {"name": NODE.name}}
    (found,) = allocation_results.allocate([claim], cluster, node)
    return put_claim(setup, name, *found["devices"]["results"])


@pytest.mark.parametrize(
    ("before", "now", "prefix"),
    [(NODE, OVERSUBSCRIBING, ""), (OVERSUBSCRIBING, NODE, "virtual_")],
    ids=["on", "off"],
)
def test_card_keeps_its_kind_of_amounts_until_its_last_share_ends(
    setup: Setup, before: NodeFacts, now: NodeFacts, prefix: str
) -> None:
    """The scheduler adds up each capacity by itself, so it would take the card for empty."""

    def use(node: NodeFacts) -> None:
        cards = CatalogBuilder(setup.discovery, node, records=setup.store.claims)
        cards.refresh()
        setup.use(cards=cards)

    def kinds() -> list[bool]:
        setup.cards.refresh()
        catalog = setup.catalog.current()
        assert catalog is not None
        return ["virtual_vram" in device.capacity for device in catalog.devices]

    use(before)
    first = scheduled(setup, "first", **{f"{prefix}tflops": "100", f"{prefix}vram": "16Gi"})
    setup.prepared(first)

    use(now)
    assert kinds() == [before is OVERSUBSCRIBING, now is OVERSUBSCRIBING]
    rest = {f"{prefix}tflops": "212", f"{prefix}vram": "64Gi"}
    others = [scheduled(setup, "whole"), scheduled(setup, "rest", **rest)]
    with pytest.raises(NoFitError):
        scheduled(setup, "whole again")
    for ref in others:
        setup.prepared(ref)
    setup.unprepare(first, *others)

    assert kinds() == [now is OVERSUBSCRIBING] * 2


def test_reported_error_takes_effect_at_once_and_the_cards_are_read_again(fresh: Node) -> None:
    with fresh.running():
        fresh.builder.on_event(xid(79))

        assert fresh.changes == 2
        assert list(fresh.reasons()) == DEVICES[:1]
        assert eventually(lambda: fresh.reads == 2)
        assert eventually(lambda: fresh.events.watched == {B.uuid})


def test_many_reports_cause_one_reading_per_shortest_interval(
    fresh: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "_MIN_READING_SECONDS", FOREVER)
    with fresh.running():
        for _ in range(10_000):
            fresh.builder.on_event(xid(13))

        assert (fresh.reads, fresh.changes) == (1, 1)


def test_replaced_driver_ends_the_loop(fresh: Node) -> None:
    fresh.error = FatalError("replaced")

    with pytest.raises(FatalError, match="replaced"):
        fresh.loop.run()


def test_problem_of_a_health_source_makes_its_card_unhealthy_with_a_taint(node: Node) -> None:
    node.fans.stopped = {A.uuid}

    assert node.reasons_after(0) == {DEVICES[0]: "fan-stopped"}

    sick, well = node.current().devices
    assert [(each.key, each.value) for each in sick.taints] == [
        (names.TAINT_UNHEALTHY, "fan-stopped")
    ]
    assert sick.attributes["phase"] == "Unknown"
    assert node.current().unhealthy[sick.name].worst.text == "fans: fan 2 stands still"
    assert well.taints == ()


def test_failing_source_does_not_heal_what_it_reported_before_a_restart(node: Node) -> None:
    """The last good answers are in memory only; the card's record is on disk."""
    node.fans.stopped = {A.uuid}
    sick = node.reasons_after(0)
    after = node.restarted()
    after.fans.answer = 7

    failing = [after.reasons_after(100) for _ in range(5)]
    after.fans.answer = None

    assert (failing, [after.reasons_after(100) for _ in range(3)]) == ([sick] * 5, [sick, sick, {}])


def test_source_that_learns_of_a_change_has_the_cards_read_at_once(fresh: Node) -> None:
    with fresh.running():
        assert fresh.fans.wake is not None
        fresh.fans.stopped = {A.uuid}

        fresh.fans.wake()

        assert eventually(lambda: list(fresh.reasons()) == DEVICES[:1])


# Cards that a device plugin or another DRA driver gives to containers as well

UUID = simulated_inventory().gpus[0].uuid
DEVICE = frozenset({("nvidia.com/gpu", UUID)})
BY_PLUGIN = KubeletDevices(offered=DEVICE, held=DEVICE)
SLICE: dict[str, Any] = {
    "spec": {
        "driver": "gpu.nvidia.com",
        "pool": {"name": "p"},
        "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": UUID}}}],
    }
}


class Beside(Setup):
    """A node whose kubelet is asked who holds its cards.

    Attributes:
        answer: The kubelet's; None if it does not answer.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.answer: KubeletDevices | None = KubeletDevices()
        self.asked, self.changes = 0, 0
        self.wakeup = Wakeup()
        others = OtherUsersReader(self.allocations)
        self.use(
            other_users=others,
            cards=CatalogBuilder(
                FixedDiscovery(simulated_inventory()),
                NODE,
                other_users=others,
                on_change=self._changed,
                read_soon=self.wakeup.wake,
            ),
        )
        self.set_answer(self.answer)

    def allocations(self) -> KubeletDevices:
        self.asked += 1
        if self.answer is None:
            raise RetryableError("kubelet.sock: no answer")
        return self.answer

    def _changed(self) -> None:
        self.changes += 1

    def set_answer(self, answer: KubeletDevices | None) -> None:
        self.answer = answer
        self.cards.refresh()

    def put(self, name: str, device: str = GPU_0) -> Any:
        return put_claim(self, name, share_result(device))

    def shown(self, name: str = GPU_0) -> tuple[object, ...]:
        """Return `used_by` and the taints."""
        catalog = self.catalog.current()
        assert catalog is not None
        device = catalog.by_name()[name]
        taints = (f"{each.key}={each.value}:{each.effect}" for each in device.taints)
        return device.attributes["used_by"], *taints


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    return Beside(tmp_path)


PLUGIN = ("nvidia-device-plugin", "tensor-fusion.ai/used-by=nvidia-device-plugin:NoSchedule")


def test_card_of_the_device_plugin_is_tainted_until_plugin_and_container_are_gone(
    beside: Beside,
) -> None:
    beside.set_answer(KubeletDevices(offered=DEVICE))
    assert (beside.shown(), beside.shown(GPU_1)) == (PLUGIN, ("",))
    changes = beside.changes
    beside.set_answer(KubeletDevices(held=DEVICE))
    assert beside.changes == changes

    beside.set_answer(KubeletDevices())

    assert beside.shown() == ("",)


def test_card_that_another_dra_driver_publishes_is_tainted_at_once(beside: Beside) -> None:
    beside.cards.set_other_slices([SLICE])
    woken = beside.wakeup.wait(0)
    beside.wakeup.next_round()
    beside.cards.refresh()
    beside.cards.set_other_slices([{**SLICE}])

    assert (woken, beside.wakeup.wait(0)) == (True, False)
    taint = "tensor-fusion.ai/used-by=gpu.nvidia.com:NoSchedule"
    assert beside.shown() == ("gpu.nvidia.com", taint)


def test_as_long_as_the_kubelet_does_not_answer_its_last_answer_counts(beside: Beside) -> None:
    beside.set_answer(BY_PLUGIN)

    with capture_logs() as logs:
        beside.set_answer(None)
        beside.set_answer(None)

    assert beside.shown() == PLUGIN
    assert [each["event"] for each in logs] == ["allocations_unknown"]


def test_claim_on_a_card_that_another_container_got_since_the_last_reading_waits(
    beside: Beside,
) -> None:
    held, free = beside.put("held"), beside.put("free", GPU_1)
    beside.set_answer(KubeletDevices(offered=DEVICE))
    beside.answer = BY_PLUGIN

    assert beside.refused(held) == (
        f"claim {held}: {GPU_0}: found a container that has this GPU from nvidia-device-plugin, "
        "expected only claims of this driver"
    )
    beside.prepared(free)
    beside.answer = KubeletDevices()
    beside.prepared(held)


def test_prepare_asks_the_kubelet_only_beside_something_else_that_gives_cards(
    beside: Beside,
) -> None:
    device = {"name": "eth-0", "attributes": {"resource.kubernetes.io/pciBusID": {"string": "a"}}}
    network = {"spec": {"driver": "net.example.com", "pool": {"name": "p"}, "devices": [device]}}
    asked = [beside.asked]
    for name, others in (("alone", [network]), ("beside", [network, SLICE])):
        beside.cards.set_other_slices(others)
        beside.prepared(beside.put(name))
        asked.append(beside.asked)

    assert asked == [1, 1, 2]


def test_prepared_claim_a_published_card_and_a_monitor_are_not_refused(beside: Beside) -> None:
    before = beside.put("before")
    beside.prepared(before)
    beside.cards.set_other_slices([SLICE])
    published = beside.put("published")
    beside.prepared(published)
    beside.answer = BY_PLUGIN
    monitor = put_claim(beside, "monitor", {**share_result(GPU_0), "adminAccess": True})
    refs = (before, published, monitor)

    answered = [beside.prepared(ref) for ref in refs]

    assert [beside.record(ref) for ref in refs] == answered
    assert all(beside.spec_of(ref)["devices"] for ref in refs)


# Events and claim statuses when a card becomes unhealthy or recovers

LOST = HealthProblem(kind=ProblemKind.LOST, reason="lost", text="the GPU is lost")
NOW = Unhealthy(worst=LOST, since=datetime.now(UTC) + timedelta(hours=1))


class Announced:
    """A node's announcer, which announces each change at once."""

    def __init__(self, folder: Path) -> None:
        self.node = Setup(folder)
        self.events = EventsInMemory()
        self.reports = RecordingReporter()
        self.follower = self.node.follower(self.reports, self.events)
        for name, device in (("on-card", GPU_0), ("on-other-card", GPU_1)):
            self.node.prepared(put_claim(self.node, name, share_result(device)))

    def change(self, before: dict[str, Unhealthy], now: dict[str, Unhealthy]) -> None:
        self.follower.note(before, now)
        self.announce()

    def announce(self) -> None:
        """Announce what is due, as far as it can be."""
        with suppress(RetryableError):
            self.follower.report()
        self.follower.announce()


@pytest.fixture
def announced(tmp_path: Path) -> Announced:
    return Announced(tmp_path)


def test_worse_reason_is_reported_again_and_the_same_one_is_not(announced: Announced) -> None:
    before = replace(NOW, worst=HealthProblem(kind=ProblemKind.XID, reason="xid-79", text="XID 79"))

    announced.change({GPU_0: before}, {GPU_0: before})
    announced.change({GPU_0: before}, {GPU_0: NOW})

    assert announced.events.written == [("GPUUnhealthy", f"{GPU_0}: the GPU is lost")]


def test_what_an_earlier_process_found_has_no_event_but_its_claims_are_reported(
    announced: Announced,
) -> None:
    announced.change({}, {GPU_0: replace(NOW, since=datetime(2020, 1, 1, tzinfo=UTC))})

    assert (announced.events.written, announced.reports.changed) == ([], ["on-card"])


def test_only_the_last_state_of_each_card_is_announced_after_an_outage(
    announced: Announced,
) -> None:
    announced.events.away = True
    announced.change({}, {GPU_0: NOW})
    announced.change({GPU_0: NOW}, {})
    announced.change({}, {GPU_1: NOW})

    announced.events.away = False
    announced.announce()
    announced.announce()

    assert announced.events.written == [("GPUUnhealthy", f"{GPU_1}: the GPU is lost")]
    assert announced.events.noted == [("GPURecovered", f"{GPU_0} is healthy again")]


def test_claims_are_reported_once_the_ledger_is_readable_again(
    announced: Announced, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable() -> None:
        raise RetryableError("store: disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(announced.node.store, "claims", unreadable)
        announced.change({}, {GPU_0: NOW})
        assert announced.reports.changed == []

    announced.announce()
    announced.announce()

    assert announced.reports.changed == ["on-card"]


def test_changes_are_announced_until_the_loop_is_stopped(announced: Announced) -> None:
    with running(announced.follower.run, stop=announced.follower.stop):
        announced.node.cards.on_event(xid(79, UUID))

        assert eventually(lambda: announced.reports.changed == ["on-card"])

    assert [reason for reason, _ in announced.events.written] == ["GPUUnhealthy"]


# Which labels of a Node say that its NVIDIA driver is being replaced, and until when it is

STATE = "nvidia.com/gpu-driver-upgrade-state"
BY_HAND = "tensor-fusion.ai/replace-driver"


@pytest.mark.parametrize(
    ("labels", "is_replaced"),
    [
        ({}, False),
        *(
            ({STATE: state}, is_replaced)
            for state, is_replaced in {
                "upgrade-required": False,
                "cordon-required": False,
                "wait-for-jobs-required": False,
                "pod-deletion-required": True,
                "drain-required": True,
                "pod-restart-required": True,
                "upgrade-failed": True,
                "validation-required": False,
                "uncordon-required": False,
                "upgrade-done": False,
            }.items()
        ),
        ({"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"}, False),
        ({BY_HAND: ""}, True),
        ({BY_HAND: "true"}, True),
        ({BY_HAND: "false"}, False),
        ({BY_HAND: "true", STATE: "upgrade-done"}, True),
    ],
)
def test_driver_is_replaced_from_the_deletion_of_pods_until_it_is_loaded(
    labels: dict[str, str], is_replaced: bool
) -> None:
    found = driver_replacement.replacing_label(labels)

    assert bool(found) is is_replaced
    assert not found or found in {f"{key}={value}" for key, value in labels.items()}


def test_replacement_outlives_the_process_and_ends_with_a_reading_without_the_label(
    tmp_path: Path,
) -> None:
    marker = tmp_path / "run" / "driver-replacement"

    def started() -> DriverReplacement:
        return DriverReplacement(marker, list, is_followed=True)

    started().follow({BY_HAND: "true"})
    again = started()
    again.end()
    during = again.unhealthy
    again.follow({})
    again.end()

    assert during is not None
    assert (again.unhealthy, started().unhealthy) == (None, None)
