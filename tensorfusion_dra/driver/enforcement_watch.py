"""Watch over the limits of all prepared claims: does an enforcer keep them now?

Every ten seconds, a thread asks each claim's enforcer, which reads only files and local sockets.
Where limits may be lost while containers run, they are applied again before. The current verdicts
are those in the claim's status. They are replaced when a state or a reason changes, not when only a
text does.

- A new claim: its first verdict is made when its status is written for the first time, and goes
  with that write. So there is no further request for it.
- A changed verdict: its status is queued (status.py), a line is logged, and its pods get an Event
  when the limits stop holding and when they hold again (EnforcementAnnouncer). Limits that
  stop holding are reported at once. Other changes are reported at most once a minute and claim, so
  that an enforcer that comes and goes does not flood the API server.
- A claim from before this process: its current verdicts were kept in a file, so that a restart of
  the driver writes no status again.

Which claims there are is read from the records, at each check and when a status is written.

Where the use of the cards is observed (use_watch.py), a share that was seen to be over its limit is
not enforced, whatever the evidence says.

Example: the hypervisor of a node with 30 pods dies. At the next check, the 30 shared memories have
no fresh heartbeat: 30 statuses are queued, and as many Events, of which five are written at each
check. When it runs again, the same happens once more, but not before the minute is over.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from threading import Lock
from typing import Any, Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import Enforcer, Records
from tensorfusion_dra.core.claims.ports import Events
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict, State, Verdict
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.enforcers.choice import EnforcerChooser
from tensorfusion_dra.runtime.loops import LogThrottle, Wakeup
from tensorfusion_dra.state import saved_state
from tensorfusion_dra.state.saved_state import SavedState

log = structlog.get_logger()

CHECK_SECONDS: Final = 10.0
SPACING_SECONDS: Final = 60.0
"""Shortest time between two changes of a claim's current verdicts, unless it is for the worse."""
_APPLY_SECONDS: Final = 5.0
_MAX_EVENTS: Final = 5
"""Claims whose Events are written in one go."""
MAX_PODS: Final = 4
"""Pods of one claim that get an Event."""


@dataclass(slots=True, kw_only=True)
class WatchedLimits:
    """A claim, and what is known about its limits.

    Attributes:
        limits_since: Time on the clock at which its present limits were set.
        current: For each share; None until the first verdict.
        is_shown: True if the current verdicts are in the claim's status, or on their way.
        settled_until: Time on the clock before which the current verdicts are replaced only if
            limits no longer hold.
        is_warned: True if a warning was given that has not been withdrawn.
    """

    claim: PreparedClaim
    limits_since: float
    current: tuple[CurrentVerdict, ...] | None = None
    is_shown: bool = False
    settled_until: float = -math.inf
    is_warned: bool = False

    @property
    def needs_evidence(self) -> bool:
        """True if the verdict on a share of the claim depends on evidence, or on its use."""
        return any(share.limit for share in self.claim.shares)

    def worst(self) -> Verdict | None:
        """Return the worst current verdict; None if there is none."""
        return verdicts.worst(each.verdict for each in self.current or ())

    def begin(self, found: Sequence[Verdict], now: datetime) -> Sequence[CurrentVerdict]:
        """Make these the current verdicts unless there are some; return the current ones."""
        if self.current is None:
            self.current = tuple(CurrentVerdict(verdict=each, since=now) for each in found)
        return self.current

    def replace(self, found: Sequence[Verdict], now: datetime, *, clock_seconds: float) -> bool:
        """Replace the current verdicts if others were found and enough time has passed.

        Return True if they were replaced. The first ones replace none.
        """
        current = self.begin(found, now)
        newer = tuple(old.after(each, now) for old, each in zip(current, found, strict=True))
        is_worse = _are_broken(newer) and not _are_broken(current)
        if newer == current or (clock_seconds < self.settled_until and not is_worse):
            return False
        self.current = newer
        self.settled_until = clock_seconds + SPACING_SECONDS
        return True


def _watched_before(claim: PreparedClaim, kept: object) -> WatchedLimits:
    """Return a claim from before this process.

    Args:
        claim: As it is recorded.
        kept: Its current verdicts from the file, or anything else. Without them, the claim's
            status is written again, since nobody knows what it shows.
    """
    watched = WatchedLimits(claim=claim, limits_since=-math.inf)
    if not isinstance(kept, list) or len(kept) != len(claim.shares):
        return watched
    try:
        watched.current = tuple(map(CurrentVerdict.from_json, kept))
    except (ValueError, KeyError, TypeError):
        return watched
    watched.is_shown = True
    watched.is_warned = _are_broken(watched.current)
    return watched


def _are_broken(current: Sequence[CurrentVerdict]) -> bool:
    """Return True if the limits of a share do not hold."""
    return any(each.verdict.state is State.NOT_ENFORCED for each in current)


class EnforcementAnnouncer:
    """Writer of log lines and Events on pods about limits, for one thread.

    A warning remains until the limits are seen to hold. So a hypervisor that restarts causes one
    pair of Events for each pod, whatever states lie between them. Advisory limits cause none: the
    administrator chose them.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._pending: dict[str, tuple[PreparedClaim, Verdict]] = {}  # by claim UID

    def announce(self, watched: WatchedLimits) -> None:
        """Log and queue an Event if the limits no longer hold, or hold again."""
        found = watched.worst()
        if found is None or found.state is State.UNKNOWN or found.reason == verdicts.NO_ENFORCER:
            return
        is_warning = found.state is State.NOT_ENFORCED
        if is_warning == watched.is_warned:
            return
        watched.is_warned = is_warning
        ref = watched.claim.ref
        if is_warning:
            log.warning(
                "limits_not_enforced",
                claim=str(ref),
                claim_uid=ref.uid,
                reason=found.reason,
                error=found.text,
            )
        else:
            log.info("limits_enforced", claim=str(ref), claim_uid=ref.uid, reason=found.reason)
        self._pending[ref.uid] = watched.claim, found

    def write_events(self) -> None:
        """Write a few pending Events, up to the first failure."""
        for uid, (claim, found) in list(self._pending.items())[:_MAX_EVENTS]:
            if found.state is State.NOT_ENFORCED:
                write, reason = self._events.warn, names.EVENT_LIMITS_NOT_ENFORCED
            else:
                write, reason = self._events.note, names.EVENT_LIMITS_ENFORCED
            text = f"claim {claim.ref.name}: {found.text}"
            pods = claim.pods[:MAX_PODS] or (None,)
            if not all(write(reason, text, pod=pod) for pod in pods):
                return
            del self._pending[uid]


class EnforcementWatch:
    """Loop that checks all claims' limits; its other methods are safe for all threads."""

    def __init__(
        self,
        enforcers: Mapping[str, Enforcer],
        saved: SavedState,
        *,
        records: Records = tuple,
        now: Callable[[], datetime],
        node: EnforcerChooser | None = None,
        excess: Callable[[PreparedClaim], Sequence[str]] = lambda _: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load the current verdicts of the process before.

        Args:
            enforcers: By name.
            saved: Keeps the current verdicts.
            records: Returns all recorded claims.
            now: Returns the wall clock's time, for lastTransitionTime.
            node: The node's enforcer; None for simulated GPUs.
            excess: Returns for each share how it was seen to be over its limit; see UseWatch.
            clock: In seconds, for ages and delays.
        """
        self._enforcers = enforcers
        self._state = saved
        self._records = records
        self._node = node
        self._excess = excess
        self._clock = clock
        self._now = now
        self._wakeup = Wakeup()
        kept = saved.load() or {}
        self._limiter_seen: object = kept.get(saved_state.LIMITER_SEEN)
        # Of run()'s thread alone:
        self._throttle = LogThrottle(clock=clock)
        self._saved: Mapping[str, Any] | None = None
        self._lock = Lock()  # guards _watched
        self._watched = {  # by claim UID
            claim.ref.uid: _watched_before(claim, kept.get(claim.ref.uid)) for claim in records()
        }

    def _read_records(self) -> None:
        """Watch the claims that are recorded now, and no others; call it while the lock is held.

        If they cannot be read now, those of the last reading remain.
        """
        try:
            recorded = self._records()
        except RetryableError:
            return
        before, self._watched = self._watched, {}
        for claim in recorded:
            known = before.get(claim.ref.uid)
            if known is None or len(known.claim.shares) != len(claim.shares):
                known = WatchedLimits(claim=claim, limits_since=self._clock())
            elif [each.limit for each in known.claim.shares] != [
                each.limit for each in claim.shares
            ]:
                known.limits_since = self._clock()
            known.claim = claim
            self._watched[claim.ref.uid] = known

    def current(self, claim: PreparedClaim) -> Sequence[CurrentVerdict]:
        """Return the current verdict for each share, for the claim's status.

        () if the claim is unprepared by now.
        """
        with self._lock:
            self._read_records()
            known = self._watched.get(claim.ref.uid)
            if known is None or len(known.claim.shares) != len(claim.shares):
                return ()
            known.is_shown = True
            if known.current is not None:
                return known.current
        found = self._verdicts(known)
        with self._lock:
            return known.begin(found, self._now())

    def current_verdicts(self) -> Mapping[str, Sequence[CurrentVerdict]]:
        """Return the current verdicts of all watched claims by UID; nothing is read for it."""
        with self._lock:
            return {uid: each.current for uid, each in self._watched.items() if each.current}

    def node(self) -> CurrentVerdict | None:
        """Return the verdict about the node's enforcer; None before the first check, or if none."""
        return self._node.current if self._node else None

    def stop(self) -> None:
        """End run()."""
        self._wakeup.stop()

    def wake(self) -> None:
        """Check all claims now."""
        self._wakeup.wake()

    def run(
        self,
        report: Callable[[PreparedClaim], object],
        events: Events,
        settle: Callable[[], object] = lambda: None,
    ) -> None:
        """Check until stopped.

        Args:
            report: Queues a claim's status to be written.
            events: Writer for this loop's thread only.
            settle: Sets binding conditions once the node was checked.
        """
        announcer = EnforcementAnnouncer(events)
        while self._wakeup.next_round():
            if self._node is not None:
                self._node.check(events.warn)
            settle()
            self.check(report, announcer)
            announcer.write_events()
            self._wakeup.wait(CHECK_SECONDS)

    def check(
        self, report: Callable[[PreparedClaim], object], announcer: EnforcementAnnouncer
    ) -> None:
        """Check every claim once, report what changed, and save it for the next process."""
        with self._lock:
            self._read_records()
            watched = [each for each in self._watched.values() if each.needs_evidence]
        for each in watched:
            claim = each.claim
            self._apply_again(claim)
            found = self._verdicts(each)
            with self._lock:
                self._read_records()
                if self._watched.get(claim.ref.uid) is not each or each.claim != claim:
                    continue  # unprepared or changed meanwhile
                is_changed = each.replace(found, self._now(), clock_seconds=self._clock())
                is_due = is_changed or not each.is_shown
                each.is_shown = True
            announcer.announce(each)
            if is_due:
                report(claim)
        with self._lock:
            record: dict[str, object] = {
                uid: [current.as_json() for current in each.current]
                for uid, each in self._watched.items()
                if each.current is not None and each.needs_evidence
            }
            seen = [
                {"claim": str(each.claim.ref), "since": current.since.isoformat()}
                for each in self._watched.values()
                for current in each.current or ()
                if current.verdict.reason in verdicts.LIMITER_SEEN
            ]
        # It shows as well that containers get what CDI specs add, which `doctor` asks for.
        self._limiter_seen = max(seen, key=itemgetter("since"), default=self._limiter_seen)
        record |= {saved_state.LIMITER_SEEN: self._limiter_seen} if self._limiter_seen else {}
        if record != self._saved:
            with self._throttle.warning("enforcement_record_failed"):
                self._state.save(record)
                self._saved = record

    def _apply_again(self, claim: PreparedClaim) -> None:
        """Set limits again that may have been lost, or that could not be set before."""
        enforcer = self._enforcers.get(claim.enforcer)
        if enforcer is None or not enforcer.facts.loses_limits:
            return
        with self._throttle.warning("limits_not_applied", key=claim.ref.uid, claim=str(claim.ref)):
            enforcer.apply(claim, self._records, time.monotonic() + _APPLY_SECONDS)

    def _verdicts(self, watched: WatchedLimits) -> Sequence[Verdict]:
        claim = watched.claim
        with self._lock:
            others = [each.claim for each in self._watched.values()]
        return enforcer_rules.judged(
            claim,
            self._enforcers.get(claim.enforcer),
            others,
            is_new=self._clock() - watched.limits_since < verdicts.STARTING_SECONDS,
            excess=self._excess(claim),
        )
