"""Calls of one provider: within its time, and with its last good answers if a call fails.

States, as `inspect --providers` shows them:

- new: not called yet.
- ok: the last round of calls answered for every card.
- failed: it cannot be loaded or begun, or a call for one card raised an exception.
- late: the last round of calls did not return within the budget. The provider is not called again
  until it has returned; what it then returns counts, and it is late until a round is in time.
- unused: disabled, or its name is taken.

Example: a provider answers for two cards, then hangs. The reading waits for the budget once and
uses the two answers. The next readings find it hanging and use them at once. When the call returns
with other answers, the provider wakes the loop that reads the cards.
"""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import structlog

from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.devices.reading import Reading
from tensorfusion_dra.driver.providers import foreign
from tensorfusion_dra.driver.providers.registered import Kind, Registered
from tensorfusion_dra.driver.single_call_thread import ClosedError, SingleCallThread
from tensorfusion_dra.extend import Begins, Listens

if TYPE_CHECKING:
    from concurrent.futures import Future

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


class CalledProvider(Generic[T]):
    """One provider with its thread, its last good answers and its outcome; safe for all threads."""

    def __init__(
        self,
        registered: Registered,
        call: Callable[[object, Gpu, Reading], T],
        *,
        budget_seconds: float,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load nothing yet.

        Args:
            registered: The provider.
            call: Calls it for one card and returns the driver's own values made from its answer;
                raises anything.
            budget_seconds: Time for a round of calls.
            wake: Has the cards read soon.
            clock: In seconds; for how often the answers change.
        """
        self.registered = registered
        self._call = call
        self._budget_seconds = budget_seconds
        self._late_text = f"no answer within {budget_seconds:g} s; the last good answers stand"
        self._wake = wake
        self._clock = clock
        self._is_bounded = not registered.is_own and registered.kind is not Kind.HEALTH
        self._thread = (
            None if registered.is_own else SingleCallThread(f"provider-{registered.name}")
        )
        self._provider: object = None  # of the calling thread alone
        self._running: Future[None] | None = None  # of the thread that begins, as the next
        self._give_up_at = 0.0
        self._lock = Lock()  # guards all below
        self._good: dict[str, T] = {}  # by GPU UUID
        self._changed_at: deque[float] = deque(maxlen=_MOST_CHANGES)
        self._outcome = Outcome(state=State.UNUSED if registered.unused else State.NEW)
        self._logged: frozenset[str] = frozenset()
        self._is_running = False

    @property
    def outcome(self) -> Outcome:
        """How the last round of calls went."""
        with self._lock:
            return self._outcome

    def begin(self, reading: Reading) -> None:
        """Have the provider called for each card, unless it is still in an earlier call."""
        if self.registered.unused:
            return
        if self._thread is None:
            self._round(reading, give_up_at=math.inf)
            return
        give_up_at = time.monotonic() + self._budget_seconds
        with contextlib.suppress(ClosedError):
            self._running = self._thread.submit(lambda: self._round(reading, give_up_at=give_up_at))
            self._give_up_at = give_up_at

    def answers(self, reading: Reading) -> Mapping[str, T]:
        """Return its good answers by GPU UUID, after begin(); wait for them within the budget.

        A card without a good answer so far is missing.
        """
        if self._thread is not None and not self.registered.unused:
            try:
                if self._running is None:
                    self._note_late()
                else:
                    self._running.result(max(0.0, self._give_up_at - time.monotonic()))
            except TimeoutError:
                self._note_late()
        return self.last(reading)

    def last(self, reading: Reading) -> Mapping[str, T]:
        """Return the last good answers for these cards, without a call."""
        with self._lock:
            return {
                gpu.uuid: self._good[gpu.uuid] for gpu in reading.gpus if gpu.uuid in self._good
            }

    def close(self) -> None:
        """End the thread; one that hangs is left behind and ends with the process."""
        if self._thread is not None:
            self._thread.close(wait_seconds=0.0)

    def _round(self, reading: Reading, *, give_up_at: float) -> None:
        began = time.monotonic()
        with self._lock:
            self._is_running = True
        answers: dict[str, T] = {}
        errors: dict[str, str] = {}
        try:
            with foreign.code():
                provider = self._loaded()
                if isinstance(provider, Begins):
                    provider.begin(reading)
        except BaseException as error:  # noqa: BLE001 - code of another package
            errors[""] = foreign.shown(error)
        else:
            for gpu in reading.gpus:
                try:
                    with foreign.code():
                        answers[gpu.uuid] = self._call(provider, gpu, reading)
                except BaseException as error:  # noqa: BLE001 - as above
                    errors[gpu.uuid] = foreign.shown(error)
        ended = time.monotonic()
        if is_late := ended >= give_up_at:
            errors = {"": self._late_text, **errors}
        self._note_returned(
            answers,
            Outcome(
                state=State.LATE if is_late else State.FAILED if errors else State.OK,
                seconds=ended - began,
                errors=errors,
            ),
        )

    def _loaded(self) -> object:
        """Return the provider; import it before the first call."""
        if self._provider is None:
            found = self.registered.load()
            provider = found() if isinstance(found, type) else found
            if not callable(provider):
                raise TypeError(f"found {type(provider).__name__}, expected a callable")
            if isinstance(provider, Listens):
                provider.listen(self._wake)
            self._provider = provider
            if not self.registered.is_own:
                log.info("provider_loaded", **self.registered.log_fields)
        return self._provider

    def _note_returned(self, answers: Mapping[str, T], outcome: Outcome) -> None:
        with self._lock:
            if self._is_bounded and not self._may_change(answers):
                answers = {**answers, **self._good}
                outcome = replace(
                    outcome, state=State.FAILED, errors={"": _RESTLESS, **outcome.errors}
                )
            differs = any(self._good.get(uuid) != answer for uuid, answer in answers.items())
            self._good.update(answers)
            self._is_running = False
            self._outcome = outcome
            self._log_errors(frozenset(outcome.errors.values()))
        # Only for news, so that a provider that is always late is not called over and over.
        if outcome.state is State.LATE and differs:
            self._wake()

    def _may_change(self, answers: Mapping[str, T]) -> bool:
        """Return False if known answers change too often; the caller holds the lock."""
        if all(self._good.get(uuid, answer) == answer for uuid, answer in answers.items()):
            return True
        now, changed_at = self._clock(), self._changed_at
        if len(changed_at) == _MOST_CHANGES and now - changed_at[0] < _CHANGES_SECONDS:
            return False
        changed_at.append(now)
        return True

    def _note_late(self) -> None:
        with self._lock:
            if not self._is_running:
                return  # it has returned just now
            self._outcome = Outcome(
                state=State.LATE, seconds=self._outcome.seconds, errors={"": self._late_text}
            )
            self._log_errors(self._logged | {self._late_text})

    def _log_errors(self, errors: frozenset[str]) -> None:
        """Log each error once, until it is over; the caller holds the lock."""
        whose = self.registered.log_fields
        for error in sorted(errors - self._logged):
            log.warning("provider_failed", **whose, error=error)
        if self._logged and not errors:
            log.info("provider_recovered", **whose)
        self._logged = errors
