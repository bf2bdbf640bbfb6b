"""All providers of a node: they are asked at each reading, and give attributes and capacities."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import structlog

from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices import health_sources, provided
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.driver_providers import DriverAttributes, DriverCapacities
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory
from tensorfusion_dra.core.devices.health import Trouble
from tensorfusion_dra.core.devices.health_sources import RecoveryActions
from tensorfusion_dra.core.devices.provided import Extended, Offer, Refusal
from tensorfusion_dra.core.devices.reading import Reading
from tensorfusion_dra.driver.providers.called import CalledProvider, Outcome
from tensorfusion_dra.driver.providers.registered import Kind, Registered
from tensorfusion_dra.extend import BUDGET_SECONDS

log = structlog.get_logger()

Called = CalledProvider[Any]
Given = Mapping[Called, Mapping[str, Extended]]
"""What each provider gave at a reading, by device."""

OWN: Final = (
    Registered(kind=Kind.ATTRIBUTES, name="driver", load=lambda: DriverAttributes),
    Registered(kind=Kind.CAPACITIES, name="driver", load=lambda: DriverCapacities),
    Registered(kind=Kind.HEALTH, name="nvml", load=lambda: RecoveryActions),
)
"""The driver's own providers; their names are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one provider gave at the last reading.

    Attributes:
        given: Names by device; of a health source the reasons of its problems.
        refused: Names that a device does not have from it, by device.
    """

    registered: Registered
    outcome: Outcome
    given: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refused: Mapping[str, Sequence[Refusal]] = field(default_factory=dict)


class Providers:
    """The node's providers of attributes and capacities, and its health sources.

    Used by one thread at a time, except for reports() and wake().
    """

    def __init__(
        self,
        registered: Iterable[Registered] = OWN,
        *,
        budget_seconds: float = BUDGET_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load nothing yet.

        Args:
            registered: In the order in which they give to a device.
            budget_seconds: Time of each for a round of calls.
            clock: In seconds; for how often answers change.
        """
        self._wake: Callable[[], None] = _nothing
        every = tuple(registered)

        def of_kind(kind: Kind, call: Callable[[Registered], Any]) -> tuple[Called, ...]:
            return tuple(
                CalledProvider(
                    each, call(each), budget_seconds=budget_seconds, wake=self.wake, clock=clock
                )
                for each in every
                if each.kind is kind
            )

        self._capacities = of_kind(Kind.CAPACITIES, _offer_of)
        self._attributes = of_kind(Kind.ATTRIBUTES, _offer_of)
        self._health = of_kind(Kind.HEALTH, _troubles_of)
        self._asked: Reading | None = None
        self._lock = Lock()  # guards _given and _reasons
        self._given: Given = {}
        self._reasons: Mapping[Called, Mapping[str, Sequence[str]]] = {}
        self._logged: frozenset[tuple[Registered, str, Refusal]] = frozenset()

    def on_wake(self, wake: Callable[[], None]) -> None:
        """Call this function whenever a provider has news."""
        self._wake = wake

    def wake(self) -> None:
        """Have the cards read soon."""
        self._wake()

    def troubles(self, inventory: Inventory) -> Mapping[str, Sequence[Trouble]]:
        """Ask the health sources; return the troubles of each card by GPU UUID.

        A card without troubles is missing if a source has never answered for it.
        """
        reading = Reading(inventory=inventory)
        found: dict[str, tuple[Trouble, ...]] = {gpu.uuid: () for gpu in inventory.gpus}
        unanswered: set[str] = set()
        reasons: dict[Called, dict[str, Sequence[str]]] = {}
        for source in self._health:
            source.begin(reading)
        for source in self._health:
            answers = source.answers(reading)
            if not source.registered.unused:
                unanswered |= found.keys() - answers.keys()
            for uuid, troubles in answers.items():
                found[uuid] = (*found[uuid], *troubles)
                if troubles:
                    device = devices.device_name(uuid)
                    reasons.setdefault(source, {})[device] = [each.reason for each in troubles]
        with self._lock:
            self._reasons = reasons
        return {uuid: each for uuid, each in found.items() if each or uuid not in unanswered}

    def devices(self, reading: Reading, *, anew: bool = True) -> tuple[Device, ...]:
        """Return the device of each card, with all that the providers give.

        Args:
            reading: With the node.
            anew: False to call none if the reading equals the last one.
        """
        anew = anew or reading != self._asked
        self._asked = reading
        if anew:
            # All at the same time, so that several that hang take no longer than one.
            for provider in (*self._capacities, *self._attributes):
                provider.begin(reading)
        built = [devices.bare(gpu) for gpu in reading.gpus]
        given: dict[Called, Mapping[str, Extended]] = {}
        for providers in (self._capacities, self._attributes):
            givers: dict[str, dict[str, str]] = {each.name: {} for each in built}
            for provider in providers:
                offers = provider.answers(reading) if anew else provider.last(reading)
                extended = [
                    provided.extended(
                        each, offers.get(each.gpu.uuid, provided.NOTHING), givers[each.name]
                    )
                    for each in built
                ]
                for each in extended:
                    givers[each.device.name].update(
                        dict.fromkeys(each.given, provider.registered.name)
                    )
                given[provider] = {each.device.name: each for each in extended}
                built = [each.device for each in extended]
        with self._lock:
            self._given = given
        self._log_refusals(given)
        return tuple(built)

    def reports(self) -> Sequence[Report]:
        """Return what each provider gave at the last reading, in the order in which they give."""
        with self._lock:
            given, reasons = self._given, self._reasons
        return [
            *(
                _report(each, given.get(each, {}))
                for each in (*self._attributes, *self._capacities)
            ),
            *(
                Report(
                    registered=each.registered, outcome=each.outcome, given=reasons.get(each, {})
                )
                for each in self._health
            ),
        ]

    def close(self) -> None:
        """End the providers' threads."""
        for each in (*self._attributes, *self._capacities, *self._health):
            each.close()

    def _log_refusals(self, given: Given) -> None:
        """Log each refusal once, until it is over."""
        found = frozenset(
            (provider.registered, device, refusal)
            for provider, by_device in given.items()
            for device, extended in by_device.items()
            for refusal in extended.refused
        )
        for registered, device, refusal in sorted(
            found - self._logged, key=lambda each: (each[0].name, each[1], each[2].name)
        ):
            log.warning(
                "attribute_left_out",
                **registered.log_fields,
                device=device,
                attribute=refusal.name,
                error=refusal.reason,
            )
        self._logged = found


def _report(called: Called, given: Mapping[str, Extended]) -> Report:
    return Report(
        registered=called.registered,
        outcome=called.outcome,
        given={name: each.given for name, each in given.items() if each.given},
        refused={name: each.refused for name, each in given.items() if each.refused},
    )


def _offer_of(registered: Registered) -> Callable[[Any, Gpu, Reading], Offer]:
    checked: Callable[[Any], Offer]
    if registered.is_own:
        checked = provided.own
    elif registered.kind is Kind.ATTRIBUTES:
        checked = provided.attributes
    else:
        checked = provided.capacities
    return lambda provider, gpu, reading: checked(provider(gpu, reading.node))


def _troubles_of(registered: Registered) -> Callable[[Any, Gpu, Reading], tuple[Trouble, ...]]:
    if registered.is_own:
        return lambda source, gpu, _reading: tuple(source(gpu))
    return lambda source, gpu, _reading: health_sources.troubles(
        source(gpu), source=registered.name
    )


def _nothing() -> None: ...
