"""Calls of one provider: in a thread of its own, within its time, keeping its last good answers.

This is the only place that calls a provider. A round of calls is `begin`, if it has that method,
and then one call for each card. What it raises or answers wrongly costs its own part alone.

States, as `inspect --providers` shows them:

- new: not called yet.
- ok: the last round answered for every card.
- failed: it cannot be loaded or begun, or a call for one card raised an exception.
- late: the last round did not return within the budget. The provider is not called again until it
  has returned; what it then returns counts, and it is late until a round is in time.
- unused: disabled, or its name is taken.

Example: a provider answers for two cards, then hangs. The reading waits for the budget once, and
the driver keeps using the two answers. The next readings find it hanging and do not wait. When the
call returns with other answers, the provider wakes the loop that reads the cards.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final, Generic, TypeVar

import structlog

from tensorfusion_dra.core.devices.device import Reading
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.driver.providers import third_party
from tensorfusion_dra.driver.providers.third_party import Kind, Registered
from tensorfusion_dra.extend import Begins, Listens
from tensorfusion_dra.runtime.single_call_thread import SingleCallThread

log = structlog.get_logger()

_MOST_CHANGES: Final = 10
_CHANGES_SECONDS: Final = 3600.0
"""Each change of an attribute or capacity is a write of the slice, which every scheduler reads."""
_RESTLESS: Final = "answers changed 10 times within an hour; the last good answers stand"

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load nothing yet.

        Args:
            registered: The provider.
            call: Calls it for one card and returns its answer, checked; raises anything.
            budget_seconds: Time for a round of calls.
            wake: Has the cards read soon.
            clock: In seconds; for how often the answers change.
        """
        self.registered = registered
        self.outcome = Outcome(state=State.NEW)
        self._call = call
        self._budget_seconds = budget_seconds
        self._late_text = f"no answer within {budget_seconds:g} s; the last good answers stand"
        self._wake = wake
        self._clock = clock
        self._thread = SingleCallThread(f"provider-{registered.name}")
        self._provider: Any = None  # of that thread alone
        self._running: Future[_Round] | None = None
        self._late_at = 0.0
        self._good: Mapping[str, T] = {}  # by GPU UUID
        self._changed_at: deque[float] = deque(maxlen=_MOST_CHANGES)
        self._logged: frozenset[str] = frozenset()

    def start(self, reading: Reading) -> None:
        """Have the provider called for each card, unless it is still in an earlier round."""
        self.answers()
        if self._running is None:
            self._late_at = time.monotonic() + self._budget_seconds
            self._running = self._thread.submit(partial(self._round, reading))
            if self._running is not None:
                self._running.add_done_callback(self._wake_if_late)

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
            errors[""] = third_party.error_text(error)
        else:
            for gpu in reading.gpus:
                try:
                    answers[gpu.uuid] = self._call(provider, gpu, reading)
                except BaseException as error:  # noqa: BLE001 - as above
                    errors[gpu.uuid] = third_party.error_text(error)
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

    def _wake_if_late(self, running: Future[_Round]) -> None:
        """Have the cards read if a late round has news.

        Without news it waits for the next reading, so that a provider that is always late is not
        called over and over.
        """
        returned, good = running.result(), self._good
        if returned.ended >= self._late_at and any(
            good.get(uuid) != answer for uuid, answer in returned.answers.items()
        ):
            self._wake()

    def _take(self, returned: _Round) -> None:
        errors = dict(returned.errors)
        known = self._good if self._is_restless(returned.answers) else {}
        if known:
            errors[""] = _RESTLESS
        state = State.FAILED if errors else State.OK
        if returned.ended >= self._late_at:
            state, errors = State.LATE, {"": self._late_text, **errors}
        self._good = {**self._good, **returned.answers, **known}
        self._note(state, returned.ended - returned.began, errors)

    def _is_restless(self, answers: Mapping[str, T]) -> bool:
        """Return True if known answers change too often; remember this change otherwise."""
        changes = any(self._good.get(uuid, answer) != answer for uuid, answer in answers.items())
        if self.registered.kind is Kind.HEALTH or not changes:
            return False
        now, changed_at = self._clock(), self._changed_at
        if len(changed_at) == _MOST_CHANGES and now - changed_at[0] < _CHANGES_SECONDS:
            return True
        changed_at.append(now)
        return False

    def _note(self, state: State, seconds: float | None, errors: Mapping[str, str]) -> None:
        """Keep the outcome; log each error once, until all are over."""
        self.outcome = Outcome(state=state, seconds=seconds, errors=errors)
        texts = frozenset(errors.values())
        for error in sorted(texts - self._logged):
            log.warning("provider_failed", **self.registered.log_fields, error=error)
        if self._logged and not texts:
            log.info("provider_recovered", **self.registered.log_fields)
        self._logged = texts
