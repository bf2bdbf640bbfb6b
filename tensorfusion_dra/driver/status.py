"""Reports of what the containers of each claim got, written into the claim's status.

A thread of its own writes the reports, so a status neither delays nor fails a prepare. A claim's
report is in one of these states:

- waiting: report() queued the claim's record. A newer record replaces it.
- written: the entries are stored in the claim's status. A report with the same entries is not sent.
- waiting again: a write failed. No record is given up, so that the report of a sick GPU outlives an
  outage of hours.

forget() ends all of them when the claim is unprepared.

Two delays follow a failed write. Each claim has its own, which grows with its failures, so a claim
whose writes always fail is retried ever more rarely. A pause for all claims grows with failures in
a row of any claims; a success ends it. So during an outage one request at a time is sent, not one
for each claim. If the API server requests a pause, it holds for all claims.

A missing permission is logged once. Nothing is sent for ten minutes then, because every claim would
be refused alike. The records are kept, so a ClusterRole that is applied later than the DaemonSet
needs no restart.

Example: the API server is unavailable while ten claims are prepared. The first write fails. Then
one write is tried after 0.5 s, 1 s, 2 s, ... and at last every ten minutes, with jitter. Meanwhile
the limits of one claim change, and its newer record replaces the waiting one. After the first write
that succeeds, the other nine follow within ten minutes.
"""

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
"""Number of claims that may wait; a node runs a tenth of that in pods."""
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 600.0
"""An outage of hours costs few requests, and ten minutes after it everything is written."""


def utc_now() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """A record whose status has to be written.

    Attributes:
        due: Time of the next write, on the reporter's clock.
        backoff: The claim's own delays.
    """

    claim: PreparedClaim
    due: float
    backoff: Backoff


@dataclass(slots=True, kw_only=True)
class _KnownStatus:
    """State of a claim's status, as far as this process knows it.

    Attributes:
        since: Time of the claim's first report in this process.
        readiness: By device, as last reported. Kept for lastTransitionTime: a change of limits is
            no transition.
        entries: As last written; None if nothing was, or if a write may or may not have been made.
        trouble: Why the claim's limits are not enforced; "" if they are.
    """

    since: datetime
    readiness: Mapping[str, Readiness] = field(default_factory=dict)
    entries: list[Entry] | None = None
    trouble: str = ""


class StatusReporter:
    """Writer of claim statuses; report() and forget() are safe for all threads."""

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
        """Write nothing yet.

        Args:
            claim_status: Stores the entries.
            sick: Returns the unhealthy devices by name.
            now: Returns the wall clock's time, for lastTransitionTime.
            retry_seconds: A claim's delay after a first failure; it doubles with each further one.
            pause_seconds: Pause after a missing permission.
            most_waiting: Claims that may wait; the reports of more are dropped.
            clock: In seconds; for delays.
        """
        self._claim_status = claim_status
        self._sick = sick
        self._now = now
        self._retry_seconds = retry_seconds
        self._pause_seconds = pause_seconds
        self._most_waiting = most_waiting
        self._clock = clock
        # Used by run()'s thread alone:
        first_seconds = min(retry_seconds, _FIRST_PAUSE_SECONDS)
        self._outage = Backoff(first_seconds=first_seconds, longest_seconds=_LONGEST_PAUSE_SECONDS)
        self._throttle = LogThrottle(clock=clock)
        self._paused_until = 0.0
        self._missing_rights: set[str] = set()
        self._changed = Condition()  # guards all below
        self._stopping = False
        self._waiting: dict[str, _Waiting] = {}  # by claim UID
        self._known: dict[str, _KnownStatus] = {}  # by claim UID

    def report(self, claim: PreparedClaim, *, trouble: str | None = None) -> None:
        """Have the claim's status written soon; return at once, whatever the API server does.

        Args:
            claim: As it is prepared now.
            trouble: Why its limits are not enforced, "" if they are; None keeps the last value.
        """
        if not claim.shares:
            return
        uid = claim.ref.uid
        backoff = Backoff(first_seconds=self._retry_seconds, longest_seconds=_LONGEST_PAUSE_SECONDS)
        with self._changed:
            room = uid in self._waiting or len(self._waiting) < self._most_waiting
            if room:
                known = self._known.setdefault(uid, _KnownStatus(since=self._now()))
                known.trouble = known.trouble if trouble is None else trouble
                self._waiting[uid] = _Waiting(claim=claim, due=self._clock(), backoff=backoff)
                self._changed.notify()
        if not room:
            log.warning(
                "status_dropped",
                claim=str(claim.ref),
                claim_uid=uid,
                error=f"found {self._most_waiting} waiting claims, expected fewer",
            )

    def forget(self, claim_uid: str) -> None:
        """Drop an unprepared claim; the API server clears its status when it is deallocated."""
        with self._changed:
            self._waiting.pop(claim_uid, None)
            self._known.pop(claim_uid, None)

    def stop(self) -> None:
        """End run(). A record that still waits is reported when its claim is prepared again."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Write statuses until stopped."""
        while (waiting := self._next()) is not None:
            self._write(waiting)

    def _next(self) -> _Waiting | None:
        """Wait for the next record that is due and return it; None once stopped."""
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

    def _write(self, waiting: _Waiting) -> None:
        ref = waiting.claim.ref
        with self._changed:
            known = self._known.get(ref.uid)
        if known is None:
            return
        known.readiness = self._readiness(waiting.claim, known)
        entries = device_status.status(waiting.claim, known.readiness)
        if entries == known.entries:
            return
        known.entries = None
        try:
            written = self._claim_status.write(ref, entries)
        except MissingRightError as error:
            self._pause_for_permission(waiting, error)
        except RetryableError as error:
            self._retry_later(waiting, error)
        else:
            self._outage.succeeded()
            self._throttle.over()
            known.entries = entries
            event = "status_reported" if written else "status_skipped"
            log.info(event, claim=str(ref), claim_uid=ref.uid, devices=len(entries))

    def _readiness(self, claim: PreparedClaim, known: _KnownStatus) -> Mapping[str, Readiness]:
        """Return the readiness of the claim's devices; `since` changes only with a transition."""
        sick = self._sick()
        readiness = {}
        for device in {share.device for share in claim.shares}:
            before = known.readiness.get(device, Readiness(since=known.since))
            sickness = sick.get(device)
            since = before.since
            if sickness is not None:
                since = sickness.since
            elif before.is_ready == bool(known.trouble) or before.sickness is not None:
                since = self._now()
            readiness[device] = Readiness(since=since, sickness=sickness, trouble=known.trouble)
        return readiness

    def _pause_for_permission(self, waiting: _Waiting, error: MissingRightError) -> None:
        self._paused_until = self._clock() + self._pause_seconds
        if error.right not in self._missing_rights:
            self._missing_rights.add(error.right)
            log.error(
                "status_forbidden",
                error=f"expected {error.right}; claims are prepared without a status: {error}",
            )
        self._requeue(waiting, self._paused_until)

    def _retry_later(self, waiting: _Waiting, error: RetryableError) -> None:
        now = self._clock()
        self._paused_until = now + self._outage.failed(at_least=error.after_seconds)
        due = max(self._paused_until, now + waiting.backoff.failed())
        self._requeue(waiting, due)
        ref = waiting.claim.ref
        if self._throttle.is_new(str(error)):
            log.warning(
                "status_retried",
                claim=str(ref),
                claim_uid=ref.uid,
                seconds=round(due - now, 1),
                error=str(error),
            )

    def _requeue(self, waiting: _Waiting, due: float) -> None:
        """Queue the record again, unless the claim was forgotten or a newer record waits."""
        waiting.due = due
        uid = waiting.claim.ref.uid
        with self._changed:
            if uid in self._known:
                self._waiting.setdefault(uid, waiting)
