"""The devices of this node as they were last read: what is published, prepared and watched."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Condition, Lock
from typing import Any, Final

import structlog

from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices.device import AttributeValue, Device, Node
from tensorfusion_dra.core.devices.gpu import Gpu, HostResources, LeftOut, TflopsSource
from tensorfusion_dra.core.devices.health import CardEvent, Sickness
from tensorfusion_dra.core.devices.known_cards import PublishedCards
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes import slice_rules
from tensorfusion_dra.driver.card_health_tracker import CardHealthTracker
from tensorfusion_dra.driver.expansion import Expansion
from tensorfusion_dra.driver.ports.discovery import Discovery, HostSizes
from tensorfusion_dra.extend import AttributeProvider

log = structlog.get_logger()

NO_SCHEDULE: Final = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The node's devices at one moment.

    Attributes:
        devices: Each of them passes the API's rules.
        left_out: Cards and devices that are not published, with the reason.
        sick: By device name, also of devices that are not published any more.
        absent: Names of devices without a card that works, published or not.
        unexpanded: Why virtual memory lacks what the pool adds from the host; empty if it does not.
    """

    node: Node
    devices: tuple[Device, ...]
    left_out: tuple[LeftOut, ...] = ()
    sick: Mapping[str, Sickness] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    unexpanded: tuple[str, ...] = ()

    def by_name(self) -> Mapping[str, Device]:
        """The devices by their name."""
        return {device.name: device for device in self.devices}


class CatalogReader:
    """Reads the catalog and tells whoever waits when it changed; safe for all threads."""

    def __init__(
        self,
        discovery: Discovery,
        node: Node | None,
        *,
        host: HostSizes | None = None,
        providers: Mapping[str, AttributeProvider] | None = None,
        tracker: CardHealthTracker | None = None,
        taint_effect: str = NO_SCHEDULE,
    ) -> None:
        """Reads nothing yet.

        Args:
            node: None if serve() tells later which; until then there is no catalog.
            host: Asked only if the pool expands memory into the host; None adds nothing.
            memory: What is known of the cards; None for one that forgets.
            taint_effect: Of an unhealthy device's taint; "" for no taint.
        """
        self._discovery = discovery
        self._providers = dict(providers or {})
        self._taint_effect = taint_effect
        self._expansion = Expansion(host)
        self._added = HostResources()
        # Guards _node, _memory, _expansion and _added; one catalog is built at a time.
        self._building = Lock()
        self._node = node
        self._tracker = tracker or CardHealthTracker()
        self._changed = Condition()  # guards _current
        self._current: Catalog | None = None

    def current(self) -> Catalog | None:
        """The catalog as last read; None if there was none yet, see awaited()."""
        with self._changed:
            return self._current

    def sick(self) -> Mapping[str, Sickness]:
        """The unhealthy devices by name; none as long as there is no catalog."""
        catalog = self.current()
        return catalog.sick if catalog else {}

    def refresh(self) -> bool:
        """Reads the cards; True if the catalog changed.

        Raises:
            RetryableError: They cannot be read now; the devices stay as they were, and become
                unhealthy if that goes on.
            FatalError: The driver was replaced, or the ledger is damaged.
        """
        try:
            inventory = self._discovery.read()
        except RetryableError as error:
            with self._building:
                self._tracker.failed(error)
                self._rebuild()
            raise
        with self._building:
            self._tracker.read(inventory)
            self._expand()
            return self._rebuild()

    def report(self, event: CardEvent) -> bool:
        """Takes in what the driver reported of a card; True if the catalog changed."""
        with self._building:
            return self._tracker.reported(event) and self._rebuild()

    def set_node(self, node: Node) -> bool:
        """The cards as last read belong to this node from now on; True if the catalog changed."""
        with self._building:
            self._node = node
            self._expand()
            return self._rebuild()

    def awaited(self) -> str:
        """Why there is no catalog yet."""
        with self._building:
            unread = self._tracker.visible() is None
        what = "GPUs could not be read" if unread else "GPUPool is not known"
        return f"this node's {what} yet"

    def wait_changed(
        self, seen: Catalog | None, *, seconds: float, stopped: Callable[[], bool]
    ) -> None:
        """Returns when the catalog is another than the one seen, after the time, or if stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._current != seen or stopped(), timeout=seconds)

    def wake_waiting(self) -> None:
        """Lets every waiting thread ask whether it is stopped."""
        with self._changed:
            self._changed.notify_all()

    def _expand(self) -> None:
        """Read again what the pool adds from the host; the caller holds _building."""
        if self._node is not None:
            self._added = self._expansion.read(self._node.oversubscription)

    def _rebuild(self) -> bool:
        """Makes the catalog of what is known; for those who hold _building."""
        cards = self._tracker.visible()
        if self._node is None or cards is None:
            return False
        known = self.current()
        catalog = self._catalog(cards, self._node)
        if catalog == known:
            return False
        _log_change(catalog, known)
        with self._changed:
            self._current = catalog
            self._changed.notify_all()
        return True

    def _catalog(self, cards: PublishedCards, node: Node) -> Catalog:
        valid: list[Device] = []
        left_out = list(cards.inventory.left_out)
        for device in devices.devices(cards.inventory, node, self._added):
            complete = self._with_provided(device, node)
            if (sickness := cards.sick.get(device.name)) is not None:
                complete = devices.unhealthy(complete, sickness, effect=self._taint_effect)
            reasons = slice_rules.device_violations(complete.as_api())
            if any(device.name == other.name for other in valid):
                reasons = (*reasons, "found a second card of this UUID, expected one")
            if reasons:
                left_out.append(LeftOut(subject=device.name, reason="; ".join(reasons)))
            else:
                valid.append(complete)
        return Catalog(
            node=node,
            devices=tuple(valid),
            left_out=tuple(left_out),
            sick=cards.sick,
            absent=cards.absent,
            unexpanded=self._expansion.missing,
        )

    def _with_provided(self, device: Device, node: Node) -> Device:
        for name, provider in self._providers.items():
            asked = _ask(provider, device.gpu, node, name=name)
            device = devices.with_attributes(device, _valid(name, device, asked))
        return device


def _ask(
    provider: AttributeProvider, gpu: Gpu, node: Node, *, name: str
) -> Mapping[str, AttributeValue]:
    try:
        return dict(provider(gpu, node))
    except Exception as error:  # noqa: BLE001 - somebody else's code; it costs its attributes only
        log.warning("attributes_left_out", provider=name, device=gpu.uuid, error=repr(error))
        return {}


def _valid(
    provider: str, device: Device, attributes: Mapping[str, AttributeValue]
) -> Iterable[tuple[str, AttributeValue]]:
    """The attributes that the device can carry, each checked by itself."""
    accepted: Device = device
    for key, value in attributes.items():
        reason = _refusal(accepted, key, value)
        if reason:
            log.warning(
                "attribute_left_out",
                provider=provider,
                device=device.name,
                attribute=str(key)[:100],
                error=reason,
            )
            continue
        accepted = devices.with_attributes(accepted, [(key, value)])
        yield key, value


def _refusal(device: Device, key: object, value: object) -> str | None:
    if not isinstance(key, str) or not isinstance(value, str | int | bool | devices.Version):
        return f"found {type(value).__name__}, expected a string, int, bool or Version"
    if key in device.attributes:
        return "this name is taken"
    trial: dict[str, Any] = devices.with_attributes(device, [(key, value)]).as_api()
    return "; ".join(slice_rules.device_violations(trial)) or None


def _log_change(catalog: Catalog, known: Catalog | None) -> None:
    log.info("gpus_read", devices=len(catalog.devices), left_out=len(catalog.left_out))
    told = known.left_out if known else ()
    for item in catalog.left_out:
        if item not in told:
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
