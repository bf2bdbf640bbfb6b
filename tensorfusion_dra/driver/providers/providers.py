"""Attributes, capacities and health of the node's cards by packages beside the driver."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices import provider_answers
from tensorfusion_dra.core.devices.device import Device, Reading
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory
from tensorfusion_dra.core.devices.health import Trouble
from tensorfusion_dra.core.devices.provider_answers import Offer, Refusal
from tensorfusion_dra.driver.providers.provider_runner import Outcome, ProviderRunner, State
from tensorfusion_dra.driver.providers.third_party import Kind, Registered
from tensorfusion_dra.extend import BUDGET_SECONDS

log = structlog.get_logger()

_KINDS: Final = (Kind.ATTRIBUTES, Kind.CAPACITIES, Kind.HEALTH)
_NOTHING: Final = Offer()


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

    One thread at a time calls troubles(), and one at a time extended(); any may call wake().
    """

    def __init__(
        self,
        registered: Iterable[Registered] = (),
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
        self._wake: Callable[[], None] = lambda: None
        self._registered = tuple(registered)
        self._runners: dict[Kind, list[ProviderRunner[Any]]] = {kind: [] for kind in _KINDS}
        for each in self._registered:
            if not each.unused:
                runner = ProviderRunner(
                    each, _call(each), budget_seconds=budget_seconds, wake=self.wake, clock=clock
                )
                self._runners[each.kind].append(runner)
        self._asked: Reading | None = None
        self._reports: dict[Registered, Report] = {}
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
        sources = self._runners[Kind.HEALTH]
        for source in sources:
            source.start(reading)
        by_source = {source: source.answers() for source in sources}
        for source, answers in by_source.items():
            self._reports[source.registered] = Report(
                registered=source.registered,
                outcome=source.outcome,
                given={
                    devices.device_name(gpu.uuid): [each.reason for each in answers[gpu.uuid]]
                    for gpu in inventory.gpus
                    if answers.get(gpu.uuid)
                },
            )
        found = {
            gpu.uuid: [each for answers in by_source.values() for each in answers.get(gpu.uuid, ())]
            for gpu in inventory.gpus
        }
        return {
            uuid: troubles
            for uuid, troubles in found.items()
            if troubles or all(uuid in answers for answers in by_source.values())
        }

    def extended(
        self, built: Sequence[Device], reading: Reading, *, anew: bool = True
    ) -> tuple[Device, ...]:
        """Return the devices with what the providers give.

        Args:
            built: The driver's own device of each card.
            reading: With the node.
            anew: False to call none if the reading equals the last one.
        """
        # Capacities take the room of a device before attributes do.
        runners = (*self._runners[Kind.CAPACITIES], *self._runners[Kind.ATTRIBUTES])
        if anew or reading != self._asked:
            self._asked = reading
            # All at the same time, so that several that hang take no longer than one.
            for runner in runners:
                runner.start(reading)
        givers: dict[tuple[Kind, str], dict[str, str]] = {}
        refused: set[tuple[Registered, str, Refusal]] = set()
        for runner in runners:
            registered, offers = runner.registered, runner.answers()
            extended = []
            for device in built:
                taken = givers.setdefault((registered.kind, device.name), {})
                offer = offers.get(device.gpu.uuid, _NOTHING)
                each = provider_answers.extended(device, offer, taken)
                taken.update(dict.fromkeys(each.given, registered.name))
                extended.append(each)
            built = [each.device for each in extended]
            self._reports[registered] = Report(
                registered=registered,
                outcome=runner.outcome,
                given={each.device.name: each.given for each in extended if each.given},
                refused={each.device.name: each.refused for each in extended if each.refused},
            )
            refused |= {
                (registered, each.device.name, refusal)
                for each in extended
                for refusal in each.refused
            }
        self._log_refusals(frozenset(refused))
        return tuple(built)

    def reports(self) -> Sequence[Report]:
        """Return what each provider gave at the last reading, in the order in which they give."""
        return [
            self._reports.get(each)
            or Report(
                registered=each, outcome=Outcome(state=State.UNUSED if each.unused else State.NEW)
            )
            for kind in _KINDS
            for each in self._registered
            if each.kind is kind
        ]

    def close(self) -> None:
        """End the providers' threads."""
        for runners in self._runners.values():
            for each in runners:
                each.close()

    def _log_refusals(self, found: frozenset[tuple[Registered, str, Refusal]]) -> None:
        """Log each refusal once, until it is over."""
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


def _call(registered: Registered) -> Callable[[Any, Gpu, Reading], Any]:
    """Return how a provider of this kind is called for one card, and its answer checked."""
    match registered.kind:
        case Kind.ATTRIBUTES:
            return lambda p, gpu, reading: provider_answers.attributes(p(gpu, reading.node))
        case Kind.CAPACITIES:
            return lambda p, gpu, reading: provider_answers.capacities(p(gpu, reading.node))
        case _:
            name = registered.name
            return lambda p, gpu, _reading: provider_answers.troubles(p(gpu), source=name)
