"""Providers of other packages: attributes, capacities and health of the node's cards.

Providers calls all of them and extends the devices; ProviderRunner calls one, in a thread of its
own and within its time, and keeps its last good answers. That class is the only place that calls a
provider. A round of calls is `begin`, if it has that method, and then one call for each card. What
it raises or answers wrongly costs its own part alone.

States, as `inspect --providers` shows them:

- new: not called yet.
- ok: the last round answered for every card.
- failed: it cannot be loaded or begun, or a call for one card raised an exception.
- late: the last round did not return within the budget. The provider is not called again until it
  has returned; what it then returns counts, and it is late until a round is in time.
- unused: disabled, or its name is taken.

Example: a provider answers for two cards, then hangs. The reading waits for the budget once, and
the driver keeps using the two answers. The next readings find it hanging and do not wait. The first
one after its return takes the other answers that it returned.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import structlog

from tensorfusion_dra.core import printable
from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices import provider_answers
from tensorfusion_dra.core.devices.device import Device, Reading
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory
from tensorfusion_dra.core.devices.health import Trouble
from tensorfusion_dra.core.devices.provider_answers import (
    Offer,
    Refusal,
    attribute,
    capacity,
    offered,
)
from tensorfusion_dra.extend import BUDGET_SECONDS, Begins, Listens
from tensorfusion_dra.runtime.single_call_thread import SingleCallThread

if TYPE_CHECKING:
    from concurrent.futures import Future

log = structlog.get_logger()


class ProviderKind(StrEnum):
    """Kinds of what a package can add."""

    ATTRIBUTES = "attributes"
    CAPACITIES = "capacities"
    HEALTH = "health"
    ENFORCER = "enforcer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A provider or enforcer that can be loaded.

    Attributes:
        name: Name of its entry point.
        package: Name and version of its distribution; "" for the driver's own.
        load: Imports it and returns it; raises anything.
        unused: Why it is never loaded; "" if it is.
    """

    kind: ProviderKind
    name: str
    load: Callable[[], object]
    package: str = ""
    unused: str = ""

    @property
    def log_fields(self) -> Mapping[str, str]:
        """Whose it is, for the log."""
        return {"kind": self.kind.value, "provider": self.name, "package": self.package}


T = TypeVar("T")


class State(StrEnum):
    """States of a provider."""

    NEW = "new"
    OK = "ok"
    FAILED = "failed"
    LATE = "late"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the last round of calls went.

    Attributes:
        seconds: Time of the last round that returned; None before the first.
        errors: Error by GPU UUID; by "" for the provider as a whole.
    """

    state: State
    seconds: float | None = None
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """What a round of calls returned; answers and errors are by GPU UUID."""

    answers: Mapping[str, Any]
    errors: Mapping[str, str]
    began: float
    ended: float


class ProviderRunner(Generic[T]):
    """One provider of another package with its last good answers; used by one thread at a time."""

    def __init__(
        self,
        registered: Registered,
        call: Callable[[Any, Gpu, Reading], T],
        *,
        budget_seconds: float,
        wake: Callable[[], None],
    ) -> None:
        """Load nothing yet.

        Args:
            registered: The provider.
            call: Calls it for one card and returns its answer, checked; raises anything.
            budget_seconds: Time for a round of calls.
            wake: Has the cards read soon; passed to a provider that listens.
        """
        self.registered = registered
        self.outcome = Outcome(state=State.NEW)
        self._call = call
        self._budget_seconds = budget_seconds
        self._late_text = (
            f"no answer within {budget_seconds:g} s; the last good answers remain in use"
        )
        self._wake = wake
        self._thread = SingleCallThread(f"provider-{registered.name}")
        self._provider: Any = None  # of that thread alone
        self._running: Future[_Round] | None = None
        self._late_at = 0.0
        self._good: Mapping[str, T] = {}  # by GPU UUID
        self._logged: frozenset[str] = frozenset()

    def start(self, reading: Reading) -> None:
        """Have the provider called for each card, unless it is still in an earlier round."""
        self.answers()
        if self._running is None:
            self._late_at = time.monotonic() + self._budget_seconds
            self._running = self._thread.submit(partial(self._round, reading))

    def answers(self) -> Mapping[str, T]:
        """Return its good answers by GPU UUID; wait for a round within its time.

        A card without a good answer so far is missing.
        """
        if self._running is not None:
            try:
                returned = self._running.result(max(0.0, self._late_at - time.monotonic()))
            except TimeoutError:
                self._note(State.LATE, self.outcome.seconds, {"": self._late_text})
            else:
                self._running = None
                self._take(returned)
        return self._good

    def close(self) -> None:
        """End the thread; one that hangs is left behind and ends with the process."""
        self._thread.close(wait_seconds=0.0)

    def _round(self, reading: Reading) -> _Round:
        began = time.monotonic()
        answers: dict[str, T] = {}
        errors: dict[str, str] = {}
        try:
            provider = self._loaded()
            if isinstance(provider, Begins):
                provider.begin(reading)
        except BaseException as error:  # noqa: BLE001 - code of another package
            errors[""] = printable.error_text(error)
        else:
            for gpu in reading.gpus:
                try:
                    answers[gpu.uuid] = self._call(provider, gpu, reading)
                except BaseException as error:  # noqa: BLE001 - as above
                    errors[gpu.uuid] = printable.error_text(error)
        return _Round(answers=answers, errors=errors, began=began, ended=time.monotonic())

    def _loaded(self) -> Any:
        """Return the provider; import it before the first call."""
        if self._provider is None:
            found = self.registered.load()
            provider = found() if isinstance(found, type) else found
            if not callable(provider):
                raise TypeError(f"found {type(provider).__name__}, expected a callable")
            if isinstance(provider, Listens):
                provider.listen(self._wake)
            self._provider = provider
            log.info("provider_loaded", **self.registered.log_fields)
        return self._provider

    def _take(self, returned: _Round) -> None:
        errors = dict(returned.errors)
        state = State.FAILED if errors else State.OK
        if returned.ended >= self._late_at:
            state, errors = State.LATE, {"": self._late_text, **errors}
        self._good = {**self._good, **returned.answers}
        self._note(state, returned.ended - returned.began, errors)

    def _note(self, state: State, seconds: float | None, errors: Mapping[str, str]) -> None:
        """Keep the outcome; log each error once, until all are over."""
        self.outcome = Outcome(state=state, seconds=seconds, errors=errors)
        texts = frozenset(errors.values())
        for error in sorted(texts - self._logged):
            log.warning("provider_failed", **self.registered.log_fields, error=error)
        if self._logged and not texts:
            log.info("provider_recovered", **self.registered.log_fields)
        self._logged = texts


_KINDS: Final = (ProviderKind.ATTRIBUTES, ProviderKind.CAPACITIES, ProviderKind.HEALTH)
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

    One thread at a time calls troubles(), and one at a time extended().

    Attributes:
        wake: Called, from any thread, when a provider has news.
    """

    def __init__(
        self,
        registered: Iterable[Registered] = (),
        *,
        budget_seconds: float = BUDGET_SECONDS,
    ) -> None:
        """Load nothing yet.

        Args:
            registered: In the order in which they give to a device.
            budget_seconds: Time of each for a round of calls.
        """
        self.wake: Callable[[], None] = lambda: None
        self._registered = tuple(registered)
        self._runners: dict[ProviderKind, list[ProviderRunner[Any]]] = {kind: [] for kind in _KINDS}
        for each in self._registered:
            if not each.unused:
                runner = ProviderRunner(
                    each,
                    _call(each),
                    budget_seconds=budget_seconds,
                    wake=lambda: self.wake(),  # noqa: PLW0108  it is set later
                )
                self._runners[each.kind].append(runner)
        self._asked: Reading | None = None
        self._reports: dict[Registered, Report] = {}
        # Each refusal is logged once, until it is over.
        self._logged: set[tuple[Registered, str, Refusal]] = set()

    def troubles(self, inventory: Inventory) -> Mapping[str, Sequence[Trouble]]:
        """Ask the health sources; return the troubles of each card by GPU UUID.

        A card without troubles is missing if a source has never answered for it.
        """
        reading = Reading(inventory=inventory)
        sources = self._runners[ProviderKind.HEALTH]
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
        self, built: Sequence[Device], reading: Reading, *, call_again: bool = True
    ) -> tuple[Device, ...]:
        """Return the devices with what the providers give.

        Args:
            built: The driver's own device of each card.
            reading: With the node.
            call_again: False to call none if the reading equals the last one.
        """
        # Capacities take the room of a device before attributes do.
        runners = (*self._runners[ProviderKind.CAPACITIES], *self._runners[ProviderKind.ATTRIBUTES])
        if call_again or reading != self._asked:
            self._asked = reading
            # All at the same time, so that several that hang take no longer than one.
            for runner in runners:
                runner.start(reading)
        givers: dict[tuple[ProviderKind, str], dict[str, str]] = {}
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
        for registered, name, refusal in sorted(
            refused - self._logged, key=lambda each: (each[0].name, each[1], each[2].name)
        ):
            log.warning(
                "attribute_left_out",
                **registered.log_fields,
                device=name,
                attribute=refusal.name,
                error=refusal.reason,
            )
        self._logged = refused
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


def _call(registered: Registered) -> Callable[[Any, Gpu, Reading], Any]:
    """Return how a provider of this kind is called for one card, and its answer checked."""
    match registered.kind:
        case ProviderKind.ATTRIBUTES:
            return lambda p, gpu, reading: offered(p(gpu, reading.node), attribute)
        case ProviderKind.CAPACITIES:
            return lambda p, gpu, reading: offered(p(gpu, reading.node), capacity)
        case _:
            name = registered.name
            return lambda p, gpu, _reading: provider_answers.troubles(p(gpu), source=name)
