"""Reports of the devices and limits of each claim, written into its status.

A thread of its own writes the reports, each by one request and one after the other, so a status
neither delays nor fails a prepare. A claim's report is in one of these states:

- waiting: report() queued the claim's record. A newer record replaces it, and one whose GPU's
  health changed goes before the others.
- written: the entries are stored in the claim's status. A report with the same entries is not sent.
- waiting again: a write failed. No record is given up, so that the report of an unhealthy GPU
  outlives an outage of hours.

forget() ends all of them when the claim is unprepared: if that comes before the write, there is no
request at all.

The pace: a write costs a few milliseconds of this process, whose threads share one interpreter
lock, and as much of the API server. A prepare that runs at the same time needs both. So a write
waits for an idle moment: no call is in flight, and the last one ended a tenth of a second ago.
Calls may go on for long, so a write waits for two seconds at most; then writes are made beside the
calls, at most 20 per second. So on a node where 100 pods start within five seconds, the first
statuses are written after two seconds, the last ones about a second after the last call.

After a failed write, all claims pause, and the pause grows with failures in a row; a success ends
it. A claim whose write failed waits behind the others. So during an outage one request at a time is
sent, not one for each claim. If the API server requests a pause, it is no shorter than that.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from threading import Condition
from typing import Final

import structlog

from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.claims.device_status import Readiness
from tensorfusion_dra.core.claims.ports import ClaimStatus
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.resize import Resize
from tensorfusion_dra.core.claims.use import Used
from tensorfusion_dra.core.devices.health import Unhealthy
from tensorfusion_dra.core.errors import (
    MissingPermissionError,
    RetryableError,
    is_of_one_object,
)
from tensorfusion_dra.driver.enforcement_watch import EnforcementWatch
from tensorfusion_dra.runtime.calls import CallsInFlight
from tensorfusion_dra.runtime.loops import Backoff, LogThrottle

IDLE_SECONDS: Final = 0.1
"""Time without a call after which the kubelet is taken to be idle."""
MAX_WAIT_SECONDS: Final = 2.0
_SPACING_SECONDS: Final = 1 / 50
_SPACING_BESIDE_CALLS_SECONDS: Final = 1 / 20

log = structlog.get_logger()

_FIRST_PAUSE_SECONDS: Final = 0.5
_MAX_PAUSE_SECONDS: Final = 600.0
"""An outage of hours costs few requests, and ten minutes after it everything is written."""
_LAST_WRITES_SECONDS: Final = 2.0

utc_now: Final = partial(datetime.now, UTC)
"""Returns the present time."""


@dataclass(slots=True, kw_only=True)
class _Known:
    """State of a claim's status, as far as this process knows it.

    Attributes:
        claim: Its record as it was reported last.
        since: Time of the claim's first report in this process.
        due: Time from which the record may be written, on the reporter's clock; the earliest is
            first. math.inf if it does not have to be written.
        reason: Why the claim's limits are not enforced; "" if they are.
        readiness: By device, as last reported. Kept for lastTransitionTime: a change of limits is
            no transition.
        entries: Hash of the entries last written; None if none were, or if a write may or may not
            have been made.
        refused: Delays after the API server refused this status; None until then.
        resize: What the claim's annotations ask for while it runs, and since when; None if nothing.
    """

    claim: PreparedClaim
    since: datetime
    due: float = math.inf
    reason: str = ""
    readiness: Mapping[str, Readiness] | None = None
    entries: int | None = None
    refused: Backoff | None = None
    resize: tuple[Resize, datetime] | None = None

    def update_readiness(
        self,
        claim: PreparedClaim,
        unhealthy_devices: Mapping[str, Unhealthy],
        now: Callable[[], datetime],
    ) -> Mapping[str, Readiness]:
        """Set and return the readiness; the start of a device's changes only with a transition.

        Args:
            claim: Its shares name the devices.
            unhealthy_devices: By name.
            now: Returns the wall clock's time.
        """
        earlier = self.readiness or {}
        readiness = {}
        for device in {share.device for share in claim.shares}:
            before = earlier.get(device, Readiness(since=self.since))
            unhealthy = unhealthy_devices.get(device)
            since = before.since
            if unhealthy is not None:
                since = unhealthy.since
            elif before.is_ready == bool(self.reason) or before.unhealthy is not None:
                since = now()
            readiness[device] = Readiness(since=since, unhealthy=unhealthy, reason=self.reason)
        self.readiness = readiness
        return readiness


class StatusReporter:
    """Writer of claim statuses; the methods for reports are safe for all threads."""

    def __init__(
        self,
        claim_status: ClaimStatus,
        *,
        calls: CallsInFlight | None = None,
        unhealthy: Callable[[], Mapping[str, Unhealthy]] = dict,
        enforcement: EnforcementWatch | None = None,
        used: Callable[[str], Sequence[Used | None]] = lambda _: (),
        now: Callable[[], datetime] = utc_now,
        retry_seconds: float = _FIRST_PAUSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        claim_status: Stores the entries.
        calls: The kubelet's calls; writes avoid them. None if this process answers none.
        unhealthy: Returns the unhealthy devices by name.
        enforcement: Knows whether limits hold; None leaves this out of the statuses.
        used: Returns what each share of the claim with this UID uses; () for nothing.
        now: Returns the wall clock's time, for lastTransitionTime.
        retry_seconds: Pause after a first failure; it doubles with each further one in a row.
        clock: In seconds; for delays.
        """
        self._claim_status = claim_status
        self._unhealthy = unhealthy
        self._enforcement = enforcement
        self._used = used
        self._now = now
        self._clock = clock
        self._calls = calls or CallsInFlight()
        # Used by run()'s thread alone:
        self._backoff = partial(
            Backoff, first_seconds=retry_seconds, longest_seconds=_MAX_PAUSE_SECONDS
        )
        self._outage = self._backoff()
        self._throttle = LogThrottle(clock=clock)
        self._began = -math.inf  # time of the last write
        self._paused_until = 0.0
        self._missing_permissions: set[str] = set()
        self._changed = Condition()  # guards all below
        self._ends: float | None = None  # time of the last write; None until stop()
        self._known: dict[str, _Known] = {}  # by claim UID

    def report(self, claim: PreparedClaim, *, reason: str | None = "") -> None:
        """Queue the claim's status to be written; never wait for the API server.

        Nothing happens if the same shares were reported last, with the same reason.

        Args:
            claim: As it is prepared now.
            reason: Why its limits cannot be enforced; "" if they can be. None keeps the last one,
                and has the status written before others.
        """
        if not claim.shares:
            return
        uid = claim.ref.uid
        with self._changed:
            known = self._known.get(uid)
            if known is None:
                known = self._known[uid] = _Known(claim=claim, since=self._now())
            elif reason == known.reason and claim.shares == known.claim.shares:
                return
            known.claim = claim
            known.due = min(self._clock(), known.due)
            if reason is None:
                known.due = -math.inf
            else:
                known.reason = reason
            self._changed.notify()

    def report_changed(self, claim: PreparedClaim) -> None:
        """Queue the status of a claim before others, because its state changed and its record did
        not.

        The health of a GPU of it has changed, or whether its limits hold.
        """
        self.report(claim, reason=None)

    def report_resize(self, claim: PreparedClaim, found: Resize) -> bool:
        """Queue what came of a change of the claim's limits; return False if it is known."""
        with self._changed:
            known = self._known.get(claim.ref.uid)
            if known and known.resize and known.resize[0] == found:
                return False
            self.report(claim, reason=None)
            if (known := self._known.get(claim.ref.uid)) is not None:
                known.resize = found, self._now()
        return True

    def resized(self) -> Mapping[str, Resize]:
        """Return what claims ask for while they run, by UID."""
        with self._changed:
            return {uid: each.resize[0] for uid, each in self._known.items() if each.resize}

    def forget(self, claim_uid: str) -> None:
        """Drop an unprepared claim; the API server clears its status when it is deallocated."""
        with self._changed:
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

    def _next(self) -> _Known | None:
        """Wait until a record may be written, and return it; None once stopped."""
        with self._changed:
            while True:
                waiting = [each for each in self._known.values() if each.due < math.inf]
                first = min(waiting, key=lambda each: each.due, default=None)
                if self._ends is not None:
                    is_over = not self._paused_until <= self._clock() < self._ends
                    if first is None or is_over or first.due > self._clock():
                        return None
                    break
                if first is None:
                    self._changed.wait()
                    continue
                seconds = self._seconds_left(max(first.due, self._paused_until))
                if seconds <= 0:
                    break
                self._changed.wait(seconds)
            first.due = math.inf
            return first

    def _seconds_left(self, due: float) -> float:
        """Return the time to wait before asking again; 0 or less if a write may begin now.

        Args:
            due: Time since when the write has been waiting for its moment; it may be to come.
        """
        now = self._clock()
        quiet_seconds = self._calls.quiet_seconds()
        if quiet_seconds >= IDLE_SECONDS:
            return max(due, self._began + _SPACING_SECONDS) - now
        idle = now + IDLE_SECONDS - quiet_seconds
        allowed = max(due + MAX_WAIT_SECONDS, self._began + _SPACING_BESIDE_CALLS_SECONDS)
        return max(due, min(idle, allowed)) - now

    def _write(self, known: _Known) -> None:
        claim, ref = known.claim, known.claim.ref
        readiness = known.update_readiness(claim, self._unhealthy(), self._now)
        current = self._enforcement.current(claim) if self._enforcement else ()
        entries = device_status.status(claim, readiness, current, self._used(ref.uid), known.resize)
        hashed = hash(str(entries))
        if hashed == known.entries:
            return
        known.entries = None
        self._began = self._clock()
        try:
            written = self._claim_status.write(ref, entries)
        except RetryableError as error:
            is_of_claim = is_of_one_object(error)
            if isinstance(error, MissingPermissionError):
                seconds = _MAX_PAUSE_SECONDS
                if error.permission not in self._missing_permissions:
                    self._missing_permissions.add(error.permission)
                    log.error(
                        "status_forbidden",
                        error=f"expected {error.permission}; claims are prepared without a status: "
                        f"{error}",
                    )
            else:
                backoff = self._outage
                if is_of_claim:
                    backoff = known.refused = known.refused or self._backoff()
                seconds = backoff.failed(at_least=error.after_seconds)
                self._throttle.warn(
                    "status_retried",
                    error,
                    claim=str(ref),
                    claim_uid=ref.uid,
                    seconds=round(seconds, 1),
                )
            due = self._clock() + seconds
            if not is_of_claim:
                self._paused_until = due
            with self._changed:
                known.due = min(known.due, due)  # a newer record may wait already
        else:
            self._outage.succeeded()
            known.refused = None
            self._throttle.over()
            known.entries = hashed
            event = "status_reported" if written else "status_skipped"
            log.debug(event, claim=str(ref), claim_uid=ref.uid, devices=len(entries))
