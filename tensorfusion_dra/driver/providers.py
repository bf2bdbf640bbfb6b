"""Providers of other packages: attributes, capacities and health of the node's cards.

Providers calls all of them and extends the devices; ProviderRunner calls one, in a thread of its
own and within its time, and keeps its last good answers. That class is the only place that calls a
provider. A round of calls is `begin`, if it has that method, and then one call for each card. What
it raises or answers wrongly costs its own part alone.

States, as `inspect --providers` shows them:

- new: not called yet.
- ok: the last round answered for every card.
- failed: it cannot be loaded or begun, or a call for one card raised an exception.
- refused: the last round answered, but no device has any of the names that it gave.
- late: the last round did not return within the budget. The provider is not called again until it
  has returned; what it then returns counts, and it is late until a round is in time.
- unused: disabled, or its name is taken.

Example: a provider answers for two cards, then hangs. The reading waits for the budget once, and
the driver keeps using the two answers. The next readings find it hanging and do not wait. The first
reading after its return uses the other answers.

Attributes and capacities take two steps. An answer is checked on its own: each name and value
against the API's rules, so that one that the API server would refuse costs only itself. Then
devices get what was offered, one provider after the other. A device has its taints and the driver's
own attributes by then, and no offer changes them:

- A name has the domain of its package. Names of the driver's domain, with it or without, and those
  of Kubernetes are the driver's alone: a later release may publish one.
- The first provider to give a name wins; the later ones are refused.
- Within one provider names are taken in alphabetical order. A device has room for 32 attributes and
  capacities together (DeviceMaxAttributesAndCapacities); docs/extend.md has how many are left.

Example: `alpha` and `beta` both give example.com/rack. The device has alpha's value, and the
refusal of beta's says so.

A health source answers with the problems that exist now. A problem makes its card unhealthy at
once; the card recovers by the rules of core/devices/health.py, some time after the source stopped
reporting it. So a source need not remember anything.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.devices.capacity import Capacity
from tensorfusion_dra.core.devices.device import (
    AttributeValue,
    Device,
    Reading,
    Version,
    attribute_as_api,
)
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory, device_name
from tensorfusion_dra.core.devices.health import HealthProblem, Problem, ProblemKind
from tensorfusion_dra.core.kubernetes import device_rules, name_rules, quantity
from tensorfusion_dra.core.kubernetes.field_errors import FieldError
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.extend import BUDGET_SECONDS, Begins, Listens
from tensorfusion_dra.runtime.single_call_thread import SingleCallThread

if TYPE_CHECKING:
    from concurrent.futures import Future

log = structlog.get_logger()

_OWN_DOMAINS: Final = frozenset({"", names.DRIVER, names.ATTR_PCIE_ROOT.partition("/")[0]})
"""Domains of the driver's own names, and of those that Kubernetes defines for all drivers.

Kubernetes takes a name without a domain for one of the driver's domain.
"""
_MAX_NAMES: Final = 100
"""Beyond this an answer is an error, because each name that is refused is a line in the log."""
_MAX_NAME: Final = 100
_MAX_PROBLEM_TEXT: Final = 256
_MAX_PROBLEMS: Final = 16


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
        """Kind, name and package, for the log."""
        return {"kind": self.kind.value, "provider": self.name, "package": self.package}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Offer of one provider to one device.

    Attributes:
        entries: By name, in the order in which the device takes them.
        refused: Why no device can have a name, by name.
    """

    entries: Mapping[str, AttributeValue | Capacity] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """A device with what one provider gave.

    Attributes:
        given: Names that the device has from this provider.
        refused: Why it does not have a name, by name.
    """

    device: Device
    given: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """No device can have this name or value; the text says why."""


class ProviderState(StrEnum):
    """States of a provider."""

    NEW = "new"
    OK = "ok"
    FAILED = "failed"
    REFUSED = "refused"
    LATE = "late"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOutcome:
    """Outcome of the last round of calls.

    Attributes:
        seconds: Time of the last round that returned; None before the first.
        errors: Error by GPU UUID; by "" for the provider as a whole.
    """

    state: ProviderState
    seconds: float | None = None
    errors: Mapping[str, str] = field(default_factory=dict)


class ProviderRunner:
    """One provider of another package with its last good answers; used by one thread at a time."""

    def __init__(
        self,
        registered: Registered,
        *,
        budget_seconds: float,
        wake: Callable[[], None],
    ) -> None:
        """Args:
        registered: The provider.
        budget_seconds: Time for a round of calls.
        wake: Has the cards read soon; passed to a provider that listens.
        """
        self.registered = registered
        self.outcome = ProviderOutcome(state=ProviderState.NEW)
        self._budget_seconds = budget_seconds
        self._late_text = (
            f"no answer within {budget_seconds:g} s; the last good answers remain in use"
        )
        self._wake = wake
        self._thread = SingleCallThread(f"provider-{registered.name}")
        self._provider: Any = None  # of that thread alone
        self._running: Future[Mapping[str, Any]] | None = None  # returns answers by GPU UUID
        self._errors: dict[str, str] = {}  # of the last round, by GPU UUID
        self._began = self._ended = 0.0
        self._late_at = 0.0
        self._good: Mapping[str, Any] = {}  # by GPU UUID
        self._logged: frozenset[str] = frozenset()

    def start(self, reading: Reading) -> None:
        """Start a round of calls for each card, unless an earlier one is still running."""
        self.answers()
        if self._running is None:
            self._late_at = time.monotonic() + self._budget_seconds
            self._running = self._thread.submit(partial(self._round, reading))

    def answers(self) -> Mapping[str, Any]:
        """Return its good answers by GPU UUID; wait for a round within its time.

        A card without a good answer so far is missing.
        """
        if self._running is not None:
            try:
                answers = self._running.result(max(0.0, self._late_at - time.monotonic()))
            except TimeoutError:
                self._record(ProviderState.LATE, self.outcome.seconds, {"": self._late_text})
            else:
                self._running = None
                self._good = {**self._good, **answers}
                errors, state = self._errors, ProviderState.OK
                if self._ended >= self._late_at:
                    errors, state = {"": self._late_text, **errors}, ProviderState.LATE
                elif errors:
                    state = ProviderState.FAILED
                self._record(state, self._ended - self._began, errors)
        return self._good

    def _round(self, reading: Reading) -> Mapping[str, Any]:
        self._began, self._errors = time.monotonic(), {}
        answers: dict[str, Any] = {}
        try:
            provider = self._loaded()
            if isinstance(provider, Begins):
                provider.begin(reading)
        except BaseException as error:  # noqa: BLE001 - code of another package
            self._errors[""] = printable.error_text(error)
        else:
            for gpu in reading.gpus:
                try:
                    answers[gpu.uuid] = self._answer(provider, gpu, reading)
                except BaseException as error:  # noqa: BLE001 - as above
                    self._errors[gpu.uuid] = printable.error_text(error)
        self._ended = time.monotonic()
        return answers

    def _answer(self, provider: Any, gpu: Gpu, reading: Reading) -> object:
        """Call the provider for one card; return its answer, checked."""
        match self.registered.kind:
            case ProviderKind.ATTRIBUTES:
                return offered(provider(gpu, reading.node), attribute)
            case ProviderKind.CAPACITIES:
                return offered(provider(gpu, reading.node), capacity)
            case _:
                return problems(provider(gpu), source=self.registered.name)

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

    def _record(
        self, state: ProviderState, seconds: float | None, errors: Mapping[str, str]
    ) -> None:
        """Keep the outcome; log each error once, until all are over."""
        self.outcome = ProviderOutcome(state=state, seconds=seconds, errors=errors)
        texts = frozenset(errors.values())
        for error in sorted(texts - self._logged):
            log.warning("provider_failed", **self.registered.log_fields, error=error)
        if self._logged and not texts:
            log.info("provider_recovered", **self.registered.log_fields)
        self._logged = texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report on one provider: what it gave at the last reading.

    Attributes:
        given: Names by device; of a health source the reasons of its problems.
        refused: Why a device does not have a name from it, by name, by device.
    """

    registered: Registered
    outcome: ProviderOutcome
    given: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def state(self) -> ProviderState:
        """State of the provider; REFUSED if no device has any of its names."""
        is_useless = self.refused and not self.given and self.outcome.state is ProviderState.OK
        return ProviderState.REFUSED if is_useless else self.outcome.state


class Providers:
    """The node's providers of attributes and capacities, and its health sources.

    One thread at a time calls problems(), and one at a time extended().
    """

    def __init__(
        self,
        registered: Iterable[Registered] = (),
        *,
        budget_seconds: float = BUDGET_SECONDS,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        registered: In the order in which they give to a device.
        budget_seconds: Time of each for a round of calls.
        wake: Has the cards read soon; called, from any thread, when a provider has news.
        """
        # Capacities take the room of a device before attributes do.
        order = (ProviderKind.HEALTH, ProviderKind.CAPACITIES, ProviderKind.ATTRIBUTES)
        self._registered = sorted(registered, key=lambda each: order.index(each.kind))
        used = [each for each in self._registered if not each.unused]
        runners = [ProviderRunner(each, budget_seconds=budget_seconds, wake=wake) for each in used]
        self._sources = [each for each in runners if each.registered.kind is ProviderKind.HEALTH]
        self._extending = [
            each for each in runners if each.registered.kind is not ProviderKind.HEALTH
        ]
        self._asked: Reading | None = None
        self._reports: dict[Registered, Report] = {}
        # Each refusal is logged once, until it is over.
        self._logged: set[tuple[Registered, str, str, str]] = set()

    def problems(self, inventory: Inventory) -> Mapping[str, Sequence[HealthProblem]]:
        """Ask the health sources; return the problems of each card by GPU UUID.

        A card without problems is missing if a source has never answered for it.
        """
        reading = Reading(inventory=inventory)
        for source in self._sources:
            source.start(reading)
        by_source = {source: source.answers() for source in self._sources}
        for source, answers in by_source.items():
            self._reports[source.registered] = Report(
                registered=source.registered,
                outcome=source.outcome,
                given={
                    device_name(gpu.uuid): [each.reason for each in answers[gpu.uuid]]
                    for gpu in inventory.gpus
                    if answers.get(gpu.uuid)
                },
            )
        found = {
            gpu.uuid: [each for answers in by_source.values() for each in answers.get(gpu.uuid, ())]
            for gpu in inventory.gpus
        }
        return {
            uuid: problems
            for uuid, problems in found.items()
            if problems or all(uuid in answers for answers in by_source.values())
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
        if call_again or reading != self._asked:
            self._asked = reading
            # All at the same time, so that several that hang take no longer than one.
            for runner in self._extending:
                runner.start(reading)
        given_by: dict[tuple[ProviderKind, str], dict[str, str]] = {}
        refused: set[tuple[Registered, str, str, str]] = set()
        for runner in self._extending:
            registered, offers = runner.registered, runner.answers()
            extended = []
            for device in built:
                taken = given_by.setdefault((registered.kind, device.name), {})
                each = extended_device(device, offers.get(device.gpu.uuid, Offer()), taken)
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
                (registered, each.device.name, name, reason)
                for each in extended
                for name, reason in each.refused.items()
            }
        for registered, subject, name, reason in sorted(
            refused - self._logged, key=lambda each: (each[0].name, *each[1:3])
        ):
            log.warning(
                "attribute_left_out",
                **registered.log_fields,
                device=subject,
                attribute=name,
                error=reason,
            )
        self._logged = refused
        return tuple(built)

    def reports(self) -> Sequence[Report]:
        """Return a report on each provider at the last reading, by kind and then in their order."""
        return [
            self._reports.get(each)
            or Report(
                registered=each,
                outcome=ProviderOutcome(
                    state=ProviderState.UNUSED if each.unused else ProviderState.NEW
                ),
            )
            for each in sorted(self._registered, key=lambda each: each.kind)
        ]


def offered(answer: object, checked: Callable[[object], AttributeValue | Capacity]) -> Offer:
    """Return the attributes or capacities in an answer that a device can have.

    Args:
        answer: What the provider returned.
        checked: attribute() or capacity().

    Raises:
        TypeError: It is no mapping.
        ValueError: It has over 100 names.
    """
    if not isinstance(answer, Mapping):
        raise TypeError(f"found {type(answer).__name__}, expected a mapping by name")
    if len(answer) > _MAX_NAMES:
        raise ValueError(f"found {len(answer)} names, expected at most {_MAX_NAMES}")
    entries: dict[str, AttributeValue | Capacity] = {}
    refused: dict[str, str] = {}
    for name, value in sorted(answer.items(), key=lambda item: str(item[0])):
        try:
            entries[_name(name)] = checked(value)
        except RefusedError as error:
            refused[str(name)[:_MAX_NAME]] = str(error)
    return Offer(entries=entries, refused=refused)


def problems(answer: object, *, source: str) -> tuple[HealthProblem, ...]:
    """Return the problems of a health source's answer.

    Args:
        answer: What the source returned.
        source: Its name, which the text begins with.

    Raises:
        TypeError: The answer is no sequence of problems.
        ValueError: A reason is no label value, or there are over 16 problems.
    """
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise TypeError(f"found {type(answer).__name__}, expected a sequence of Problem")
    problems = tuple(itertools.islice(answer, _MAX_PROBLEMS + 1))
    if len(problems) > _MAX_PROBLEMS:
        raise ValueError(f"found over {_MAX_PROBLEMS} problems, expected at most that")
    return tuple(_problem(each, source) for each in problems)


def extended_device(device: Device, offer: Offer, given_by: Mapping[str, str]) -> Extended:
    """Return the device with what it takes of an offer.

    Args:
        device: With all that earlier providers gave.
        given_by: Name of the provider that gave each attribute, or each capacity, which the device
            has from other packages.
    """
    with_attributes, with_capacity = dict(device.attributes), dict(device.capacity)
    given, refused = [], dict(offer.refused)
    for name, value in offer.entries.items():
        if reason := _conflict(name, given_by, len(with_attributes) + len(with_capacity)):
            refused[name] = reason
            continue
        if isinstance(value, Capacity):
            with_capacity[name] = value
        else:
            with_attributes[name] = value
        given.append(name)
    return Extended(
        device=replace(device, attributes=with_attributes, capacity=with_capacity),
        given=tuple(given),
        refused=refused,
    )


def _conflict(name: str, given_by: Mapping[str, str], entries: int) -> str:
    if name in given_by:
        return f"provider {given_by[name]} gave this name first"
    most = device_rules.MAX_ENTRIES
    if entries >= most:
        return f"the device has {most} attributes and capacities, which is the most"
    return ""


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise RefusedError(f"found a name of type {type(name).__name__}, expected a string")
    if name.rpartition("/")[0] in _OWN_DOMAINS:
        raise RefusedError(
            "found a name of the driver's domain, expected <your domain>/<identifier>"
        )
    _refuse(name_rules.qualified("name", name))
    return _text(name)


def attribute(value: object) -> AttributeValue:
    """Return an attribute's value.

    Raises:
        RefusedError: No device can have it.
    """
    match value:
        case bool() | Version():
            plain: AttributeValue = value
        case int():
            plain = int(value)  # also of an IntEnum's member
        case str():
            plain = _text(value)
        case _:
            raise RefusedError(
                f"found {type(value).__name__}, expected a string, int, bool or Version"
            )
    _refuse(device_rules.attribute_errors("value", attribute_as_api(plain)))
    return plain


def capacity(value: object) -> Capacity:
    """Return a capacity.

    Raises:
        RefusedError: No device can have it.
    """
    if not isinstance(value, Capacity):
        raise RefusedError(f"found {type(value).__name__}, expected a Capacity, see consumable()")
    optional = [each for each in (value.step, value.maximum) if each is not None]
    amounts: list[Any] = [value.value, value.default, value.minimum, *optional]
    if not all(isinstance(each, Quantity) and isinstance(each.nano, int) for each in amounts):
        raise RefusedError("found an amount of another type, expected quantities, see consumable()")
    if value.minimum.nano < 0 or value.value.nano < 0:
        raise RefusedError(f"found {value.value}, at least {value.minimum}, expected 0 or more")
    # The API server caps larger amounts, and would never store what is published.
    if any(quantity.parse(str(each)) != each for each in amounts):
        raise RefusedError("found an amount above the largest quantity")
    _refuse(device_rules.capacity_errors("capacity", value.as_api()))
    return value


def _problem(problem: object, source: str) -> HealthProblem:
    if not isinstance(problem, Problem):
        raise TypeError(f"found {type(problem).__name__}, expected a Problem")
    if not isinstance(problem.text, str):
        raise TypeError(f"text: found {type(problem.text).__name__}, expected text")
    wrong = next(name_rules.label_value("reason", problem.reason), None)
    if wrong is not None or not problem.reason:
        raise ValueError(f"reason: found {problem.reason!r}, expected a Kubernetes label value")
    text = problem.text[:_MAX_PROBLEM_TEXT].encode(errors="replace").decode()
    return HealthProblem(
        kind=ProblemKind.SOURCE, reason=_text(problem.reason), text=f"{source}: {text}"
    )


def _text(value: str) -> str:
    """Return the text as a plain string, also of a StrEnum's member, which YAML does not know."""
    try:
        return value.encode().decode()
    except UnicodeEncodeError:
        raise RefusedError(f"found {value!r}, expected text in Unicode") from None


def _refuse(errors: Iterable[FieldError]) -> None:
    if text := "; ".join(str(error) for error in errors):
        raise RefusedError(text)
