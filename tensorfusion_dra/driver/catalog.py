"""The catalog: this node's devices and their health, as last read.

A catalog is made of four inputs:

- the cards and their health, from readings and from events of the NVIDIA driver
  (card_health_tracker.py decides which cards are in it);
- the node as a member of its pool, from the settings or from a GPUPool (pool_follower.py);
- the sizes of the host's memory and disk, if the pool expands VRAM into them (Expansion);
- what providers of other packages add (providers/providers.py).

There is no catalog until both the cards and the node are known. From then on there always is one.
It is replaced as a whole, and only if the new one differs, so an unchanged object means that
nothing changed. A new one makes the publisher, the health streams, the health announcer and the
changes of limits act; calls of the kubelet use the present one.

A device that breaks a rule of the API is left out with a reason, since the API server would refuse
the whole slice. A provider that fails costs only what it gives.

Example: refresh() reads two cards while the GPUPool is unknown, so current() is None. set_node()
then makes the first catalog, with two devices. XID 79 on the first card makes the second catalog,
in which its device is sick and has a taint. A reading that finds no change makes none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Condition, Lock
from typing import Final

import structlog

from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices.device import Device, Node, Reading
from tensorfusion_dra.core.devices.gpu import HostResources, LeftOut, TflopsSource
from tensorfusion_dra.core.devices.health import CardEvent, Sickness
from tensorfusion_dra.core.devices.known_cards import PublishedCards
from tensorfusion_dra.core.devices.oversubscription import Oversubscription
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes import device_rules
from tensorfusion_dra.core.observed.node_view import XidCounts
from tensorfusion_dra.driver.card_health_tracker import CardHealthTracker
from tensorfusion_dra.driver.ports.discovery import Discovery, HostSizes
from tensorfusion_dra.driver.providers import Providers
from tensorfusion_dra.runtime.log_throttle import LogThrottle

log = structlog.get_logger()


class Expansion:
    """Reader of the host's sizes; it reads a size only if the pool expands VRAM into it.

    A size that cannot be read does not keep a card from being published: until it can be read, its
    last known value counts, or 0 if there is none.

    Attributes:
        missing: One error text for each size that the pool needs and that the last read() did not
            get.
    """

    def __init__(self, sizes: HostSizes | None) -> None:
        """Read nothing yet; None as the source of sizes makes them all 0."""
        self._sizes = sizes
        self._known = HostResources()
        self._throttle = LogThrottle()
        self.missing: tuple[str, ...] = ()

    def read(self, ratios: Oversubscription | None) -> HostResources:
        """Return the host's sizes for a pool; 0 for a size that the pool does not use.

        Args:
            ratios: The pool's ratios; None if it does not oversubscribe.
        """
        if self._sizes is None or ratios is None:
            self.missing = ()
            return HostResources()
        missing: list[str] = []

        def size(percent: int, read: Callable[[], int], known: int) -> int:
            if not percent:
                return 0
            try:
                return read()
            except RetryableError as error:
                missing.append(str(error))
                return known

        self._known = HostResources(
            memory_bytes=size(
                ratios.host_memory_percent, self._sizes.memory_bytes, self._known.memory_bytes
            ),
            disk_bytes=size(
                ratios.host_disk_percent, self._sizes.disk_bytes, self._known.disk_bytes
            ),
        )
        self.missing = tuple(missing)
        self._log()
        return self._known

    def _log(self) -> None:
        error = "; ".join(self.missing)
        if error and self._throttle.is_new(error):
            log.warning("expansion_size_unknown", error=error)
        elif not error and self._throttle.over():
            log.info("expansion_size_read")


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
    ) -> None:
        """Read nothing yet.

        Args:
            discovery: Reads the cards.
            node: None if set_node() provides it later; until then there is no catalog.
            host: Sizes of the host, read only if the pool expands VRAM into it; None adds nothing.
            providers: Of other packages; None for none.
            tracker: Decides on the cards' health; None for one without a record on disk.
            taint_effect: Effect of an unhealthy device's taint; "" for no taint.
        """
        self._discovery = discovery
        self._providers = providers or Providers()
        self._taint_effect = taint_effect
        self._expansion = Expansion(host)
        self._added = HostResources()
        # Guards _node, _awaited, _tracker, _expansion and _added; one catalog is built at a time.
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
                self._tracker.note_failure(error)
                self._rebuild()
            raise
        troubles = self._providers.troubles(inventory)
        with self._building:
            self._tracker.note_reading(inventory, troubles)
            self._expand()
            return self._rebuild(anew=True)

    def note_event(self, event: CardEvent) -> bool:
        """Take in an event of the NVIDIA driver; return True if the catalog changed."""
        with self._building:
            return self._tracker.note_event(event) and self._rebuild()

    def set_node(self, node: Node) -> bool:
        """Use this node, with the cards as last read; return True if the catalog changed."""
        with self._building:
            self._node = node
            self._expand()
            return self._rebuild()

    def note_awaited_pool(self, reason: str) -> None:
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

    def _expand(self) -> None:
        """Read the host's sizes again; the caller holds _building."""
        if self._node is not None:
            self._added = self._expansion.read(self._node.oversubscription)

    def _rebuild(self, *, anew: bool = False) -> bool:
        """Build the catalog; return True if it changed. The caller holds _building.

        Args:
            anew: Call the providers again, even if cards and node are as before.
        """
        cards = self._tracker.visible()
        if self._node is None or cards is None:
            return False
        known = self.current()
        catalog = self._catalog(cards, self._node, anew=anew)
        if catalog == known:
            return False
        _log_change(catalog, known)
        with self._changed:
            self._current = catalog
            self._changed.notify_all()
        return True

    def _catalog(self, cards: PublishedCards, node: Node, *, anew: bool) -> Catalog:
        valid: list[Device] = []
        left_out = list(cards.inventory.left_out)
        reading = Reading(inventory=cards.inventory, node=node, host=self._added)
        built = devices.own(reading, node)
        extended = self._providers.extended(built, reading, anew=anew)
        effect = self._taint_effect
        for device in (
            devices.with_health(each, cards.sick.get(each.name), effect=effect) for each in extended
        ):
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
            host_size_errors=self._expansion.missing,
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
