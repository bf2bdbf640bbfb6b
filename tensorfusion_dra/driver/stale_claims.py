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

Each round checks only some of the claims, so that a thousand claims cause no more requests than
twenty: first those that were rebuilt after damage to the ledger, then those that are gone, then
those whose last check is the oldest. Up to 300 claims are all checked within thirty rounds.

Example, with a round each minute and `gone_seconds` 600: claim `a` is deleted, and the kubelet has
lost its checkpoint. Minute 3 finds it gone; from then on it is checked each minute. In minute 8 the
Node is not Ready, so the time starts again in minute 9, and `a` is released in minute 19.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from tensorfusion_dra.core.claims import confirmation
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver.ports.cluster import Claims, NodeReadiness
from tensorfusion_dra.driver.prepare import Preparer

log = structlog.get_logger()

MOST_PER_ROUND: Final = 10
"""Claims that a round checks, besides rebuilt ones."""
_MOST_FIRST: Final = 50
"""Rebuilt claims that a round checks in addition."""
_MOST_FAILURES: Final = 3
"""Failed checks after which a round ends, because the API server seems to be unavailable."""
_ROUNDS_FOR_ALL: Final = 30
"""Rounds in which up to 300 claims are checked once each."""
_READ_SECONDS: Final = 5.0
_CALL_SECONDS: Final = 30.0

Recorded = PreparedClaim | ClaimRef
"""A record, or the reference of a claim of which only files are left."""


class StaleClaimCollector:
    """Collector of stale claims. For one thread."""

    def __init__(
        self,
        claims: Claims,
        node: NodeReadiness,
        preparer: Preparer,
        *,
        gone_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check nothing yet.

        Args:
            claims: Reads claims at the API server.
            node: Reports whether this node's Node is Ready.
            preparer: Releases claims that are stale.
            gone_seconds: How long a claim has to be gone before it is released.
            clock: In seconds; must not go back.
        """
        self._claims = claims
        self._node = node
        self._preparer = preparer
        self._gone_seconds = gone_seconds
        self._clock = clock
        self._seen: set[str] | None = None  # UIDs of the last round; None before the first
        self._ready: bool | None = None  # in this round; None if not read yet
        self._rebuilt: set[str] = set()  # UIDs that check_first() got and that are not checked yet
        self._checked_at: dict[str, float] = {}  # by UID
        self._gone_since: dict[str, float] = {}  # by UID
        self._unread: set[str] = set()  # UIDs of claims whose last check failed

    def check_first(self, claim_uids: Iterable[str]) -> None:
        """Check these claims before all others, because their records were rebuilt from copies."""
        self._rebuilt.update(claim_uids)

    def collect(self, recorded: Sequence[Recorded]) -> None:
        """Run a round: check some of the claims and release those that are stale.

        Args:
            recorded: All records; and the references of claims of which only files are left. If
                such a claim is still allocated to this node, it is prepared again.

        Raises:
            RetryableError: A claim could not be read; nothing was released because of that. The
                other claims of the round were checked, unless several failed.
            FatalError: A newer release has changed the ledger.
        """
        uids = {_ref(each).uid for each in recorded}
        self._keep_only(uids)
        if self._seen is not None:
            # Claims prepared since the last round count as checked: prepare has just read them.
            prepared = {each.ref.uid for each in recorded if isinstance(each, PreparedClaim)}
            self._checked_at |= dict.fromkeys(prepared - self._seen, self._clock())
        self._seen = uids
        self._ready = None
        failures: list[RetryableError] = []
        for each in self._due(recorded):
            try:
                self._check(each)
            except RetryableError as error:
                failures.append(error)
                # Counts as its turn: a claim that can never be read must not come first each time.
                self._unread.add(_ref(each).uid)
                self._checked_at[_ref(each).uid] = self._clock()
            else:
                self._unread.discard(_ref(each).uid)
            if len(failures) >= _MOST_FAILURES:
                break
        if failures:
            raise failures[0]

    def _due(self, recorded: Sequence[Recorded]) -> list[Recorded]:
        """Return the claims of this round, in the order of their checks."""

        def order(each: Recorded) -> tuple[bool, bool, float]:
            uid = _ref(each).uid
            in_turn = uid in self._unread  # no precedence after a failure
            return (
                in_turn or uid not in self._rebuilt,
                in_turn or uid not in self._gone_since,
                self._checked_at.get(uid, -math.inf),
            )

        all_checked = len(self._checked_at) == len(recorded)
        in_turn = math.ceil(len(recorded) / _ROUNDS_FOR_ALL) if all_checked else MOST_PER_ROUND
        most = min(in_turn + len(self._gone_since), MOST_PER_ROUND)
        return sorted(recorded, key=order)[: most + min(len(self._rebuilt), _MOST_FIRST)]

    def _check(self, each: Recorded) -> None:
        ref = _ref(each)
        why = self._why_gone(each)
        now = self._clock()
        self._checked_at[ref.uid] = now
        self._rebuilt.discard(ref.uid)
        if not why:
            self._gone_since.pop(ref.uid, None)
            if isinstance(each, ClaimRef):
                self._preparer.prepare([ref], deadline=time.monotonic() + _CALL_SECONDS)
            return
        if not self._node_is_ready():
            self._gone_since.clear()
            return
        if ref.uid not in self._gone_since:
            self._gone_since[ref.uid] = now
            log.info("claim_gone", claim=str(ref), claim_uid=ref.uid, error=why)
        if now - self._gone_since[ref.uid] >= self._gone_seconds:
            self._release(each, why)

    def _node_is_ready(self) -> bool:
        """Return True if the Node is Ready; read at most once a round, and only if needed."""
        if self._ready is None:
            self._ready = self._node.is_ready()
        return self._ready

    def _release(self, each: Recorded, why: str) -> None:
        ref = _ref(each)
        deadline = time.monotonic() + _CALL_SECONDS
        if self._preparer.release(ref, lambda: bool(self._why_gone(each)), deadline=deadline):
            log.warning("claim_released", claim=str(ref), claim_uid=ref.uid, error=why)

    def _why_gone(self, each: Recorded) -> str:
        """Return why the claim has no device of this node any more; "" if it has one."""
        try:
            stored = self._claims.fetch(_ref(each), wait_seconds=_READ_SECONDS)
        except ClaimError as error:
            return str(error)
        return confirmation.reason_gone(each, stored)

    def _keep_only(self, claim_uids: set[str]) -> None:
        self._rebuilt &= claim_uids
        self._unread &= claim_uids
        for known in (self._checked_at, self._gone_since):
            for uid in known.keys() - claim_uids:
                del known[uid]


def _ref(each: Recorded) -> ClaimRef:
    return each.ref if isinstance(each, PreparedClaim) else each
