"""Watch over the limits of all prepared claims: does an enforcer keep them now?

A thread reads the evidence about each claim every ten seconds, from files and local sockets alone.
What they mean is decided in core/claims/verdicts.py. The current verdicts are those in the
claim's status. They are replaced when a state or a reason changes, not when only a text does.

- A new claim: note(). Its first verdict is made when its status is written for the first time, and
  goes with that write. So there is no further request for it.
- A changed verdict: its status is queued (status.py), a line is logged, and its pods get an Event
  when the limits stop holding and when they hold again (EnforcementAnnouncer). Limits that
  stop holding are reported at once. Other changes are reported at most once a minute and claim, so
  that an enforcer that comes and goes does not flood the API server.
- A claim from before this process: follow(). Its current verdicts were kept in a file, so that a
  restart of the driver writes no status again.
- An unprepared claim: forget().

Where the use of the cards is observed (use_watch.py), a share that was seen to be over its limit is
not enforced, whatever the evidence says.

Example: the hypervisor of a node with 30 pods dies. At the next check, the 30 shared memories have
no fresh heartbeat: 30 statuses are queued, and as many Events, of which five are written at each
check. When it runs again, the same happens once more, but not before the minute is over.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Lock
from typing import Any, Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import presence, verdicts
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.enforcers.nvidia.enforcer import Nvidia
from tensorfusion_dra.core.claims.evidence import (
    Evidence,
    EvidencePaths,
    NodeEvidence,
    NodeEvidencePaths,
)
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.enforcers.choice import Choice
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict, State, Verdict
from tensorfusion_dra.core.devices.device import Enforcement, Node
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports import Events, EvidenceReader
from tensorfusion_dra.runtime.loops import LogThrottle, Wakeup
from tensorfusion_dra.state.saved_state import SavedState

SPACING_SECONDS: Final = 60.0
"""Shortest time between two changes of a claim's current verdicts, unless it is for the worse."""


@dataclass(slots=True, kw_only=True)
class WatchedLimits:
    """A claim, and what is known about its limits.

    Attributes:
        paths: Where the claim's enforcer leaves evidence.
        limits_since: Time on the clock at which its present limits were set.
        current: For each share; None until the first verdict.
        is_shown: True if the current verdicts are in the claim's status, or on their way.
        settled_until: Time on the clock before which the current verdicts are not replaced, except
            once limits hold no longer.
        is_warned: True if a warning was given that has not been withdrawn.
    """

    claim: PreparedClaim
    paths: EvidencePaths
    limits_since: float
    current: tuple[CurrentVerdict, ...] | None = None
    is_shown: bool = True
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


def _followed(claim: PreparedClaim, paths: EvidencePaths, kept: object) -> WatchedLimits:
    """Return a claim from before this process.

    Args:
        claim: As it is recorded.
        paths: Where its enforcer leaves evidence.
        kept: Its current verdicts from the file, or anything else. Without them, the claim's
            status is written again, since nobody knows what it shows.
    """
    watched = WatchedLimits(claim=claim, paths=paths, limits_since=-math.inf)
    watched.is_shown = not watched.needs_evidence
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


log = structlog.get_logger()

_MOST_EVENTS: Final = 5
"""Claims whose Events are written in one go."""
_MOST_PODS: Final = 4
"""Pods of one claim that get an Event."""


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
        """Log it and queue an Event if the limits hold no longer, or hold again."""
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
        for uid, (claim, found) in list(self._pending.items())[:_MOST_EVENTS]:
            if found.state is State.NOT_ENFORCED:
                write, reason = self._events.warn, names.EVENT_LIMITS_NOT_ENFORCED
            else:
                write, reason = self._events.note, names.EVENT_LIMITS_ENFORCED
            text = f"claim {claim.ref.name}: {found.text}"
            pods = claim.pods[:_MOST_PODS] or (None,)
            if not all(write(reason, text, pod=pod) for pod in pods):
                return
            del self._pending[uid]


CHECK_SECONDS: Final = 10.0
NODE_CHECK_SECONDS: Final = 60.0
_FRESH_SECONDS: Final = 5.0
"""Age up to which evidence of a living enforcer counts at a prepare."""
_SIMULATED: Final = verdicts.unknown(verdicts.SIMULATED, "simulated GPUs: nothing to enforce")


class NodeEnforcer:
    """The node's enforcer: which one gets new claims, and would it enforce their limits?

    An enforcer that the settings name is always the one, there or not. Of several (`auto`), the
    first that is there is chosen, from evidence of the last seconds, and any is looked for anew at
    each prepare while none is there: it may come and go while this process runs. If the node's pool
    expands its cards' memory, only enforcers that can do this count.

    Check the evidence once a minute, in the watch's thread. Log a missing enforcer and write one
    Event on the Node; write another one only after the enforcer was back. That limits are advisory
    is no Event: the administrator chose it.

    With a wait (enforcer-wait-seconds), a missing enforcer shows on the devices as well, if parts
    of cards would be refused for it. First they carry a binding condition: pods get this node and
    wait at the scheduler. After the wait they carry a taint instead: pods get other nodes.
    BindingConditions (binding_conditions.py) ends the wait of claims.

    Example: a bare node has the choice `none`, and pods with a part of a card wait. HAMi-core's
    library is installed: the kubelet's next prepare, or the next check, chooses `hami-core`, and
    the devices are published again with this name.
    """

    def __init__(
        self,
        evidence: EvidenceReader,
        candidates: Mapping[str, Enforcer],
        paths: Mapping[str, NodeEvidencePaths],
        *,
        is_auto: bool,
        is_required: bool,
        is_needed: bool = True,
        wait_seconds: float = 0.0,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check nothing yet.

        Args:
            evidence: Reads what the enforcers leave.
            candidates: The enforcers that come into question, by name in their order; at least one.
            paths: Where each leaves evidence of itself; none for simulated GPUs.
            is_auto: False if the one candidate is chosen in any case.
            is_required: True if claims wait for signs of life (require-enforcement).
            is_needed: False if shares in the default isolation need no enforcer: then none is
                missed.
            wait_seconds: How long the devices carry a binding condition once the enforcer is
                missing; 0 to show nothing but its attributes.
            now: Returns the wall clock's time.
            clock: In seconds, for the age of evidence and the time of the next check.
        """
        self._evidence = evidence
        self._candidates = candidates
        self._paths = paths
        self._is_auto = is_auto
        self._is_required = is_required
        self._is_needed = is_needed
        self._wait_seconds = wait_seconds
        self._now = now
        self._clock = clock
        self._check_at = -math.inf
        # Each replaced as a whole, so that reading needs no lock:
        self._choice: Choice | None = None
        self._current: CurrentVerdict | None = None
        self._read_at = -math.inf
        self._shown: Enforcement | None = None
        self._absent_since: tuple[float, datetime] | None = None  # on both clocks
        self._expands = False
        self._is_missing = False
        self._pending = ""  # text of an Event that is not written yet
        self.on_change: Callable[[], None] = lambda: None
        """Called, from any thread, when what the devices show of the enforcer has changed."""
        self.was_awaited = True
        """Set, by any thread, while pods wait at the scheduler; perhaps by the process before."""

    def current(self) -> CurrentVerdict | None:
        """Return the current verdict; None before the first check."""
        return self._current

    def shown(self) -> Enforcement | None:
        """Return what the devices show, as last read; None before the first reading."""
        return self._shown

    def of_new_claim(self) -> Choice:
        """Return the choice for a claim that is prepared now."""
        known = self._choice
        if known is None or (
            self._is_auto and (known.lacking or self._clock() >= self._read_at + _FRESH_SECONDS)
        ):
            return self._choose()
        return known

    def enforces_hard(self, choice: Choice) -> bool:
        """Return True if the enforcer brings a limiter for hard isolation."""
        # Where none is there, the claim is refused for that, not for its isolation.
        return bool(choice.lacking) or self._candidates[choice.enforcer].enforces_hard

    def required_evidence(self) -> NodeEvidence | None:
        """Return the evidence of the enforcer without which claims wait; None if none has to be.

        With `auto` the choice itself says that one is there.
        """
        # What the NVIDIA driver can limit is not seen from files.
        is_asked = self._is_required or Nvidia.name in self._candidates
        if self._is_auto or not is_asked:
            return None
        return next((self._evidence.of_node(paths) for paths in self._paths.values()), None)

    def of_devices(self, node: Node) -> Enforcement:
        """Return what the devices of the node show.

        Args:
            node: As it is published now: its pool may expand the cards' memory.
        """
        ratios = node.oversubscription
        expands = ratios is not None and ratios.expands_memory
        known = self._shown
        if known is None or expands != self._expands:
            self._expands = expands
            known = self._show(self._read())
        return known

    def check(self, events: Events) -> None:
        """Check the evidence if it is time, and write the Event that is due.

        Args:
            events: Of the caller's thread alone.
        """
        if self._clock() >= self._check_at or self._absent_since is not None:
            self._check_at = self._clock() + NODE_CHECK_SECONDS
            choice = self._choose()
            if self._is_needed:
                self._report(choice)
        if self._pending and events.warn(names.EVENT_ENFORCER_MISSING, self._pending):
            self._pending = ""

    def _report(self, choice: Choice) -> None:
        """Make the choice's verdict the current one, and log what changed."""
        found = choice.with_cure(is_required=self._is_required)
        if not choice.lacking:
            found = replace(found, text=f"enforcer {choice.enforcer}: {found.text}")
        before = self._current or CurrentVerdict(verdict=found, since=self._now())
        self._current = before.after(found, self._now())
        was_missing = self._is_missing
        self._is_missing = found.state is State.NOT_ENFORCED
        facts = {"enforcer": choice.enforcer, "reason": found.reason}
        if self._is_missing and not was_missing:
            log.warning("enforcer_not_seen", **facts, error=found.text)
            if found.reason != verdicts.NO_ENFORCER:
                self._pending = found.text
        elif was_missing and not self._is_missing:
            log.info("enforcer_seen", **facts)
            self._pending = ""

    def _choose(self) -> Choice:
        """Read the evidence anew; have the devices published again if they show something else."""
        before, choice = self._shown, self._read()
        if self._show(choice) != before and before is not None:
            self.on_change()
        return choice

    def _read(self) -> Choice:
        looked_for = {}
        for name, enforcer in self._candidates.items():
            if self._is_auto and self._expands and not enforcer.expands_memory:
                continue
            paths = self._paths.get(name)
            evidence = self._evidence.of_node(paths) if paths else None
            found = presence.of_node(name, evidence) if evidence else _SIMULATED
            if found.state is not State.NOT_ENFORCED or not self._is_auto:
                choice = Choice(
                    enforcer=name,
                    verdict=found,
                    cure=presence.cure(name),
                    hints=evidence.daemon.hints if evidence and evidence.daemon else (),
                )
                break
            looked_for[name] = found
        else:
            choice = presence.none_found(looked_for)
        if self._is_auto and (self._choice is None or self._choice.enforcer != choice.enforcer):
            log.info("enforcer_chosen", enforcer=choice.enforcer, reason=choice.verdict.reason)
        self._choice, self._read_at = choice, self._clock()
        return choice

    def _show(self, choice: Choice) -> Enforcement:
        """Make the choice what the devices show, and return that."""
        shown = Enforcement(enforcer=choice.enforcer)
        chosen, found = self._candidates.get(choice.enforcer), choice.verdict
        is_absent = found.state is State.NOT_ENFORCED
        if chosen is not None and not is_absent:
            shown = replace(shown, compute=chosen.enforces_compute, memory=chosen.enforces_memory)
        is_missed = is_absent and self._is_needed and self._wait_seconds > 0
        if is_missed and presence.refuses(found, is_required=self._is_required):
            since, at = self._absent_since = self._absent_since or (self._clock(), self._now())
            is_over = self._clock() >= since + self._wait_seconds
            shown = replace(shown, is_awaited=not is_over, given_up_since=at if is_over else None)
            self.was_awaited |= shown.is_awaited
        else:
            self._absent_since = None
        self._shown = shown
        return shown


class EnforcementWatch:
    """Loop that checks all claims' limits; its other methods are safe for all threads."""

    def __init__(
        self,
        evidence: EvidenceReader,
        enforcers: Mapping[str, Enforcer],
        records: SavedState,
        *,
        now: Callable[[], datetime],
        node: NodeEnforcer | None = None,
        excess: Callable[[PreparedClaim], Sequence[str]] = lambda _: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load the current verdicts of the process before.

        Args:
            evidence: Reads what enforcers leave.
            enforcers: By name.
            records: Keeps the current verdicts.
            now: Returns the wall clock's time, for lastTransitionTime.
            node: The node's enforcer; None for simulated GPUs.
            excess: Returns for each share how it was seen to be over its limit; see UseWatch.
            clock: In seconds, for ages and delays.
        """
        self._evidence = evidence
        self._enforcers = enforcers
        self._records = records
        self._node = node
        self._excess = excess
        self._clock = clock
        self._now = now
        self._wakeup = Wakeup()
        self._kept = records.load() or {}
        # Of run()'s thread alone:
        self._throttle = LogThrottle(clock=clock)
        self._saved: Mapping[str, Any] | None = None
        self._lock = Lock()  # guards all below
        self._watched: dict[str, WatchedLimits] = {}  # by claim UID
        self._absent: frozenset[str] = frozenset()

    def note(self, claim: PreparedClaim) -> None:
        """Watch a claim that was prepared, or whose record changed."""
        with self._lock:
            known = self._watched.get(claim.ref.uid)
            if known is not None and known.claim is claim:
                return
            has_same_limits = known is not None and (
                [each.limit for each in known.claim.shares] == [each.limit for each in claim.shares]
            )
            if known is None or len(known.claim.shares) != len(claim.shares):
                known = WatchedLimits(claim=claim, paths=EvidencePaths(), limits_since=0.0)
                self._watched[claim.ref.uid] = known
            known.claim, known.paths = claim, self._evidence_paths(claim)
            if not has_same_limits:
                known.limits_since = self._clock()

    def forget(self, claim_uid: str) -> None:
        """Watch a claim no longer."""
        with self._lock:
            self._watched.pop(claim_uid, None)

    def follow(self, recorded: Iterable[PreparedClaim]) -> None:
        """Watch exactly these claims and those noted lately: another instance may have changed any.

        A claim is dropped once it was missing twice in a row, because it may have been noted after
        the records were read.
        """
        claims = {claim.ref.uid: claim for claim in recorded if claim.shares}
        with self._lock:
            for uid, claim in claims.items():
                if uid not in self._watched:
                    self._watched[uid] = _followed(
                        claim, self._evidence_paths(claim), self._kept.get(uid)
                    )
            absent = frozenset(self._watched.keys() - claims.keys())
            for uid in absent & self._absent:
                del self._watched[uid]
            self._absent = absent

    def current(self, claim: PreparedClaim) -> Sequence[CurrentVerdict]:
        """Return the current verdict for each share, for the claim's status; () if not watched."""
        with self._lock:
            known = self._watched.get(claim.ref.uid)
            if known is None or len(known.claim.shares) != len(claim.shares):
                return ()
            known.is_shown = True
            if known.current is not None:
                return known.current
        found = self._verdicts(known, self._evidence.of_claim(known.paths))
        with self._lock:
            return known.begin(found, self._now())

    def current_verdicts(self) -> Mapping[str, Sequence[CurrentVerdict]]:
        """Return the current verdicts of all watched claims by UID; nothing is read for it."""
        with self._lock:
            return {uid: each.current for uid, each in self._watched.items() if each.current}

    def node(self) -> CurrentVerdict | None:
        """Return the verdict about the node's enforcer; None before the first check, or if none."""
        return self._node.current() if self._node else None

    def stop(self) -> None:
        """End run()."""
        self._wakeup.stop()

    def wake(self) -> None:
        """Have everything checked now."""
        self._wakeup.wake()

    def run(
        self,
        report: Callable[[PreparedClaim], object],
        events: Events,
        restore: Callable[[PreparedClaim], object] = lambda _: None,
        settle: Callable[[], object] = lambda: None,
    ) -> None:
        """Check until stopped.

        Args:
            report: Has the status of a claim written.
            events: Of this loop's thread alone.
            restore: Has lost limits of a claim set again.
            settle: Sets binding conditions, after the node's check.
        """
        announcer = EnforcementAnnouncer(events)
        while self._wakeup.next_round():
            if self._node is not None:
                self._node.check(events)
            settle()
            self.check(report, announcer, restore)
            announcer.write_events()
            self._wakeup.wait(CHECK_SECONDS)

    def check(
        self,
        report: Callable[[PreparedClaim], object],
        announcer: EnforcementAnnouncer,
        restore: Callable[[PreparedClaim], object] = lambda _: None,
    ) -> None:
        """Check every claim once, report what changed, and save it for the next process."""
        with self._lock:
            watched = [each for each in self._watched.values() if each.needs_evidence]
        read: dict[str, Evidence] = {}  # by paths: a daemon is asked once for all of its claims
        for each in watched:
            claim, paths = each.claim, str(each.paths)
            restore(claim)
            if paths not in read:
                read[paths] = self._evidence.of_claim(each.paths)
            found = self._verdicts(each, read[paths])
            with self._lock:
                if self._watched.get(claim.ref.uid) is not each or each.claim is not claim:
                    continue  # unprepared or changed meanwhile
                is_changed = each.replace(found, self._now(), clock_seconds=self._clock())
                is_due = is_changed or not each.is_shown
                each.is_shown = True
            announcer.announce(each)
            if is_due:
                report(claim)
        with self._lock:
            record = {
                uid: [current.as_json() for current in each.current]
                for uid, each in self._watched.items()
                if each.current is not None and each.needs_evidence
            }
        if record != self._saved:
            try:
                self._records.save(record)
                self._saved = record
            except RetryableError as error:
                if self._throttle.is_new(str(error)):
                    log.warning("enforcement_record_failed", error=str(error))

    def _verdicts(self, watched: WatchedLimits, evidence: Evidence) -> Sequence[Verdict]:
        claim = watched.claim
        with self._lock:
            every = ((each.claim, each.paths) for each in self._watched.values())
            beside = verdicts.beside(claim, watched.paths, every)
        is_new = self._clock() - watched.limits_since < verdicts.STARTING_SECONDS
        return verdicts.of_claim(
            claim,
            evidence,
            is_new=is_new,
            beside=beside,
            judge=verdicts.judge_of(self._enforcers.get(claim.enforcer)),
            excess=self._excess(claim),
        )

    def _evidence_paths(self, claim: PreparedClaim) -> EvidencePaths:
        return presence.evidence_paths(claim, self._enforcers.get(claim.enforcer))
