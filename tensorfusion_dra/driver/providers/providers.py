"""All providers of a node: they are asked at each reading, and give attributes and capacities."""

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
from tensorfusion_dra.core.devices.provided import Extended, Refusal
from tensorfusion_dra.core.devices.reading import Reading
from tensorfusion_dra.driver.providers.called import CalledProvider, Outcome
from tensorfusion_dra.driver.providers.registered import Kind, Registered
from tensorfusion_dra.extend import BUDGET_SECONDS

log = structlog.get_logger()

Offered = Mapping[object, object]

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
        given: Names by device.
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
    ) -> None:
        """Load nothing yet.

        Args:
            registered: In the order in which they give to a device.
            budget_seconds: Time of each for a round of calls.
        """
        self._wake: Callable[[], None] = _nothing
        every = tuple(registered)

        def of_kind(kind: Kind, call: Callable[..., Any]) -> tuple[CalledProvider[Any], ...]:
            return tuple(
                CalledProvider(each, call(each.name), budget_seconds=budget_seconds, wake=self.wake)
                for each in every
                if each.kind is kind
            )

        self._capacities = of_kind(Kind.CAPACITIES, _mapping_of)
        self._attributes = of_kind(Kind.ATTRIBUTES, _mapping_of)
        self._health = of_kind(Kind.HEALTH, _troubles_of)
        self._asked: Reading | None = None
        self._lock = Lock()  # guards _given
        self._given: Mapping[tuple[Kind, str], Mapping[str, Extended]] = {}
        self._logged: frozenset[tuple[str, str, str, str]] = frozenset()

    def on_wake(self, wake: Callable[[], None]) -> None:
        """Call this function whenever a provider has news."""
        self._wake = wake

    def wake(self) -> None:
        """Have the cards read soon."""
        self._wake()

    def troubles(self, inventory: Inventory) -> Mapping[str, Sequence[Trouble]]:
        """Ask the health sources; return the troubles of each card by GPU UUID."""
        reading = Reading(inventory=inventory)
        found: dict[str, tuple[Trouble, ...]] = {}
        for source in self._health:
            source.begin(reading)
        for source in self._health:
            for uuid, troubles in source.answers(reading).items():
                found[uuid] = (*found.get(uuid, ()), *troubles)
        return found

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
        given: dict[tuple[Kind, str], Mapping[str, Extended]] = {}
        for kind, providers in (
            (Kind.CAPACITIES, self._capacities),
            (Kind.ATTRIBUTES, self._attributes),
        ):
            givers: dict[str, dict[str, str]] = {}  # by device
            for provider in providers:
                answers = provider.answers(reading) if anew else provider.last(reading)
                extended = [
                    _extended(kind, device, answers, provider.registered, givers)
                    for device in built
                ]
                given[kind, provider.registered.name] = {
                    each.device.name: each for each in extended
                }
                built = [each.device for each in extended]
        with self._lock:
            self._given = given
        self._log_refusals(given)
        return tuple(built)

    def reports(self) -> Sequence[Report]:
        """Return what each provider gave at the last reading, in the order in which they give."""
        with self._lock:
            given = self._given
        return [
            _report(each, given.get((each.registered.kind, each.registered.name), {}))
            for each in (*self._attributes, *self._capacities, *self._health)
        ]

    def close(self) -> None:
        """End the providers' threads."""
        for each in (*self._attributes, *self._capacities, *self._health):
            each.close()

    def _log_refusals(self, given: Mapping[tuple[Kind, str], Mapping[str, Extended]]) -> None:
        """Log each refusal once, until it is over."""
        found = frozenset(
            (name, device, refusal.name, refusal.reason)
            for (_, name), by_device in given.items()
            for device, extended in by_device.items()
            for refusal in extended.refused
        )
        for name, device, refused, reason in sorted(found - self._logged):
            log.warning(
                "attribute_left_out", provider=name, device=device, attribute=refused, error=reason
            )
        self._logged = found


def _extended(
    kind: Kind,
    device: Device,
    answers: Mapping[str, Offered],
    registered: Registered,
    givers: dict[str, dict[str, str]],
) -> Extended:
    offered = answers.get(device.gpu.uuid, {})
    known = givers.setdefault(device.name, {})
    if registered.is_own:
        extended = provided.with_own(device, offered)
    elif kind is Kind.ATTRIBUTES:
        extended = provided.with_attributes(device, offered, known)
    else:
        extended = provided.with_capacities(device, offered, known)
    known.update(dict.fromkeys(extended.given, registered.name))
    return extended


def _report(called: CalledProvider[Any], given: Mapping[str, Extended]) -> Report:
    return Report(
        registered=called.registered,
        outcome=called.outcome,
        given={name: each.given for name, each in given.items() if each.given},
        refused={name: each.refused for name, each in given.items() if each.refused},
    )


def _mapping_of(_name: str) -> Callable[[Any, Gpu, Reading], Offered]:
    def call(provider: Any, gpu: Gpu, reading: Reading) -> Offered:
        answer = provider(gpu, reading.node)
        if not isinstance(answer, Mapping):
            raise TypeError(f"found {type(answer).__name__}, expected a mapping by name")
        return dict(answer)

    return call


def _troubles_of(name: str) -> Callable[[Any, Gpu, Reading], tuple[Trouble, ...]]:
    def call(source: Any, gpu: Gpu, _reading: Reading) -> tuple[Trouble, ...]:
        return health_sources.troubles(source(gpu), source=name)

    return call


def _nothing() -> None: ...
