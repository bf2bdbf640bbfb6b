"""Collection of stale claims: records of claims that are gone and that the kubelet has forgotten.

The kubelet unprepares a claim once the containers of its pods have ended, even if the objects at
the API server are deleted. It keeps its list of prepared claims in a checkpoint. If that file is
lost, no call ever frees the claim. So this module checks the recorded claims at the API server. A
claim is in one of these states:

- **present**: it has a device of this node.
- **gone**: it was deleted, replaced by a claim of the same name, deallocated, or allocated without
  a device of this node. The time of the first check with this result is kept.
- **released**: it was gone for `gone_seconds`, and its files and its record are removed.

A claim that is gone may still be in use: when a pod is force-deleted, its finalizers go while its
containers run. Therefore a claim has to be gone for longer than the kubelet needs to end such
containers, and the kubelet must have been there to do so: whenever the Node is not Ready, the time
of all claims that are gone starts again. A check that gets no answer changes nothing. A claim that
is present again was never gone. As a rule, the kubelet's own call comes first.

A check is one request, so a fleet must not make many of them. Each claim is checked once in
`check_seconds` (6 hours), from a random time on, and at most ten in a round. All claims are
checked within the next rounds if a claim was refused: the record of a claim that is gone may take
the room. Urgent claims are checked in every round and before the others: claims that are gone, and
claims of which only files are left, or a damaged record. Such a claim is prepared again if it is
present, which rebuilds its record. If it is gone and only files are left of it, they take no share
any more: a node may have joined another cluster. A claim that cannot be read is no longer urgent,
so it keeps no other from being checked.

Example, with a round each minute and `gone_seconds` 600: claim `a` is deleted, and the kubelet has
lost its checkpoint. Nobody misses its share for three hours. Then claim `b` is refused, because `a`
is recorded on its card. The next round, in minute 0, finds `a` gone; from then on it is checked
each minute. In minute 5 the Node is not Ready, so the time starts again in minute 6. Minute 16
releases `a`, and the kubelet's next call for `b` succeeds.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from tensorfusion_dra.core.claims import prepared
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.ports import ClaimSource, Nodes
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver.prepare import Preparer

log = structlog.get_logger()

MAX_PER_ROUND: Final = 10
"""Claims that a round checks, besides urgent ones."""
_MAX_URGENT: Final = 50
_MAX_FAILURES: Final = 3
"""Failed checks after which a round ends, because the API server seems to be unavailable."""
_FRESH_SECONDS: Final = 600.0
"""Age up to which a check need not be repeated, whatever was refused."""
_RETRY_SECONDS: Final = 600.0
"""Time after which a claim that could not be read is checked again."""
_READ_SECONDS: Final = 5.0
_CALL_SECONDS: Final = 30.0
_URGENT: Final = -math.inf
"""As the time of the next check: in the next round, before the others."""

Recorded = PreparedClaim | ClaimRef
"""A record, or the reference of a claim whose record is lost or damaged."""


@dataclass(slots=True, kw_only=True)
class _Known:
    """Checks of one claim; times are on the collector's clock.

    Attributes:
        due_at: Time of the next check.
        tried_at: Time of the last check, even if it failed.
        gone_since: Time of the first check that found the claim gone; None if it is present.
    """

    due_at: float
    tried_at: float = -math.inf
    gone_since: float | None = None


class StaleClaimCollector:
    """Collector of stale claims. For one thread."""

    def __init__(
        self,
        claims: ClaimSource,
        node: Nodes,
        preparer: Preparer,
        *,
        gone_seconds: float,
        check_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        claims: Reads claims at the API server.
        node: Reports whether this node's Node is Ready.
        preparer: Releases claims that are stale.
        gone_seconds: How long a claim has to be gone before it is released.
        check_seconds: Longest time between two checks of a claim that is present.
        clock: In seconds; must not go back.
        """
        self._claims = claims
        self._node = node
        self._preparer = preparer
        self._gone_seconds = gone_seconds
        self._check_seconds = check_seconds
        self._clock = clock
        self._known: dict[str, _Known] = {}  # by UID

    def check_soon(self) -> None:
        """Check all claims within the next rounds, but for those that were checked just now."""
        now = self._clock()
        for known in self._known.values():
            if now - known.tried_at >= _FRESH_SECONDS:
                known.due_at = min(known.due_at, now)

    def collect(self, recorded: Sequence[Recorded]) -> None:
        """Run a round: check some of the claims and release those that are stale.

        Args:
            recorded: All records; and the references of claims whose record is lost or damaged. If
                such a claim is still allocated to this node, it is prepared again.

        Raises:
            RetryableError: A claim could not be read; nothing was released because of that. The
                other claims of the round were checked, unless several failed.
            FatalError: A newer release has written a record.
        """
        before, self._known = self._known, {}
        for each in recorded:
            due_at = _URGENT
            if isinstance(each, PreparedClaim):
                # Spread, because all nodes may have started together.
                due_at = self._clock() + random.uniform(0, self._check_seconds)  # noqa: S311
            uid = _ref(each).uid
            self._known[uid] = before.get(uid) or _Known(due_at=due_at)
        if self._preparer.take_refusal():
            self.check_soon()
        failures: list[RetryableError] = []
        for each in self._due(recorded):
            known = self._known[_ref(each).uid]
            try:
                self._check(each, known)
            except RetryableError as error:
                failures.append(error)
                known.tried_at = self._clock()
                wait = 0.0 if known.gone_since is not None else _RETRY_SECONDS
                known.due_at = known.tried_at + min(wait, self._check_seconds)
            if len(failures) >= _MAX_FAILURES:
                break
        if failures:
            raise failures[0]

    def _due(self, recorded: Sequence[Recorded]) -> list[Recorded]:
        """Return the claims of this round, in the order of their checks."""
        now = self._clock()

        def order(each: Recorded) -> tuple[float, float]:
            known = self._known[_ref(each).uid]
            return known.due_at, known.tried_at

        due = sorted((each for each in recorded if order(each)[0] <= now), key=order)
        urgent = sum(order(each)[0] == _URGENT for each in due)
        return due[: MAX_PER_ROUND + min(urgent, _MAX_URGENT)]

    def _check(self, each: Recorded, known: _Known) -> None:
        ref = _ref(each)
        why = self._why_gone(each)
        now = self._clock()
        known.tried_at, known.due_at = now, now + self._check_seconds
        if not why:
            known.gone_since = None
            if isinstance(each, ClaimRef):
                self._preparer.prepare([ref], deadline=time.monotonic() + _CALL_SECONDS)
            return
        known.due_at = _URGENT
        if isinstance(each, ClaimRef):
            self._preparer.dismiss(ref)
        if not self._node.is_ready():
            for gone in self._known.values():  # the time of each starts again
                gone.gone_since = None
            return
        if known.gone_since is None:
            known.gone_since = now
            log.info("claim_gone", claim=str(ref), claim_uid=ref.uid, error=why)
        if now - known.gone_since >= self._gone_seconds:
            deadline = time.monotonic() + _CALL_SECONDS
            if self._preparer.release(ref, lambda: bool(self._why_gone(each)), deadline=deadline):
                log.warning("claim_released", claim=str(ref), claim_uid=ref.uid, error=why)

    def _why_gone(self, each: Recorded) -> str:
        """Return why the claim has no device of this node any more; "" if it has one."""
        try:
            stored = self._claims.fetch(_ref(each), wait_seconds=_READ_SECONDS)
        except ClaimError as error:
            return str(error)
        return prepared.reason_gone(each, stored)


def _ref(each: Recorded) -> ClaimRef:
    return each.ref if isinstance(each, PreparedClaim) else each
