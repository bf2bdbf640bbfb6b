"""Order in which the statuses of claims are written."""

from collections import OrderedDict
from dataclasses import dataclass

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.runtime.backoff import Backoff


@dataclass(slots=True, kw_only=True)
class Waiting:
    """A record whose status has to be written.

    Attributes:
        due: Time from which it may be written, on the reporter's clock.
        backoff: The claim's own delays; None if no write of the record has failed.
    """

    claim: PreparedClaim
    due: float
    backoff: Backoff | None = None


class StatusQueue:
    """At most one waiting record for each claim. For callers that hold the reporter's lock.

    The order is that of the reports, except that urgent ones come first. A record whose write
    failed comes in its turn by the time of its retry. A step costs the same however many records
    wait, unless their writes failed.
    """

    def __init__(self) -> None:
        self._new: OrderedDict[str, Waiting] = OrderedDict()  # by claim UID, as is _failed
        self._failed: dict[str, Waiting] = {}

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
            self._new[uid] = Waiting(claim=claim, due=now)
        else:
            waiting.claim = claim
        if urgent:
            self._new.move_to_end(uid, last=False)

    def put_back(self, waiting: Waiting) -> None:
        """Queue a record whose write failed, unless a newer one of its claim waits by now."""
        uid = waiting.claim.ref.uid
        if uid not in self._new:
            self._failed[uid] = waiting

    def first(self) -> Waiting | None:
        """Return the record to write next, which may not be due yet; None if none waits."""
        new = self.first_new()
        failed = min(self._failed.values(), key=lambda each: each.due, default=None)
        if new is None or failed is None:
            return new or failed
        return failed if failed.due < new.due else new

    def first_new(self) -> Waiting | None:
        """Return the first record of which no write has failed."""
        return next(iter(self._new.values()), None)

    def drop(self, claim_uid: str) -> None:
        """Remove the record of a claim, if one waits."""
        self._new.pop(claim_uid, None)
        self._failed.pop(claim_uid, None)
