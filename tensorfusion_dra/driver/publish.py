"""From the node's cards to its stored ResourceSlices.

A reader follows two loops, each in a thread of its own, because a reading can hang, and a write
waits for the API server:

1. ReadingLoop has the cards read: periodically, at once after an event of the NVIDIA driver, and
   when a provider, a label of the Node or another driver's slice wakes it. CatalogBuilder reads
   them, asks the health sources of other packages and the kubelet (who else gives the cards away),
   lets the rules of health decide (card_health.py), builds the device of each card
   (core/devices/device.py), and adds what other packages give (providers.py). The result is the
   catalog, which DeviceCatalog has for all threads.
2. Publisher compares the slices that follow from the catalog with the stored ones, and writes the
   difference (core/devices/slices.py chooses the writes).

The catalog. There is none until both the cards and the node's pool (pool_follower.py) are known.
From then on there always is one. It is replaced as a whole, and only if the new one differs, so an
unchanged object means that nothing changed. A new one wakes the publisher, the health streams and
the catalog follower (limits, statuses, Events); calls of the kubelet use the present one.

A card that cannot be a device is left out with a reason (discovery/recording.py), since the API
server would refuse the whole slice. A provider that fails costs only what it gives.

The writes. If there is no difference, nothing is written. The stored slices are known from a watch
and from the answers to own writes, and the Node's UID is kept. So most rounds send no request but
their writes. A round begins when

- the catalog changed,
- another writer changed or deleted a slice (slices_changed()),
- the watch has begun again, perhaps at another server (server_returned()),
- a delay is over: after an error, or before a repair.

Four rules restrict the writes:

- **The lease.** During a rolling update two instances share the node, and the newest that is able
  to publish holds the lease (state/publisher_lease.py). An instance without it skips its rounds.
  Once a second it checks whether it has the lease again; then it compares all slices.
- **The pace of repairs.** If the wanted slices have not changed since they were last stored, a
  difference is the work of another writer, and writing it is a repair. The first repair is made at
  once, further ones with growing delays (Repairs).
- **Partitions.** Without their taint, any claim would get a partition of a card in MIG mode. So
  before the first one is published, a dry run shows whether the server keeps taints. Where it does
  not, partitions are left out.
- **Dropped fields.** An API server with a feature gate off drops the gate's fields from what it
  stores. The answer to a write shows which; from then on the missing fields count as no difference.
  After a restart, and at another server, slices that lack such fields are written once to find
  out. At a server that drops the same fields again, only their metadata.generation changes.

Example: XID 79 on the first card makes a new catalog, in which its device is unhealthy and has a
taint; the publisher replaces its slice. A reading that finds no change makes no catalog, and no
round. Then the kubelet restarts and deletes the slices. The watch reports it, and the slices are
created again at once. Then a script changes a slice every few seconds. Its changes are repaired
too, at intervals that grow to a minute, and an Event on the Node names the script's field manager.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Condition, Event, Lock
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import prepared
from tensorfusion_dra.core.claims.ports import (
    CardEvents,
    Discovery,
    Events,
    HostSizes,
    Nodes,
    Slices,
)
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices import device as device_facts
from tensorfusion_dra.core.devices import other_users, slices
from tensorfusion_dra.core.devices.device import (
    NO_SCHEDULE,
    Device,
    Enforcement,
    Node,
    Reading,
    Taint,
)
from tensorfusion_dra.core.devices.gpu import (
    Gpu,
    HostResources,
    LeftOut,
    TflopsSource,
    device_name,
)
from tensorfusion_dra.core.devices.health import CardEvent, Unhealthy
from tensorfusion_dra.core.devices.other_users import KubeletDevices, OtherUser
from tensorfusion_dra.core.devices.slices import Slice, SlicePlan, WriteReason
from tensorfusion_dra.core.errors import HungError, MissingPermissionError, RetryableError
from tensorfusion_dra.core.kubernetes.device_rules import GATE_DEVICE_TAINTS
from tensorfusion_dra.core.observed import PublishingView, XidCounts
from tensorfusion_dra.driver.card_health import CardHealthTracker
from tensorfusion_dra.driver.providers import Providers
from tensorfusion_dra.runtime.loops import Backoff, LogThrottle, Wakeup
from tensorfusion_dra.state.publisher_lease import PublisherLease

log = structlog.get_logger()

_MIN_READING_SECONDS: Final = 1.0
"""Least time between two readings, however many events are reported."""
_MAX_REPAIR_SECONDS: Final = 60.0
_QUIET_SECONDS: Final = 600.0
_LEASE_SECONDS: Final = 1.0
"""Interval at which an instance without the lease checks whether it has it again."""
_NOT_PERMITTED_SECONDS: Final = 60.0
"""Least delay after a refusal by RBAC, which lasts until an administrator grants the permission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The node's devices at one moment.

    Attributes:
        left_out: Cards that are not published, with the reason.
        unhealthy: By device name; includes devices that are no longer published.
        absent: Names of devices whose card the last reading did not find or found lost, published
            or not.
        host_size_errors: One text for each size of the host that the pool needs and that cannot be
            read, so that virtual VRAM lacks that part; empty if there is none.
    """

    node: Node
    devices: tuple[Device, ...]
    left_out: tuple[LeftOut, ...] = ()
    unhealthy: Mapping[str, Unhealthy] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    host_size_errors: tuple[str, ...] = ()

    def by_name(self) -> Mapping[str, Device]:
        """Return the devices by name."""
        return {device.name: device for device in self.devices}


class DeviceCatalog:
    """The present catalog, and waits for another one; safe for all threads.

    Attributes:
        reason_missing: Why there is no catalog yet, for error texts.
    """

    def __init__(self, *, on_change: Callable[[], None] = lambda: None) -> None:
        """Args:
        on_change: Called, from any thread, when the catalog has changed.
        """
        self.reason_missing = "this node's GPUs could not be read yet"
        self._on_change = on_change
        self._changed = Condition()  # guards _current
        self._current: Catalog | None = None

    def current(self) -> Catalog | None:
        """Return the present catalog; None if there is none yet."""
        with self._changed:
            return self._current

    def replace(self, catalog: Catalog) -> None:
        """Make this the present catalog, unless it equals that; one thread at a time calls this."""
        if catalog == self._current:
            return
        _log_change(catalog, self._current)
        with self._changed:
            self._current = catalog
            self._changed.notify_all()
        self._on_change()

    def unhealthy(self) -> Mapping[str, Unhealthy]:
        """Return the unhealthy devices by name; none as long as there is no catalog."""
        catalog = self.current()
        return catalog.unhealthy if catalog else {}

    def wait_changed(
        self, seen: Catalog | None, *, seconds: float, stopped: Callable[[], bool]
    ) -> Catalog | None:
        """Wait until the catalog differs from a seen one, but no longer than a time; return it.

        Args:
            seen: The catalog that the caller knows; None if it knows none.
            seconds: Longest wait.
            stopped: Ends the wait when it returns True; called at every change and after
                wake_waiting().
        """
        with self._changed:
            self._changed.wait_for(lambda: self._current != seen or stopped(), timeout=seconds)
            return self._current

    def wake_waiting(self) -> None:
        """Make every thread in wait_changed() call its `stopped` function."""
        with self._changed:
            self._changed.notify_all()


class OtherUsersReader:
    """Reader of the device plugins and DRA drivers that give away cards too; for all threads."""

    def __init__(self, allocations: Callable[[], KubeletDevices] = KubeletDevices) -> None:
        """Args:
        allocations: Asks the kubelet what else gives away and holds devices; raises
            RetryableError. Then its last answer stays in use.
        """
        self._ask = allocations
        self._throttle = LogThrottle()
        # Each replaced as a whole, so that reading needs no lock:
        self._allocations = KubeletDevices()
        self.slices: Sequence[Slice] = ()  # of other drivers on this node
        self._users: Mapping[str, OtherUser] = {}  # by GPU UUID

    def ask(self) -> None:
        """Ask the kubelet."""
        with self._throttle.warning("allocations_unknown"):
            self._allocations = self._ask()

    def of_cards(self, gpus: Iterable[Gpu]) -> Mapping[str, OtherUser]:
        """Return by GPU UUID what else gives the card to containers, as last read."""
        self._users = self._of_cards_now(gpus)
        return self._users

    def _of_cards_now(self, gpus: Iterable[Gpu]) -> Mapping[str, OtherUser]:
        now, before = datetime.now(UTC), self._users
        return other_users.of_cards(gpus, self._allocations, self.slices, before=before, now=now)

    def holders(self, gpus: Iterable[Gpu]) -> Mapping[str, str]:
        """Return by device name who gave a card to a container that has it now.

        Asks the kubelet again only if a device plugin or another driver offers one of the cards.
        """
        if not self._users:
            return {}
        self.ask()
        users = self._of_cards_now(gpus)
        return {device_name(uuid): each.name for uuid, each in users.items() if each.holds}


class CatalogBuilder:
    """Builder of the catalog, from whatever changes; safe for all threads.

    Attributes:
        catalog: The result.
    """

    def __init__(
        self,
        discovery: Discovery,
        node: Node | None,
        *,
        host: HostSizes | None = None,
        providers: Providers | None = None,
        tracker: CardHealthTracker | None = None,
        taint_effect: str = NO_SCHEDULE,
        enforcement: Callable[[Node], Enforcement] = lambda _: Enforcement(),
        other_users: OtherUsersReader | None = None,
        records: Callable[[], Iterable[PreparedClaim]] = tuple,
        on_change: Callable[[], None] = lambda: None,
        read_soon: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        discovery: Reads the cards.
        node: None if set_node() provides it later; until then there is no catalog.
        host: Sizes of the host, read only if the pool expands VRAM into it; None adds nothing.
        providers: Of other packages; None for none.
        tracker: Decides on the cards' health; None for one without a record on disk.
        taint_effect: Effect of an unhealthy device's taint; "" for no taint.
        enforcement: Returns what keeps limits on the node now.
        other_users: None if nothing else gives cards away.
        records: Returns the prepared claims of the node; raises RetryableError. Then its last
            answer stays in use.
        on_change: Called, from any thread, when the catalog has changed.
        read_soon: Has the cards read again, from any thread.
        """
        self.catalog: Final = DeviceCatalog(on_change=on_change)
        self._discovery = discovery
        self._providers = providers or Providers()
        self._taint_effect = taint_effect
        self._enforcement = enforcement
        self._other_users = other_users or OtherUsersReader()
        self._records = records
        self._host = host
        self._read_soon = read_soon
        self._throttle = LogThrottle()
        self._lock = Lock()  # guards all below; one catalog is built at a time
        self._host_resources = HostResources()
        self._host_size_errors: tuple[str, ...] = ()
        self._shared: Mapping[str, bool] = {}  # see build_devices()
        self._node = node
        self._cordoned: Mapping[str, Taint] = {}  # by device name
        self._awaited = ""
        self._tracker = tracker or CardHealthTracker()

    def refresh(self) -> None:
        """Read the cards, and build the catalog again.

        Raises:
            RetryableError: The cards cannot be read now. The devices stay as they were, and become
                unhealthy if further readings fail.
            FatalError: The NVIDIA driver was replaced, or the store is damaged.
        """
        try:
            inventory = self._discovery.read()
        except RetryableError as error:
            with self._lock:
                self._tracker.record_failure(error)
                self._build()
            raise
        problems = self._providers.problems(inventory)
        self._other_users.ask()
        with self._lock:
            self._tracker.record_reading(inventory, problems)
            self._read_host_sizes()
            self._build(call_again=True)

    def on_event(self, event: CardEvent) -> None:
        """Take in an event of the NVIDIA driver."""
        with self._lock:
            if self._tracker.on_event(event):
                self._build()
        # Read at once: the NVIDIA driver may require a recovery now, or a card may be lost.
        self._read_soon()

    def set_node(self, node: Node) -> None:
        """Use this node, with the cards as last read."""
        with self._lock:
            self._node = node
            self._read_host_sizes()
            self._build()

    def set_cordoned(self, taints: Mapping[str, Taint]) -> None:
        """Use these taints, by device name, of cards that an administrator took out of service."""
        with self._lock:
            if taints != self._cordoned:
                self._cordoned = taints
                self._build()

    def on_awaited_pool(self, reason: str) -> None:
        """Note why the node's GPUPool is not known, for DeviceCatalog.reason_missing."""
        with self._lock:
            self._awaited = f": {reason}"
            self._build()

    def set_other_slices(self, other: Sequence[Slice]) -> None:
        """Use these ResourceSlices of other drivers on this node, with the cards as last read."""
        if other != self._other_users.slices:
            with self._lock:
                self._other_users.slices = other
                self._build()
            self._read_soon()

    def xids(self) -> XidCounts:
        """Return the counts of reported XIDs since this process started."""
        return self._tracker.xids

    def _read_host_sizes(self) -> None:
        """Read each size that the pool expands VRAM into; the caller holds _lock.

        A size that cannot be read does not keep a card from being published: until it can be read,
        its last known value counts, or 0 if there is none.
        """
        ratios = self._node.oversubscription if self._node else None
        self._host_size_errors = ()
        if self._host is None or ratios is None:
            self._host_resources = HostResources()
            return
        for name, percent, read in (
            ("memory_bytes", ratios.host_memory_percent, self._host.memory_bytes),
            ("disk_bytes", ratios.host_disk_percent, self._host.disk_bytes),
        ):
            try:
                size = read() if percent else 0
            except RetryableError as error:
                self._host_size_errors += (str(error),)
            else:
                self._host_resources = replace(self._host_resources, **{name: size})
        if self._host_size_errors:
            self._throttle.warn("expansion_size_unknown", "; ".join(self._host_size_errors))

    def _build(self, *, call_again: bool = False) -> None:
        """Build the catalog; the caller holds _lock.

        Args:
            call_again: Call the providers again, even if cards and node are as before.
        """
        cards, node = self._tracker.visible(), self._node
        if node is None or cards is None:
            if cards is not None:
                text = f"this node's GPUPool is not known yet{self._awaited}"
                self.catalog.reason_missing = text
            return
        reading = Reading(inventory=cards.inventory, node=node, host=self._host_resources)
        with suppress(RetryableError):
            self._shared = prepared.kinds_by_card(self._records())
        built = device_facts.build_devices(
            reading,
            self._enforcement(node),
            users=self._other_users.of_cards(reading.gpus),
            shared=self._shared,
            unhealthy=cards.unhealthy,
            unhealthy_effect=self._taint_effect,
            cordoned=self._cordoned,
        )
        self.catalog.replace(
            Catalog(
                node=node,
                devices=self._providers.extended(built, reading, call_again=call_again),
                left_out=cards.inventory.left_out,
                unhealthy=cards.unhealthy,
                absent=cards.absent,
                host_size_errors=self._host_size_errors,
            )
        )


class ReadingLoop:
    """Loop that reads the cards; it does nothing else, because a reading can hang."""

    def __init__(
        self,
        builder: CatalogBuilder,
        *,
        poll_seconds: float,
        wakeup: Wakeup,
        events: CardEvents | None = None,
    ) -> None:
        """Args:
        builder: Reads the cards, and builds the catalog of them.
        poll_seconds: Time between two readings if nothing wakes the loop.
        wakeup: Wakes the loop; others wake it too.
        events: Source of the NVIDIA driver's events; None to poll only.
        """
        self._builder = builder
        self._poll_seconds = poll_seconds
        self._wakeup = wakeup
        self._events = events
        self._throttle = LogThrottle(quiet_seconds=math.inf)

    def run(self) -> None:
        """Read the cards until stopped.

        Raises:
            FatalError: The NVIDIA driver was replaced; only a new process can load its library. Or
                the store is damaged.
        """
        while self._wakeup.next_round():
            began = time.monotonic()
            self.read()
            self._wakeup.wait(self._poll_seconds)
            pause = min(_MIN_READING_SECONDS, self._poll_seconds)
            self._wakeup.pause(began + pause - time.monotonic())

    def stop(self) -> None:
        """End run(), and that of the events."""
        self._wakeup.stop()
        if self._events is not None:
            self._events.stop()

    def read(self) -> None:
        """Read the cards once; log why they cannot be read.

        Raises:
            FatalError: See run().
        """
        try:
            self._builder.refresh()
        except RetryableError as error:
            # The text of a hanging call has its age, so it is different after each reading. The
            # call itself is not, so that it is logged once.
            cause = error.call if isinstance(error, HungError) else str(error)
            if self._throttle.is_new(cause):
                log.warning("gpus_awaited", error=str(error))
            return
        self._throttle.over()
        if self._events is not None and (catalog := self._builder.catalog.current()) is not None:
            healthy = (d.gpu.card_uuid for d in catalog.devices if d.name not in catalog.unhealthy)
            self._events.watch(frozenset(healthy))


def _log_change(catalog: Catalog, known: Catalog | None) -> None:
    log.info("gpus_read", devices=len(catalog.devices), left_out=len(catalog.left_out))
    for item in catalog.left_out:
        if known is None or item not in known.left_out:
            log.warning("gpu_left_out", device=item.subject, error=item.reason)
    before = [device.gpu for device in known.devices] if known else []
    for device in catalog.devices:
        if device.gpu not in before and device.gpu.tflops_source is TflopsSource.ESTIMATE:
            log.warning(
                "tflops_estimated",
                device=device.name,
                product_name=device.gpu.product_name,
                tflops=device.gpu.milli_tflops / 1000,
            )


class Repairs:
    """The pace of repairs: how soon slices that another writer changed are written again.

    The first repair is made at once, because a kubelet that restarts deletes the slices of its
    drivers. Each further one waits twice as long as the one before, up to a minute. Otherwise two
    writers could undo each other's writes many times a second. After ten minutes without a repair,
    the next one is again made at once.

    seconds_left() is safe for all threads, the other methods are for one thread.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any repair.

        Args:
            clock: In seconds; must not go back.
        """
        self._clock = clock
        self._backoff = Backoff(first_seconds=1, longest_seconds=_MAX_REPAIR_SECONDS)
        self._repaired_at = -_QUIET_SECONDS
        self._next_at = 0.0
        self._in_a_row = 0

    def seconds_left(self) -> float:
        """Return the time until the next repair may be made; 0 if it may be made now."""
        return max(0.0, self._next_at - self._clock())

    def record(self) -> bool:
        """Record a repair; return True for the second one in a row, which is to be reported."""
        now = self._clock()
        is_first = now - self._repaired_at >= _QUIET_SECONDS
        if is_first:
            self._backoff.succeeded()
        self._repaired_at = now
        self._next_at = now + self._backoff.failed()
        self._in_a_row = 1 if is_first else self._in_a_row + 1
        return self._in_a_row == 2


class Publisher:
    """Loop that publishes the node's devices; other threads only wake it and call view().

    Writes are counted by reason. Example: a card becomes unhealthy, and the first write fails. The
    next round writes the same slice for the reason `retry`, and the write is counted there.
    """

    def __init__(
        self,
        catalog: DeviceCatalog,
        slices_at_server: Slices,
        nodes: Nodes,
        events: Events,
        *,
        lease: PublisherLease,
        repairs: Repairs | None = None,
        wakeup: Wakeup | None = None,
    ) -> None:
        """Args:
        catalog: The devices to publish.
        slices_at_server: This node's slices.
        nodes: Gives the UID of the Node, which owns the slices. It is read once, and again
            after a change of another writer: if the Node was recreated, Kubernetes' garbage
            collector deletes the slices of the old one.
        events: Of this loop's thread alone.
        lease: Of the publisher, which instances on this node pass on.
        repairs: The pace of repairs; None for the default.
        wakeup: Wakes the loop; whoever changes the catalog wakes it too.
        """
        self._view = PublishingView()  # replaced as a whole, so that reading needs no lock
        self._events = events
        self._repairs = repairs or Repairs()
        self._confirmed: Sequence[Slice] = ()  # wanted slices, as last found or made stored
        self._writing: WriteReason | None = None  # from the first write until they are stored
        self._catalog = catalog
        self._slices = slices_at_server
        self._nodes = nodes
        self._lease = lease
        self._wakeup = wakeup or Wakeup()
        self._recheck_gates = Event()
        self._recheck_node = Event()
        self._recheck_node.set()
        self._node_uid = ""
        self._dropped: frozenset[str] = frozenset()  # feature gates that the server has off
        self._keeps_taints: bool | None = None  # None until a dry run has shown it
        self._untried: RetryableError | None = None  # why the last dry run has not
        self._logged_dropped: frozenset[str] = frozenset()
        self._throttle = LogThrottle()

    def view(self) -> PublishingView:
        """Return the present state."""
        return self._view

    def slices_changed(self) -> None:
        """Begin a round as soon as a repair may be made: another writer has changed a slice."""
        self._recheck_node.set()
        # If a repair has to wait, run() begins a round by itself when the wait is over.
        if not self._repairs.seconds_left():
            self._wakeup.wake()

    def server_returned(self) -> None:
        """Begin a round, and find out again which fields the API server drops.

        It may be another server now, or the same one with other feature gates.
        """
        self._recheck_gates.set()
        self._wakeup.wake()

    def stop(self) -> None:
        """End run(). The slices stay; the kubelet deletes them if no instance comes back."""
        self._wakeup.stop()

    def run(self) -> None:
        """Publish until stopped, as long as this instance holds the lease."""
        backoff = Backoff(first_seconds=0.2, longest_seconds=30)
        while self._wakeup.next_round():
            delay: float | None = None
            holds_lease = self._lease.held()
            if holds_lease != self._view.holds_lease:
                self._view = replace(self._view, holds_lease=holds_lease)
                log.info(
                    "publishing_resumed" if holds_lease else "publishing_left_to_newer_instance"
                )
            try:
                # Without the lease the round is skipped. Nothing is missed, because a round
                # compares everything once the lease is back.
                if holds_lease:
                    self.publish()
            except RetryableError as error:
                self._recheck_node.set()
                since = self._view.error_since or datetime.now(UTC)
                self._view = replace(self._view, error=str(error), error_since=since)
                event, delay = "publish_retried", backoff.failed(at_least=error.after_seconds)
                if isinstance(error, MissingPermissionError):
                    event, delay = "publish_forbidden", max(delay, _NOT_PERMITTED_SECONDS)
                self._throttle.warn(event, error, seconds=round(delay, 1))
                if error.after_seconds:
                    self._wakeup.pause(delay)  # the server requested it, so no wake() may end it
                    continue
            else:
                backoff.succeeded()
                self._view = replace(self._view, error="", error_since=None)
                self._throttle.over()
                delay = self._repairs.seconds_left() or None
                if not holds_lease:
                    delay = _LEASE_SECONDS
            self._wakeup.wait(delay)
        self._lease.release()

    def publish(self) -> SlicePlan | None:
        """Write what differs from the stored slices; return the writes.

        Returns None if nothing differs, or if it is too early for another repair.

        Raises:
            RetryableError: A write may not have been made, or partitions are left out because the
                dry run failed.
        """
        self._untried = None
        plan = self._published()
        if self._untried is not None:
            raise self._untried
        return plan

    def _published(self) -> SlicePlan | None:
        """Do what publish() does, but note a failed dry run in `_untried`."""
        current = self._catalog.current()
        if current is None:
            return None
        stored = self._slices.fetch()
        if not (current.devices or stored):
            return None
        if self._recheck_node.is_set():
            self._recheck_node.clear()
            self._node_uid = self._nodes.uid()
        self._lease.take()
        if self._recheck_gates.is_set():
            self._recheck_gates.clear()
            self._keeps_taints = None
            if self._dropped:
                self._confirmed = ()  # the slices are written once more, which is no repair
                self._dropped = frozenset()
                self._view = replace(self._view, dropped_gates=())
        devices = self._publishable(current, stored)
        wanted = slices.wanted(devices, current.node, node_uid=self._node_uid)
        plan = slices.plan(wanted, stored, dropped=self._dropped)
        if not plan:
            self._confirm(wanted, plan)
            return None
        is_repair = self._writing is None and wanted == self._confirmed
        if is_repair and self._repairs.seconds_left():
            return None
        if is_repair and self._repairs.record():
            writers = ", ".join(slices.other_writers(plan))
            is_by = (
                f"found them written by {writers}" if writers else "found them deleted or written"
            )
            error = (
                f"ResourceSlices of {names.DRIVER}: {is_by} again and again, "
                f"expected {names.FIELD_MANAGER} as their only writer; they are restored once a "
                "minute"
            )
            log.warning("slices_contested", writers=writers, error=error)
            self._events.warn(names.EVENT_SLICES_CONTESTED, error)
        if self._writing is not None:
            self._writing = WriteReason.RETRY  # the writes before were not confirmed
        elif is_repair:
            self._writing = WriteReason.REPAIR
        else:
            self._writing = slices.write_reason(self._confirmed, wanted)
        self._apply(plan, self._writing)
        self._confirm(wanted, plan)
        self._view = replace(self._view, written_at=self._view.confirmed_at)
        log.info(
            "slices_published",
            pool=current.node.pool,
            generation=plan.generation,
            devices=len(devices),
            written=len(plan.create) + len(plan.update),
            deleted=len(plan.delete),
        )
        return plan

    def _publishable(self, current: Catalog, stored: Iterable[Slice]) -> Sequence[Device]:
        """Return the devices, without partitions unless the API server keeps their taint.

        If the dry run fails, those stay that are stored: a webhook may refuse every dry run, and
        the node's cards do not depend on it.
        """
        partitions = [each for each in current.devices if each.own_enforcer]
        if partitions and self._keeps_taints is None:
            (sent,) = slices.wanted(partitions[:1], current.node, node_uid=self._node_uid)
            try:
                (kept,) = self._slices.trial(sent)["spec"]["devices"]
                self._keeps_taints = bool(kept.get("taints"))
            except RetryableError as error:
                self._untried = error
            if self._keeps_taints is False:
                log.error(
                    "partitions_not_published",
                    devices=len(partitions),
                    error=f"the API server drops their taint: enable {GATE_DEVICE_TAINTS} on it",
                )
        if self._keeps_taints:
            return current.devices
        published = {each["name"] for item in stored for each in item["spec"].get("devices") or ()}
        known = published if self._keeps_taints is None else ()
        return [each for each in current.devices if not each.own_enforcer or each.name in known]

    def _apply(self, plan: SlicePlan, reason: WriteReason) -> None:
        """Make the writes in order; learn from the answers which fields the server drops."""
        stages: Sequence[tuple[Callable[[Slice], Slice | None], Sequence[Slice]]] = (
            (self._slices.delete, plan.delete),
            (self._slices.replace, plan.update),
            (self._slices.create, plan.create),
        )
        for write, items in stages:
            for item in items:
                stored = write(item)
                writes = {**self._view.writes, reason: self._view.writes[reason] + 1}
                # Added to the known ones: a slice without a taint does not show that these are
                # dropped.
                self._dropped |= slices.dropped_gates(item, stored) if stored else frozenset()
                dropped = tuple(sorted(self._dropped))
                self._view = replace(self._view, writes=writes, dropped_gates=dropped)
        if self._dropped and self._dropped != self._logged_dropped:
            self._logged_dropped = self._dropped
            log.error(
                "slice_fields_dropped",
                feature_gates=sorted(self._dropped),
                error="the API server keeps only a part of each device: enable these feature "
                "gates on kube-apiserver, kube-scheduler, kube-controller-manager and kubelet",
            )

    def _confirm(self, wanted: Sequence[Slice], plan: SlicePlan) -> None:
        """Note that the stored slices are the wanted ones."""
        self._confirmed, self._writing = wanted, None
        self._view = replace(
            self._view,
            generation=plan.generation,
            slices=len(wanted),
            devices=sum(len(item["spec"]["devices"]) for item in wanted),
            confirmed_at=datetime.now(UTC),
        )
