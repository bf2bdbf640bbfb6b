"""Tells in each claim's status what its containers really got."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Condition
from typing import Final

import structlog

from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.claims.device_status import Entry, Readiness
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.health import Sickness
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.backoff import Backoff
from tensorfusion_dra.driver.log_throttle import LogThrottle
from tensorfusion_dra.driver.ports.cluster import ClaimStatus, MissingRightError

log = structlog.get_logger()

MOST_WAITING: Final = 1024
"""Claims; a node runs a tenth of that in pods."""
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 600.0
"""An outage of hours costs a handful of requests; what waits is written ten minutes after it."""


def utc_now() -> datetime:
    """The time of the clock on the wall."""
    return datetime.now(UTC)


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """A record to be told.

    Attributes:
        due: On the reporter's clock.
    """

    claim: PreparedClaim
    due: float
    backoff: Backoff


@dataclass(slots=True, kw_only=True)
class _Told:
    """What is known of a claim's status.

    Attributes:
        since: When the claim was first reported here.
        readiness: By device, as last told: limits change, and that is no transition.
        entries: As last written; None if a write may or may not have changed them.
        trouble: Why the claim's limits are not enforced; "" if they are.
    """

    since: datetime
    readiness: Mapping[str, Readiness] = field(default_factory=dict)
    entries: list[Entry] | None = None
    trouble: str = ""


class StatusReporter:
    """Writes behind the driver's back, in a thread of its own: a status never fails a prepare.

    A missing right is told once. Then nothing is sent for a while, since every claim would be
    refused alike; the records are kept and told when it is over, so that a ClusterRole that came
    later than the DaemonSet needs no restart. One request in ten minutes costs nothing.

    Other failures delay twice, and no record is given up, so that the news of a sick GPU outlives
    an outage of hours. Each claim has a delay of its own: one whose writes always fail is tried
    ever more rarely. Failures in a row, of whatever claims, also delay all: in an outage one
    request at a time is sent, ever more rarely, and not one for each claim. Any success ends that.
    A pause that the API server asks for is kept by all claims.
    """

    def __init__(
        self,
        claim_status: ClaimStatus,
        *,
        sick: Callable[[], Mapping[str, Sickness]] = dict,
        now: Callable[[], datetime] = utc_now,
        retry_seconds: float = 0.5,
        pause_seconds: float = _LONGEST_PAUSE_SECONDS,
        most_waiting: int = MOST_WAITING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A reporter that is not running yet.

        Args:
            claim_status: Where to write.
            sick: The unhealthy devices by name, at the moment of the call.
            now: For lastTransitionTime.
            retry_seconds: After a first failure; longer after each further one.
            pause_seconds: How long nothing is sent after a right was missing.
            most_waiting: Claims that the queue holds; more are left out.
            clock: In seconds; for delays.
        """
        self._claim_status = claim_status
        self._sick = sick
        self._now = now
        self._retry_seconds = retry_seconds
        self._pause_seconds = pause_seconds
        self._most_waiting = most_waiting
        self._clock = clock
        # Of run()'s thread alone:
        self._outage = Backoff(
            first_seconds=min(retry_seconds, _FIRST_PAUSE_SECONDS),
            longest_seconds=_LONGEST_PAUSE_SECONDS,
        )
        self._throttle = LogThrottle(clock=clock)
        self._paused_until = 0.0
        self._missing_rights: set[str] = set()
        self._changed = Condition()  # guards all below
        self._stopping = False
        self._waiting: dict[str, _Waiting] = {}  # by claim UID, as the next one
        self._told: dict[str, _Told] = {}

    def report(self, claim: PreparedClaim, *, trouble: str | None = None) -> None:
        """Have the claim's status written soon; return at once, whatever the API server does.

        Args:
            claim: As it is prepared now.
            trouble: Why its limits are not enforced, "" if they are; None leaves what was said.
        """
        if not claim.shares:
            return
        uid = claim.ref.uid
        backoff = Backoff(first_seconds=self._retry_seconds, longest_seconds=_LONGEST_PAUSE_SECONDS)
        with self._changed:
            room = uid in self._waiting or len(self._waiting) < self._most_waiting
            if room:
                told = self._told.setdefault(uid, _Told(since=self._now()))
                told.trouble = told.trouble if trouble is None else trouble
                self._waiting[uid] = _Waiting(claim=claim, due=self._clock(), backoff=backoff)
                self._changed.notify()
        if not room:
            log.warning(
                "status_dropped",
                claim=str(claim.ref),
                claim_uid=uid,
                error=f"{self._most_waiting} claims wait already",
            )

    def forget(self, claim_uid: str) -> None:
        """Nothing more is told of an unprepared claim; its status goes when it is deallocated."""
        with self._changed:
            self._waiting.pop(claim_uid, None)
            self._told.pop(claim_uid, None)

    def stop(self) -> None:
        """Ends run(). What still waits is told when the kubelet asks for its claim again."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Writes until stopped."""
        while (waiting := self._next()) is not None:
            self._tell(waiting)

    def _next(self) -> _Waiting | None:
        """The record that is due, once one is; None when it is time to stop."""
        with self._changed:
            while not self._stopping:
                first = min(self._waiting.values(), key=lambda each: each.due, default=None)
                if first is None:
                    self._changed.wait()
                    continue
                seconds = max(first.due, self._paused_until) - self._clock()
                if seconds <= 0:
                    return self._waiting.pop(first.claim.ref.uid)
                self._changed.wait(seconds)
        return None

    def _tell(self, waiting: _Waiting) -> None:
        ref = waiting.claim.ref
        with self._changed:
            told = self._told.get(ref.uid)
        if told is None:
            return
        told.readiness = self._readiness(waiting.claim, told)
        entries = device_status.status(waiting.claim, told.readiness)
        if entries == told.entries:
            return
        told.entries = None
        try:
            written = self._claim_status.write(ref, entries)
        except MissingRightError as error:
            self._missing(waiting, error)
        except RetryableError as error:
            self._failed(waiting, error)
        else:
            self._outage.succeeded()
            self._throttle.over()
            told.entries = entries
            event = "status_reported" if written else "status_skipped"
            log.info(event, claim=str(ref), claim_uid=ref.uid, devices=len(entries))

    def _readiness(self, claim: PreparedClaim, told: _Told) -> Mapping[str, Readiness]:
        sick = self._sick()
        readiness = {}
        for device in {share.device for share in claim.shares}:
            before = told.readiness.get(device, Readiness(since=told.since))
            sickness = sick.get(device)
            since = before.since
            if sickness is not None:
                since = sickness.since
            elif before.is_ready == bool(told.trouble) or before.sickness is not None:
                since = self._now()
            before = Readiness(since=since, sickness=sickness, trouble=told.trouble)
            readiness[device] = before
        return readiness

    def _missing(self, waiting: _Waiting, error: MissingRightError) -> None:
        self._paused_until = self._clock() + self._pause_seconds
        if error.right not in self._missing_rights:
            self._missing_rights.add(error.right)
            log.error(
                "status_forbidden",
                error=f"expected {error.right}; claims are prepared without a status: {error}",
            )
        self._again(waiting, self._paused_until)

    def _failed(self, waiting: _Waiting, error: RetryableError) -> None:
        now = self._clock()
        self._paused_until = now + self._outage.failed(at_least=error.after_seconds)
        due = max(self._paused_until, now + waiting.backoff.failed())
        self._again(waiting, due)
        ref = waiting.claim.ref
        if self._throttle.is_new(str(error)):
            log.warning(
                "status_retried",
                claim=str(ref),
                claim_uid=ref.uid,
                seconds=round(due - now, 1),
                error=str(error),
            )

    def _again(self, waiting: _Waiting, due: float) -> None:
        """Has the record tried again, unless the claim is forgotten or has a newer record."""
        waiting.due = due
        uid = waiting.claim.ref.uid
        with self._changed:
            if uid in self._told:
                self._waiting.setdefault(uid, waiting)
