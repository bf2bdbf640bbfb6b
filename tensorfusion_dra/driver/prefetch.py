"""Claims of one call, read side by side before each is prepared in its turn.

A claim is prepared while its lock is held, so that no other call works on it. The read comes before
that, so it counts only if no other call had the lock in between; otherwise the claim is read again.
A call for a single claim reads it in its turn, and nothing here.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tensorfusion_dra.core.claims import claim as claims
from tensorfusion_dra.core.claims.claim import AllocatedClaim, ClaimRef
from tensorfusion_dra.core.errors import ClaimError, DriverError
from tensorfusion_dra.driver.claim_locks import ClaimLocks
from tensorfusion_dra.driver.recent_reads import ReadMark, RecentReads
from tensorfusion_dra.runtime import side_by_side


@dataclass(frozen=True, slots=True)
class Prefetched:
    """A claim that was read before its turn.

    Attributes:
        began: When the read began.
        times: When the read began and when it ended, on the clock that measures operations.
        outcome: The claim, or the error of the read.
        turn: The turn at the claim's lock for which the read counts.
    """

    began: ReadMark
    times: tuple[float, float]
    outcome: AllocatedClaim | DriverError
    turn: int

    def claim(self) -> AllocatedClaim:
        """Return the claim.

        Raises:
            DriverError: The error of the read.
        """
        if isinstance(self.outcome, DriverError):
            raise self.outcome
        return self.outcome


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Reader of all claims of a call.

    Attributes:
        fetch: Reads one claim until a deadline on time.monotonic()'s clock.
        locks: Count the turns of each claim.
        reads: Claims that were read recently are left out.
        clock: That of the operations.
    """

    fetch: Callable[[ClaimRef, float], AllocatedClaim]
    locks: ClaimLocks
    reads: RecentReads
    clock: Callable[[], float]

    @contextmanager
    def of(self, refs: Sequence[ClaimRef], deadline: float) -> Iterator[Mapping[str, Prefetched]]:
        """Yield the claims that were read, by UID; their turns are counted during the block."""
        wanted = [ref for ref in refs if not self.reads.covers(ref.uid) and _is_valid(ref)]
        if len(wanted) < 2 or time.monotonic() >= deadline:
            yield {}
            return
        with self.locks.counted(wanted) as turns:
            began = self.reads.begin()
            times: dict[str, tuple[float, float]] = {}

            def timed(ref: ClaimRef) -> AllocatedClaim:
                start = self.clock()
                try:
                    return self.fetch(ref, deadline)
                finally:
                    times[ref.uid] = start, self.clock()

            outcomes = side_by_side.read(timed, wanted)
            yield {
                ref.uid: Prefetched(began, times[ref.uid], outcome, turns[ref.uid])
                for ref, outcome in zip(wanted, outcomes, strict=True)
            }


def _is_valid(ref: ClaimRef) -> bool:
    try:
        claims.checked_ref(ref)
    except ClaimError:
        return False  # its turn reports the error
    return True
