"""Reports of what the containers of each claim got, written into the claim's status.

A thread of its own writes the reports, each by one request and one after the other, so a status
neither delays nor fails a prepare. It waits for a moment without calls of the kubelet
(write_pace.py). A claim's report is in one of these states:

- waiting: report() queued the claim's record. A newer record replaces it, and one whose GPU's
  health changed goes before the others.
- written: the entries are stored in the claim's status. A report with the same entries is not sent.
- waiting again: a write failed. No record is given up, so that the report of a sick GPU outlives an
  outage of hours.

forget() ends all of them when the claim is unprepared: if that comes before the write, there is no
request at all. A repeated prepare that changes nothing does not even wake the thread.

Two delays follow a failed write. Each claim has its own, which grows with its failures, so a claim
whose writes always fail is retried ever more rarely. A pause for all claims grows with failures in
a row of any claims; a success ends it. So during an outage one request at a time is sent, not one
for each claim. If the API server requests a pause, it holds for all claims.

A missing permission is logged once. Nothing is sent for ten minutes then, because every claim would
be refused alike. The records are kept, so a ClusterRole that is applied later than the DaemonSet
needs no restart.

A new process knows of no earlier report. So a process that is stopped first writes what it has
not tried yet, for up to two seconds, unless the API server is unavailable.

Example: the API server is unavailable while ten claims are prepared. The first write fails. Then
one write is tried after 0.5 s, 1 s, 2 s, ... and at last every ten minutes, with jitter. Meanwhile
the limits of one claim change, and its newer record replaces the waiting one. After the first write
that succeeds, the other nine follow within ten minutes.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Condition
from typing import Final

import structlog

from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.claims.device_status import Readiness
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.health import Sickness
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.enforcement_watch import EnforcementWatch
from tensorfusion_dra.driver.ports.cluster import ClaimStatus, MissingRightError
from tensorfusion_dra.driver.write_pace import IDLE_SECONDS, WritePace
from tensorfusion_dra.runtime.backoff import Backoff
from tensorfusion_dra.runtime.calls_in_flight import CallsInFlight
from tensorfusion_dra.runtime.log_throttle import LogThrottle

log = structlog.get_logger()

MOST_WAITING: Final = 4096
"""Number of claims that may wait; a node runs far fewer."""
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 600.0
"""An outage of hours costs few requests, and ten minutes after it everything is written."""
_LAST_WRITES_SECONDS: Final = 2.0


def utc_now() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """A record whose status has to be written.

    Attributes:
        due: Time from which it may be written, on the reporter's clock.
        backoff: The claim's own delays; None if no write of the record has failed.
    """

    claim: PreparedClaim
    due: float
    backoff: Backoff | None = None


class _Queue:
    """At most one waiting record for each claim. For callers that hold the reporter's lock.

    The order is that of the reports, except that urgent ones come first. A record whose write
    failed comes in its turn by the time of its retry. A step costs the same however many records
    wait, unless their writes failed.
    """

    def __init__(self) -> None:
        self._new: OrderedDict[str, _Waiting] = OrderedDict()  # by claim UID, as is _failed
        self._failed: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._failed)

    def __contains__(self, claim_uid: str) -> bool:
        return claim_uid in self._new or claim_uid in self._failed

    def put(self, claim: PreparedClaim, *, now: float, urgent: bool = False) -> None:
        """Queue a record. An earlier one of the same claim gives it its place."""
        uid = claim.ref.uid
        waiting = self._new.get(uid)
        if waiting is None:
            self._failed.pop(uid, None)
            self._new[uid] = _Waiting(claim=claim, due=now)
        else:
            waiting.claim = claim
        if urgent:
            self._new.move_to_end(uid, last=False)

    def put_back(self, waiting: _Waiting) -> None:
        """Queue a record whose write failed, unless a newer one of its claim waits by now."""
        uid = waiting.claim.ref.uid
        if uid not in self._new:
            self._failed[uid] = waiting

    def first(self) -> _Waiting | None:
        """Return the record to write next, which may not be due yet; None if none waits."""
        new = self.first_new()
        failed = min(self._failed.values(), key=lambda each: each.due, default=None)
        if new is None or failed is None:
            return new or failed
        return failed if failed.due < new.due else new

    def first_new(self) -> _Waiting | None:
        """Return the first record of which no write has failed."""
        return next(iter(self._new.values()), None)

    def drop(self, claim_uid: str) -> None:
        """Remove the record of a claim, if one waits."""
        self._new.pop(claim_uid, None)
        self._failed.pop(claim_uid, None)


@dataclass(slots=True, kw_only=True)
class _Known:
    """State of a claim's status, as far as this process knows it.

    Attributes:
        since: Time of the claim's first report in this process.
        shares: Fingerprint of the shares that were reported last. None while their record waits,
            so that no call of the kubelet has to compute it.
        trouble: Why the claim's limits are not enforced; "" if they are.
        readiness: By device, as last reported. Kept for lastTransitionTime: a change of limits is
            no transition.
        entries: Hash of the entries last written; None if none were, or if a write may or may not
            have been made.
    """

    since: datetime
    shares: int | None = None
    trouble: str = ""
    readiness: Mapping[str, Readiness] | None = None
    entries: int | None = None

    def is_same(self, claim: PreparedClaim, trouble: str | None) -> bool:
        """Return True if the claim was reported last with these shares and this trouble."""
        if self.shares is None or trouble != self.trouble:
            return False
        return device_status.fingerprint(claim) == self.shares

    def update_readiness(
        self,
        claim: PreparedClaim,
        sick: Mapping[str, Sickness],
        now: Callable[[], datetime],
    ) -> Mapping[str, Readiness]:
        """Set and return the readiness; the start of a device's changes only with a transition.

        Args:
            claim: Its shares name the devices.
            sick: The unhealthy devices by name.
            now: Returns the wall clock's time.
        """
        earlier = self.readiness or {}
        readiness = {}
        for device in {share.device for share in claim.shares}:
            before = earlier.get(device, Readiness(since=self.since))
            sickness = sick.get(device)
            since = before.since
            if sickness is not None:
                since = sickness.since
            elif before.is_ready == bool(self.trouble) or before.sickness is not None:
                since = now()
            readiness[device] = Readiness(since=since, sickness=sickness, trouble=self.trouble)
        self.readiness = readiness
        return readiness


class StatusReporter:
    """Writer of claim statuses; the methods for reports are safe for all threads."""

    def __init__(
        self,
        claim_status: ClaimStatus,
        *,
        calls: CallsInFlight | None = None,
        sick: Callable[[], Mapping[str, Sickness]] = dict,
        enforcement: EnforcementWatch | None = None,
        now: Callable[[], datetime] = utc_now,
        retry_seconds: float = 0.5,
        pause_seconds: float = _LONGEST_PAUSE_SECONDS,
        most_waiting: int = MOST_WAITING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write nothing yet.

        Args:
            claim_status: Stores the entries.
            calls: The kubelet's calls; writes avoid them. None if this process answers none.
            sick: Returns the unhealthy devices by name.
            enforcement: Knows whether limits hold, and is told which claims there are; None leaves
                this out of the statuses.
            now: Returns the wall clock's time, for lastTransitionTime.
            retry_seconds: A claim's delay after a first failure; it doubles with each further one.
            pause_seconds: Pause after a missing permission.
            most_waiting: Claims that may wait; the reports of more are dropped.
            clock: In seconds; for delays.
        """
        self._claim_status = claim_status
        self._sick = sick
        self._enforcement = enforcement
        self._now = now
        self._retry_seconds = retry_seconds
        self._pause_seconds = pause_seconds
        self._most_waiting = most_waiting
        self._clock = clock
        # Used by run()'s thread alone:
        first_seconds = min(retry_seconds, _FIRST_PAUSE_SECONDS)
        self._outage = Backoff(first_seconds=first_seconds, longest_seconds=_LONGEST_PAUSE_SECONDS)
        self._throttle = LogThrottle(clock=clock)
        self._pace = WritePace(calls or CallsInFlight(), clock=clock)
        self._paused_until = 0.0
        self._missing_rights: set[str] = set()
        self._changed = Condition()  # guards all below
        self._ends: float | None = None  # time of the last write; None until stop()
        self._wakes_for_new = False
        self._queue = _Queue()
        self._known: dict[str, _Known] = {}  # by claim UID

    def report(self, claim: PreparedClaim, *, trouble: str = "") -> None:
        """Have the claim's status written soon; return at once, whatever the API server does.

        Nothing happens if the same shares were reported last, with the same trouble.

        Args:
            claim: As it is prepared now.
            trouble: Why its limits cannot be enforced; "" if they can be.
        """
        if self._enforcement is not None:
            self._enforcement.note(claim)
        self._report(claim, trouble)

    def report_changed(self, claim: PreparedClaim) -> None:
        """Have the claim's status written, before others: its record is the same, its state not.

        The health of a GPU of it has changed, or whether its limits hold.
        """
        self._report(claim, None)

    def forget(self, claim_uid: str) -> None:
        """Drop an unprepared claim; the API server clears its status when it is deallocated."""
        if self._enforcement is not None:
            self._enforcement.forget(claim_uid)
        with self._changed:
            self._queue.drop(claim_uid)
            self._known.pop(claim_uid, None)

    def stop(self) -> None:
        """End run() once what waits is written, or after two seconds."""
        with self._changed:
            self._ends = self._clock() + _LAST_WRITES_SECONDS
            self._changed.notify()

    def run(self) -> None:
        """Write statuses until stopped."""
        while (waiting := self._next()) is not None:
            self._write(waiting)

    def _report(self, claim: PreparedClaim, trouble: str | None) -> None:
        """Queue a record; None keeps the last trouble, and has the status written in any case."""
        if not claim.shares:
            return
        uid = claim.ref.uid
        with self._changed:
            known = self._known.get(uid)
            if known and known.is_same(claim, trouble):
                return
            has_room = len(self._queue) < self._most_waiting or uid in self._queue
            if has_room:
                if known is None:
                    known = self._known[uid] = _Known(since=self._now())
                known.trouble = known.trouble if trouble is None else trouble
                known.shares = None
                self._queue.put(claim, now=self._clock(), urgent=trouble is None)
                if self._wakes_for_new:
                    self._wakes_for_new = False
                    self._changed.notify()
        if not has_room:
            log.warning(
                "status_dropped",
                claim=str(claim.ref),
                claim_uid=uid,
                error=f"found {self._most_waiting} waiting claims, expected fewer",
            )

    def _next(self) -> _Waiting | None:
        """Wait until a record may be written, and return it; None once stopped."""
        with self._changed:
            while self._ends is None and (seconds := self._seconds_to_first()) > 0:
                # A shorter wait ends before a new record could be written anyway.
                pause_seconds = max(0.0, self._paused_until - self._clock())
                self._wakes_for_new = seconds > pause_seconds + IDLE_SECONDS
                self._changed.wait(None if seconds == math.inf else seconds)
            waiting = self._queue.first() if self._ends is None else self._last(self._ends)
            if waiting is not None:
                uid = waiting.claim.ref.uid
                self._queue.drop(uid)
                self._known[uid].shares = device_status.fingerprint(waiting.claim)
            return waiting

    def _seconds_to_first(self) -> float:
        first = self._queue.first()
        if first is None:
            return math.inf
        return self._pace.seconds_left(max(first.due, self._paused_until))

    def _last(self, ends: float) -> _Waiting | None:
        """Return a record to write after stop(); None to end."""
        is_over = not self._paused_until <= self._clock() < ends
        return None if is_over else self._queue.first_new()

    def _write(self, waiting: _Waiting) -> None:
        ref = waiting.claim.ref
        with self._changed:
            known = self._known.get(ref.uid)
        if known is None:
            return
        readiness = known.update_readiness(waiting.claim, self._sick(), self._now)
        standing = self._enforcement.standing(waiting.claim) if self._enforcement else ()
        entries = device_status.status(waiting.claim, readiness, standing)
        hashed = hash(str(entries))
        if hashed == known.entries:
            return
        known.entries = None
        self._pace.begin()
        try:
            written = self._claim_status.write(ref, entries)
        except MissingRightError as error:
            self._pause_for_permission(waiting, error)
        except RetryableError as error:
            self._retry_later(waiting, error)
        else:
            self._outage.succeeded()
            self._throttle.over()
            known.entries = hashed
            event = "status_reported" if written else "status_skipped"
            log.debug(event, claim=str(ref), claim_uid=ref.uid, devices=len(entries))

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
        waiting.backoff = waiting.backoff or Backoff(
            first_seconds=self._retry_seconds, longest_seconds=_LONGEST_PAUSE_SECONDS
        )
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
        with self._changed:
            if waiting.claim.ref.uid in self._known:
                self._queue.put_back(waiting)
