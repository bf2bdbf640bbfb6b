"""The catalog: this node's devices and their health, as last read.

A catalog is made of four inputs:

- the cards and their health, from readings and from events of the NVIDIA driver
  (CardHealthTracker decides which cards are in it);
- the node as a member of its pool, from the settings or from a GPUPool (pool_follower.py);
- the sizes of the host's memory and disk, if the pool expands VRAM into them;
- what providers of other packages add (providers.py).

There is no catalog until both the cards and the node are known. From then on there always is one.
It is replaced as a whole, and only if the new one differs, so an unchanged object means that
nothing changed. A new one makes the publisher, the health streams, the health announcer and the
changes of limits act; calls of the kubelet use the present one.

A device that breaks a rule of the API is left out with a reason, since the API server would refuse
the whole slice. A provider that fails costs only what it gives.

CardWatch is the loop that reads the cards: periodically, at once after an event, and when a
provider wakes it.

Example: refresh() reads two cards while the GPUPool is unknown, so current() is None. set_node()
then makes the first catalog, with two devices. XID 79 on the first card makes the second catalog,
in which its device is sick and has a taint. A reading that finds no change makes none.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Condition, Lock
from typing import Any, Final

import structlog

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices import health, known_cards
from tensorfusion_dra.core.devices.device import Device, Enforcement, Node, Reading
from tensorfusion_dra.core.devices.gpu import HostResources, Inventory, LeftOut, TflopsSource
from tensorfusion_dra.core.devices.health import (
    CardEvent,
    HealthRules,
    Moment,
    Sickness,
    Trouble,
    TroubleKind,
)
from tensorfusion_dra.core.devices.known_cards import KnownCards, PublishedCards
from tensorfusion_dra.core.errors import HungError, RetryableError
from tensorfusion_dra.core.kubernetes import device_rules
from tensorfusion_dra.core.observed import node_view
from tensorfusion_dra.core.observed.node_view import XidCounts
from tensorfusion_dra.driver.card_users import CardUsers
from tensorfusion_dra.driver.driver_replacement import DriverReplacement
from tensorfusion_dra.driver.ports import CardEvents, Discovery, HostSizes
from tensorfusion_dra.driver.providers import Providers
from tensorfusion_dra.runtime.loops import LogThrottle, Wakeup
from tensorfusion_dra.state.saved_state import SavedState

log = structlog.get_logger()

_QUIET_SECONDS: Final = 60.0
"""Time in which the same event is not logged again."""


def now() -> Moment:
    """Return the present time on both clocks."""
    return Moment(time.monotonic(), datetime.now(UTC))


class CardHealthTracker:
    """The node's cards and their health, kept in memory and on disk; for one thread at a time.

    Three inputs change what is known, by the rules of core/devices/known_cards.py and health.py:

    - record_reading(): a reading of all cards succeeded.
    - record_failure(): a reading failed as a whole.
    - on_event(): the NVIDIA driver reported an event.

    visible() returns the cards to publish. It returns None as long as too little is known: before
    the first successful reading, unless so many readings failed that the remembered cards count as
    sick.

    Each change is saved, and a new process starts from the saved record. So a restart neither heals
    a sick card nor forgets a card that is missing. A record that cannot be saved is saved after a
    later reading.

    Example, with the default rules: card B is sick with XID 79, and the node plugin is restarted.
    The new process knows from the record that B is sick, so the slices stay as they are. If NVML
    hangs in the new process, the first failed reading shows nothing, and the stored slices stay.
    After the second, all remembered cards are published as sick, with the reason `nvml-hung`.
    """

    def __init__(
        self,
        rules: HealthRules | None = None,
        *,
        records: SavedState | None = None,
        boot_id: str = "",
        claims: Callable[[], Sequence[PreparedClaim]] = tuple,
        clock: Callable[[], Moment] = now,
        saves: bool = True,
        replacement: DriverReplacement | None = None,
    ) -> None:
        """Load the record of earlier processes.

        Args:
            rules: Thresholds for changes of health; None for the defaults.
            records: The record on disk; None keeps everything in memory only.
            boot_id: Identifies this boot of the machine.
            claims: Returns all prepared claims of the ledger.
            clock: Returns the present time.
            saves: False to read the record without writing it.
            replacement: Of the NVIDIA driver; None if it is not followed.

        Raises:
            FatalError: The ledger is damaged.
        """
        self._rules = rules or HealthRules()
        self._records = records
        self._boot_id = boot_id
        self._claims = claims
        self._clock = clock
        self._saves = saves
        self._replacement = replacement
        self._inventory: Inventory | None = None
        self._failures = 0
        self._throttle = LogThrottle(quiet_seconds=_QUIET_SECONDS, clock=lambda: clock().seconds)
        self.xids: XidCounts = {}  # replaced as a whole; any thread may read it
        self._claimed: frozenset[str] = frozenset()
        self._saved_record: Mapping[str, Any] | None = records.load() if records else None
        self._known = self._loaded()

    def record_reading(
        self, inventory: Inventory, reported: Mapping[str, Sequence[Trouble]]
    ) -> None:
        """Take in a successful reading, and what health sources reported by GPU UUID."""
        self._failures = 0
        if self._replacement is not None:
            self._replacement.read()
        self._inventory = inventory
        known = known_cards.after_reading(
            self._known, inventory, self._clock(), self._rules, reported=reported
        )
        self._remember(known)

    def record_failure(self, error: RetryableError) -> None:
        """Take in a reading that failed as a whole.

        While the NVIDIA driver is being replaced, a failure says nothing about a card.
        """
        if self._replaced():
            return
        self._failures += 1
        if isinstance(error, HungError):
            reason, text = "nvml-hung", f"the NVIDIA driver does not answer: {error.call}"
        else:
            reason, text = "unreadable", f"the GPU cannot be read: {error}"
        trouble = Trouble(kind=TroubleKind.UNREADABLE, reason=reason, text=text)
        self._remember(known_cards.after_failure(self._known, trouble, self._clock(), self._rules))

    def on_event(self, event: CardEvent) -> bool:
        """Take in an event of the NVIDIA driver; return True if it makes a card sick."""
        trouble = health.trouble_of(event, self._rules)
        uuid = event.gpu_uuid
        if uuid in self._known.cards:
            self.xids = node_view.count_xid(self.xids, event, self._rules, self._clock().at)
        counts = trouble is not None and uuid in self._known.cards
        # Not each of a storm of equal events, which a broken program can cause.
        kind, of_card = event.kind.value, f"{uuid} {event.code}"
        if self._throttle.is_new(of_card, key=f"{kind} {of_card}"):
            log.info("card_event", device=uuid, kind=kind, code=event.code, counts=counts)
        if trouble is None or uuid is None or not counts:
            return False
        self._remember(known_cards.after_report(self._known, uuid, trouble, self._clock()))
        return True

    def visible(self) -> PublishedCards | None:
        """Return the cards to publish; None as long as too little is known."""
        inventory = self._inventory
        if inventory is None:
            # No reading of this process has succeeded. Once as many have failed as make a card
            # sick, the cards that an earlier process read are published, as sick.
            is_sick = self._replaced() or self._failures >= self._rules.failed_readings
            if not (is_sick and self._known.cards):
                return None
            inventory = Inventory(gpus=tuple(self._known.cards.values()))
        if any(state.was_away for state in self._known.health.values()):
            self._claimed = self._claimed_devices()
        return known_cards.published(self._known, inventory, self._claimed, self._replaced())

    def _replaced(self) -> Sickness | None:
        return self._replacement.sickness if self._replacement is not None else None

    def _remember(self, known: KnownCards) -> None:
        self._known = known
        if self._records is None or not self._saves:
            return
        record = known_cards.as_json(known, boot_id=self._boot_id)
        if record == self._saved_record:
            return
        try:
            self._records.save(record)
        except RetryableError as error:
            # Saved after the next reading. A restart before that knows an older state.
            log.warning("card_record_write_failed", error=str(error))
        else:
            self._saved_record = record

    def _loaded(self) -> KnownCards:
        if self._records is None or self._saved_record is None:
            return KnownCards()
        self._claimed = self._claimed_devices()
        try:
            return known_cards.from_json(
                self._saved_record,
                boot_id=self._boot_id,
                claimed=self._claimed,
                now=self._clock(),
            )
        except ValueError as error:
            log.warning("card_record_unusable", error=str(error))
            return KnownCards()

    def _claimed_devices(self) -> frozenset[str]:
        try:
            claims = self._claims()
        except RetryableError as error:
            log.warning("claimed_devices_unknown", error=str(error))
            # The last known ones: better to publish a missing card for too long.
            return self._claimed
        return frozenset(share.device for claim in claims for share in claim.shares)


NO_SCHEDULE: Final = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The node's devices at one moment.

    Attributes:
        devices: Each of them passes the API's rules.
        left_out: Cards and devices that are not published, with the reason.
        sick: By device name; includes devices that are no longer published.
        absent: Names of devices whose card the last reading did not find or found lost, published
            or not.
        host_size_errors: One text for each size of the host that the pool needs and that cannot be
            read, so that virtual VRAM lacks that part; empty if there is none.
    """

    node: Node
    devices: tuple[Device, ...]
    left_out: tuple[LeftOut, ...] = ()
    sick: Mapping[str, Sickness] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    host_size_errors: tuple[str, ...] = ()

    def by_name(self) -> Mapping[str, Device]:
        """Return the devices by name."""
        return {device.name: device for device in self.devices}


class DeviceCatalog:
    """Builder of the catalog, which wakes waiting threads when it changes; safe for all threads."""

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
        users: CardUsers | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            discovery: Reads the cards.
            node: None if set_node() provides it later; until then there is no catalog.
            host: Sizes of the host, read only if the pool expands VRAM into it; None adds nothing.
            providers: Of other packages; None for none.
            tracker: Decides on the cards' health; None for one without a record on disk.
            taint_effect: Effect of an unhealthy device's taint; "" for no taint.
            enforcement: Returns what keeps limits on the node now.
            users: Knows device plugins and other drivers of the cards; None if there are none.
        """
        self._discovery = discovery
        self._providers = providers or Providers()
        self._taint_effect = taint_effect
        self._enforcement = enforcement
        self._users = users or CardUsers()
        self._host = host
        self._host_resources = HostResources()
        self._host_size_errors: tuple[str, ...] = ()
        self._throttle = LogThrottle()
        # Guards all below but _changed and _current; one catalog is built at a time.
        self._building = Lock()
        self._awaited = ""  # why the node is not known; "" if nobody has said so
        self._node = node
        self._tracker = tracker or CardHealthTracker()
        self._changed = Condition()  # guards _current
        self._current: Catalog | None = None

    @property
    def providers(self) -> Providers:
        """The providers, for what they report and to be woken by them."""
        return self._providers

    def current(self) -> Catalog | None:
        """Return the present catalog; None if there is none yet (see reason_missing())."""
        with self._changed:
            return self._current

    def sick(self) -> Mapping[str, Sickness]:
        """Return the unhealthy devices by name; none as long as there is no catalog."""
        catalog = self.current()
        return catalog.sick if catalog else {}

    @property
    def xids(self) -> XidCounts:
        """Counts of reported XIDs since this process started."""
        return self._tracker.xids

    def refresh(self) -> bool:
        """Read the cards; return True if the catalog changed.

        Raises:
            RetryableError: The cards cannot be read now. The devices stay as they were, and become
                unhealthy if further readings fail.
            FatalError: The NVIDIA driver was replaced, or the ledger is damaged.
        """
        try:
            inventory = self._discovery.read()
        except RetryableError as error:
            with self._building:
                self._tracker.record_failure(error)
                self._rebuild()
            raise
        troubles = self._providers.troubles(inventory)
        self._users.read()
        with self._building:
            self._tracker.record_reading(inventory, troubles)
            self._read_host_sizes()
            return self._rebuild(call_again=True)

    def holders(self) -> Mapping[str, str]:
        """Return by device name who gave a card to a container that has it now.

        Asks the kubelet again only if a device plugin or another driver offers one of the cards.
        """
        catalog = self.current()
        gpus = [device.gpu for device in catalog.devices] if catalog else []
        if users := self._users.of_cards(gpus):
            self._users.read()
            users = self._users.of_cards(gpus)
        return {devices.device_name(uuid): each.name for uuid, each in users.items() if each.holds}

    def on_event(self, event: CardEvent) -> bool:
        """Take in an event of the NVIDIA driver; return True if the catalog changed."""
        with self._building:
            return self._tracker.on_event(event) and self._rebuild()

    def set_node(self, node: Node) -> bool:
        """Use this node, with the cards as last read; return True if the catalog changed."""
        with self._building:
            self._node = node
            self._read_host_sizes()
            return self._rebuild()

    def on_awaited_pool(self, reason: str) -> None:
        """Note why the node's GPUPool is not known, for reason_missing()."""
        with self._building:
            self._awaited = reason

    def reason_missing(self) -> str:
        """Return why there is no catalog yet, for error texts."""
        with self._building:
            unread, awaited = self._tracker.visible() is None, self._awaited
        reason = "GPUs could not be read" if unread else "GPUPool is not known"
        return f"this node's {reason} yet{f': {awaited}' if awaited and not unread else ''}"

    def wait_changed(
        self, seen: Catalog | None, *, seconds: float, stopped: Callable[[], bool]
    ) -> None:
        """Wait until the catalog differs from a seen one, but no longer than a time.

        Args:
            seen: The catalog that the caller knows; None if it knows none.
            seconds: Longest wait.
            stopped: Ends the wait when it returns True; called at every change and after
                wake_waiting().
        """
        with self._changed:
            self._changed.wait_for(lambda: self._current != seen or stopped(), timeout=seconds)

    def wake_waiting(self) -> None:
        """Make every thread in wait_changed() call its `stopped` function."""
        with self._changed:
            self._changed.notify_all()

    def _read_host_sizes(self) -> None:
        """Read each size that the pool expands VRAM into; the caller holds _building.

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
        error_text = "; ".join(self._host_size_errors)
        if error_text and self._throttle.is_new(error_text):
            log.warning("expansion_size_unknown", error=error_text)
        elif not error_text and self._throttle.over():
            log.info("expansion_size_read")

    def _rebuild(self, *, call_again: bool = False) -> bool:
        """Build the catalog; return True if it changed. The caller holds _building.

        Args:
            call_again: Call the providers again, even if cards and node are as before.
        """
        cards = self._tracker.visible()
        if self._node is None or cards is None:
            return False
        known = self.current()
        catalog = self._catalog(cards, self._node, call_again=call_again)
        if catalog == known:
            return False
        _log_change(catalog, known)
        with self._changed:
            self._current = catalog
            self._changed.notify_all()
        return True

    def _catalog(self, cards: PublishedCards, node: Node, *, call_again: bool) -> Catalog:
        valid: list[Device] = []
        left_out = list(cards.inventory.left_out)
        reading = Reading(inventory=cards.inventory, node=node, host=self._host_resources)
        built = devices.own(reading, node, self._enforcement(node))
        extended = self._providers.extended(built, reading, call_again=call_again)
        users = self._users.of_cards(reading.gpus)
        since = self._users.since(users)
        effect = self._taint_effect
        for each in extended:
            uuid = each.gpu.uuid
            free = devices.with_user(each, users[uuid].name, since[uuid]) if uuid in users else each
            device = devices.with_health(free, cards.sick.get(each.name), effect=effect)
            if reasons := device_rules.violations(device.as_api()):
                left_out.append(LeftOut(subject=device.name, reason="; ".join(reasons)))
            else:
                valid.append(device)
        return Catalog(
            node=node,
            devices=tuple(valid),
            left_out=tuple(left_out),
            sick=cards.sick,
            absent=cards.absent,
            host_size_errors=self._host_size_errors,
        )


def _log_change(catalog: Catalog, known: Catalog | None) -> None:
    log.info("gpus_read", devices=len(catalog.devices), left_out=len(catalog.left_out))
    logged = known.left_out if known else ()
    for item in catalog.left_out:
        if item not in logged:
            log.warning("gpu_left_out", device=item.subject, error=item.reason)
    before = [device.gpu for device in known.devices] if known else []
    for device in catalog.devices:
        new = device.gpu not in before
        if new and device.gpu.tflops_source is TflopsSource.ESTIMATE:
            log.warning(
                "tflops_estimated",
                device=device.name,
                product_name=device.gpu.product_name,
                tflops=device.gpu.milli_tflops / 1000,
            )


_LEAST_SECONDS: Final = 1.0
"""Least time between two readings, however many events are reported."""


class CardWatch:
    """Loop that reads the cards; it does nothing else, because a reading can hang."""

    def __init__(
        self,
        catalog: DeviceCatalog,
        events: CardEvents | None,
        *,
        poll_seconds: float,
        on_change: Callable[[], None],
    ) -> None:
        """Read nothing yet.

        Args:
            catalog: Refreshed by each reading.
            events: Source of the NVIDIA driver's events; None to poll only.
            poll_seconds: Time between two readings if no event is reported.
            on_change: Called when the catalog has changed.
        """
        self._catalog = catalog
        self._events = events
        self._poll_seconds = poll_seconds
        self._on_change = on_change
        self._wakeup = Wakeup()
        self._throttle = LogThrottle(quiet_seconds=math.inf)
        catalog.providers.wake = self._wakeup.wake

    def stop(self) -> None:
        """End run(), and that of the events."""
        self._wakeup.stop()
        if self._events is not None:
            self._events.stop()

    def run(self) -> None:
        """Read the cards until stopped.

        Raises:
            FatalError: The NVIDIA driver was replaced; only a new process can load its library. Or
                the ledger is damaged.
        """
        while self._wakeup.next_round():
            began = time.monotonic()
            self.read()
            self._wakeup.wait(self._poll_seconds)
            pause = min(_LEAST_SECONDS, self._poll_seconds)
            self._wakeup.pause(began + pause - time.monotonic())

    def read(self) -> None:
        """Read the cards once.

        Raises:
            FatalError: See run().
        """
        before = self._catalog.current()
        try:
            self._catalog.refresh()
        except RetryableError as error:
            # The text of a hanging call has its age, so it is different after each reading. The
            # call itself is not, so that it is logged once.
            cause = error.call if isinstance(error, HungError) else str(error)
            if self._throttle.is_new(cause):
                log.warning("gpus_awaited", error=str(error))
        else:
            self._throttle.over()
            catalog = self._catalog.current()
            if self._events is not None and catalog is not None:
                healthy = (d.gpu.uuid for d in catalog.devices if d.name not in catalog.sick)
                self._events.watch(frozenset(healthy))
        if self._catalog.current() is not before:
            self._on_change()

    def on_event(self, event: CardEvent) -> None:
        """Take in an event that the NVIDIA driver reports."""
        if self._catalog.on_event(event):
            self._on_change()
        # Read at once: the NVIDIA driver may require a recovery now, or a card may be lost.
        self._wakeup.wake()
