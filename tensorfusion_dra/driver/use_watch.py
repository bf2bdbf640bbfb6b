"""Watch over the use of the cards: the use of each share, and processes without a share.

Every ten seconds a thread reads which processes use which card, and assigns them to shares
(core/claims/use.py). The results are:

- evidence about limits: a share that is over its memory limit in two readings in a row is not
  enforced, whatever its limiter says (EnforcementWatch asks excess());
- what a claim's status shows as used, at most once a minute and only if it changed notably, so that
  use costs the API server next to nothing;
- one warning and one Event on the Node for each card that something outside of the shares uses.

A pod that came to a claim after it was prepared is in no record, because the kubelet does not call
again for it. So the claims of a card are read once when the first process of an unknown pod uses
it.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import claim as claim_rules
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims import use
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.ports import ClaimSource, Events
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.use import GpuProcess, NodeUse, Used
from tensorfusion_dra.core.errors import ClaimError, DriverError, RetryableError
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.runtime.loops import LogThrottle, Wakeup

log = structlog.get_logger()

CHECK_SECONDS: Final = 10.0
SHOWN_SECONDS: Final = 60.0
"""Shortest time between two writes of a claim's use into its status."""
_READ_SECONDS: Final = 5.0
_OLD_SECONDS: Final = 3 * CHECK_SECONDS

Uses = Sequence[Used | None]
"""For each share of a claim in its order; None while it is not known."""
Shares = frozenset[tuple[str, int]]
"""Shares by claim UID and position."""


class UseWatch:
    """Loop that observes the use; its other methods are safe for all threads."""

    def __init__(
        self,
        processes: Callable[[], Mapping[str, Sequence[GpuProcess]]],
        prepared: Callable[[], Sequence[PreparedClaim]],
        claims_at_server: ClaimSource,
        enforcers: Mapping[str, Enforcer],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        processes: Returns those of each card, by GPU UUID; raises RetryableError.
        prepared: Returns all prepared claims.
        claims_at_server: Read for the pods that came to a claim later.
        enforcers: By name; some count the memory of a claim's pod.
        clock: In seconds, for the time of the next write of a status.
        """
        self._processes = processes
        self._prepared = prepared
        self._claims = claims_at_server
        self._enforcers = enforcers
        self._clock = clock
        self._wakeup = Wakeup()
        # Of run()'s thread alone:
        self._throttle = LogThrottle(quiet_seconds=math.inf)
        self._warned: set[str] = set()
        self._known_pods: set[str] = set()
        self._late_pods: dict[str, set[str]] = {}  # by claim UID
        # Replaced as a whole, so that reading needs no lock:
        self._current: NodeUse = use.NOTHING
        self._read_at = -math.inf
        self._over: Shares = frozenset()  # over their limits in the last reading
        self._excess: Shares = frozenset()  # and in the one before as well
        self._shown: Mapping[str, tuple[Uses, float]] = {}  # with its time, by claim UID

    def current(self) -> NodeUse:
        """Return what the last reading found."""
        return self._current

    def working(self) -> AbstractSet[str] | None:
        """Return the UIDs of the claims whose kernels ran lately, or may have.

        None if the last reading failed, or is not one of the last seconds.
        """
        found = self._current
        if found.reason or self._clock() > self._read_at + _OLD_SECONDS:
            return None
        return {
            uid
            for uid, shares in found.shares.items()
            if any(used is None or used.sm_percent for used in shares)
        }

    def shown(self, claim_uid: str) -> Uses:
        """Return what the claim's status shows; () for nothing."""
        return self._shown.get(claim_uid, ((), 0.0))[0]

    def excess(self, claim: PreparedClaim) -> Sequence[str]:
        """Return for each share how it is over its limit, "" if it is not; () if none is known."""
        uid = claim.ref.uid
        found = self._current.shares.get(uid, ())
        if len(found) != len(claim.shares):
            return ()
        return [
            f"{share.gpu_uuid}: found {used.memory} of memory in use by "
            f"{used.processes} processes, expected at most {Quantity.of_bytes(limit.vram_bytes)}; "
            "nothing keeps it within its limit"
            if (uid, index) in self._excess and used and (limit := share.limit)
            else ""
            for index, (share, used) in enumerate(zip(claim.shares, found, strict=True))
        ]

    def stop(self) -> None:
        """End run()."""
        self._wakeup.stop()

    def run(
        self,
        report: Callable[[PreparedClaim], object],
        events: Events,
        on_excess: Callable[[], object],
    ) -> None:
        """Observe until stopped.

        Args:
            report: Has the status of a claim written.
            events: Writer for this loop's thread only.
            on_excess: Called when a share exceeds its limit, or no longer does.
        """
        while self._wakeup.next_round():
            try:
                self.check(report, events, on_excess)
                self._throttle.over()
            except DriverError as error:
                self._current = NodeUse(shares={}, foreign={}, foreign_text={}, reason=str(error))
                self._throttle.warn("use_not_observed", error)
            self._wakeup.wait(CHECK_SECONDS)

    def check(
        self,
        report: Callable[[PreparedClaim], object],
        events: Events,
        on_excess: Callable[[], object],
    ) -> None:
        """Observe once.

        Raises:
            RetryableError: The use or the records cannot be read now.
            FatalError: The NVIDIA driver was replaced.
        """
        prepared = [claim for claim in self._prepared() if claim.shares]
        exact = {
            key: each
            for claim in prepared
            if (enforcer := self._enforcers.get(claim.enforcer))
            for key, each in enforcer.used(claim).items()
        }
        cards: Mapping[str, Sequence[GpuProcess]] = {}
        reason = ""
        try:
            cards = self._processes()
        except RetryableError as error:
            if not exact:
                raise
            reason = str(error)
        unknown = self._find_late_pods(prepared, cards)
        found = use.of_node(
            prepared,
            cards,
            pods=self._late_pods,
            exact=exact,
            raised=enforcer_rules.raised(self._enforcers.values()),
            reason=reason,
        )
        self._current, self._read_at = found, self._clock()
        over = frozenset(
            (claim.ref.uid, index)
            for claim in prepared
            for index, used in enumerate(found.shares[claim.ref.uid])
            if used is not None and used.exceeds(claim.shares[index].limit)
        )
        before, self._excess = self._excess, self._over & over
        self._over = over
        if before != self._excess:
            on_excess()
        self._show(prepared, report)
        for uuid, text in found.foreign_text.items():
            if uuid in unknown:
                continue
            message = f"{uuid}: found processes outside of all shares: {text}"
            if self._throttle.is_new(uuid, key=uuid):
                log.warning("foreign_processes", uuid=uuid, error=message)
            if uuid not in self._warned and events.warn(names.EVENT_FOREIGN_PROCESSES, message):
                self._warned.add(uuid)

    def _show(
        self, prepared: Sequence[PreparedClaim], report: Callable[[PreparedClaim], object]
    ) -> None:
        now = self._clock()
        uids = {claim.ref.uid for claim in prepared}
        self._shown = {uid: shown for uid, shown in self._shown.items() if uid in uids}
        for claim in prepared:
            uid = claim.ref.uid
            found = self._current.shares[uid]
            before, at = self._shown.get(uid, ((), -math.inf))
            if now - at >= SHOWN_SECONDS and _differ(claim, found, before):
                self._shown = {**self._shown, uid: (found, now)}
                report(claim)

    def _find_late_pods(
        self, prepared: Sequence[PreparedClaim], cards: Mapping[str, Sequence[GpuProcess]]
    ) -> set[str]:
        """Find the pods that came to a claim later; return the cards for which some are unread."""
        unknown: set[str] = set()
        uids = {claim.ref.uid for claim in prepared}
        self._late_pods = {uid: pods for uid, pods in self._late_pods.items() if uid in uids}
        known = {pod.uid for claim in prepared for pod in claim.pods}
        seen: set[str] = set()
        for uuid, processes in cards.items():
            pods = {each.container.pod_uid for each in processes if each.container}
            seen |= pods
            if pods <= known | self._known_pods:
                continue
            try:
                for claim in prepared:
                    if any(share.gpu_uuid == uuid for share in claim.shares):
                        self._late_pods[claim.ref.uid] = self._pods_of(claim)
                self._known_pods |= pods
            except RetryableError:
                unknown.add(uuid)
        self._known_pods &= seen
        return unknown

    def _pods_of(self, claim: PreparedClaim) -> set[str]:
        """Return the UIDs of the claim's pods; none if it is gone, as its record will be soon.

        Raises:
            RetryableError: It cannot be read now.
        """
        try:
            stored = self._claims.fetch(claim.ref, wait_seconds=_READ_SECONDS)
            return {pod.uid for pod in claim_rules.allocated(claim.ref, stored).pods}
        except ClaimError:
            return set()


def _differ(claim: PreparedClaim, found: Uses, before: Uses) -> bool:
    """Return True if a share's use differs notably from its status."""
    if len(before) != len(found):
        return any(found)
    return any(
        (new is None) != (old is None)
        or (new is not None and old is not None and new.differs(old, share.reserved.vram_bytes))
        for share, new, old in zip(claim.shares, found, before, strict=True)
    )
