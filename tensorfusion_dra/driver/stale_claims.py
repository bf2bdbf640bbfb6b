"""Claims that this node holds are looked up at the API server, and freed if they are gone."""

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
"""Reads of claims: a node with a thousand claims asks no more than one with twenty."""
_MOST_FIRST: Final = 50
"""Further reads of claims that were just rebuilt."""
_MOST_FAILURES: Final = 3
"""Claims of one round without an answer: then it is the API server, and the round ends."""
_ROUNDS_FOR_ALL: Final = 30
_READ_SECONDS: Final = 5.0
_CALL_SECONDS: Final = 30.0

Held = PreparedClaim | ClaimRef


class StaleClaimCollector:
    """Frees what the kubelet forgot. For one thread.

    The kubelet unprepares a claim once the containers of its pods have ended, whatever became of
    the objects at the API server, and keeps its list of claims in a checkpoint. If that is lost, a
    claim would be held for ever. But a claim that is gone at the API server may still be used: if
    its pod was deleted by force, all finalizers go while the containers run. So a share is freed
    only if the claim stays gone for longer than the kubelet needs to end such containers, and if
    the kubelet was there to do so all that time: the node was Ready. The kubelet's own call, which
    comes first as a rule, ends the waiting.
    """

    def __init__(
        self,
        claims: Claims,
        node: NodeReadiness,
        preparer: Preparer,
        *,
        gone_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Asks nothing yet.

        Args:
            gone_seconds: How long a claim must be gone.
            clock: In seconds.
        """
        self._claims = claims
        self._node = node
        self._preparer = preparer
        self._gone_seconds = gone_seconds
        self._clock = clock
        self._seen: set[str] | None = None  # UIDs of the last round; None before the first
        self._ready: bool | None = None  # in this round; None if nobody asked
        self._first: set[str] = set()
        self._asked_at: dict[str, float] = {}  # by UID
        self._gone_since: dict[str, float] = {}  # by UID
        self._unread: set[str] = set()  # UIDs of claims whose last look failed

    def ask_first(self, claim_uids: Iterable[str]) -> None:
        """These claims were rebuilt: they come before the others."""
        self._first.update(claim_uids)

    def look(self, held: Sequence[Held]) -> None:
        """Asks for some of the claims; within half an hour's rounds all of them are asked for.

        Args:
            held: The records; and the claims that only files are left of. Of these, one that is
                allocated is prepared again.

        Raises:
            RetryableError: A claim could not be read; nothing is freed by that. The others were
                asked for, unless several failed.
            FatalError: A newer release has changed the ledger.
        """
        uids = {_ref(each).uid for each in held}
        self._forget_all_but(uids)
        if self._seen is not None:
            # Prepared since the last round, which took the same question.
            prepared = {each.ref.uid for each in held if isinstance(each, PreparedClaim)}
            self._asked_at |= dict.fromkeys(prepared - self._seen, self._clock())
        self._seen = uids
        self._ready = None
        failures: list[RetryableError] = []
        for each in self._due(held):
            try:
                self._look_at(each)
            except RetryableError as error:
                failures.append(error)
                # Its turn is over: a claim that can never be read must not be the first for ever.
                self._unread.add(_ref(each).uid)
                self._asked_at[_ref(each).uid] = self._clock()
            else:
                self._unread.discard(_ref(each).uid)
            if len(failures) >= _MOST_FAILURES:
                break
        if failures:
            raise failures[0]

    def _due(self, held: Sequence[Held]) -> list[Held]:
        def order(each: Held) -> tuple[bool, bool, float]:
            uid = _ref(each).uid
            in_turn = uid in self._unread
            return (
                in_turn or uid not in self._first,
                in_turn or uid not in self._gone_since,
                self._asked_at.get(uid, -math.inf),
            )

        all_asked = len(self._asked_at) == len(held)
        in_turn = math.ceil(len(held) / _ROUNDS_FOR_ALL) if all_asked else MOST_PER_ROUND
        most = min(in_turn + len(self._gone_since), MOST_PER_ROUND)
        return sorted(held, key=order)[: most + min(len(self._first), _MOST_FIRST)]

    def _look_at(self, each: Held) -> None:
        ref = _ref(each)
        why = self._why_gone(each)
        now = self._clock()
        self._asked_at[ref.uid] = now
        self._first.discard(ref.uid)
        if not why:
            self._gone_since.pop(ref.uid, None)
            if isinstance(each, ClaimRef):
                self._preparer.prepare([ref], deadline=time.monotonic() + _CALL_SECONDS)
            return
        if not self._kubelet_is_there():
            self._gone_since.clear()
            return
        if ref.uid not in self._gone_since:
            self._gone_since[ref.uid] = now
            log.info("claim_gone", claim=str(ref), claim_uid=ref.uid, error=why)
        if now - self._gone_since[ref.uid] >= self._gone_seconds:
            self._release(each, why)

    def _kubelet_is_there(self) -> bool:
        """Asked once a round, and only in a round that needs it."""
        if self._ready is None:
            self._ready = self._node.is_ready()
        return self._ready

    def _release(self, each: Held, why: str) -> None:
        ref = _ref(each)
        deadline = time.monotonic() + _CALL_SECONDS
        if self._preparer.release(ref, lambda: bool(self._why_gone(each)), deadline=deadline):
            log.warning("claim_released", claim=str(ref), claim_uid=ref.uid, error=why)

    def _why_gone(self, each: Held) -> str:
        try:
            stored = self._claims.fetch(_ref(each), wait_seconds=_READ_SECONDS)
        except ClaimError as error:
            return str(error)
        return confirmation.reason_gone(each, stored)

    def _forget_all_but(self, claim_uids: set[str]) -> None:
        self._first &= claim_uids
        self._unread &= claim_uids
        for known in (self._asked_at, self._gone_since):
            for uid in known.keys() - claim_uids:
                del known[uid]


def _ref(each: Held) -> ClaimRef:
    return each.ref if isinstance(each, PreparedClaim) else each
