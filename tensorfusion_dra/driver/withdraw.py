"""The end of a prepared claim: its files, its record, and the shares that it gives back."""

from collections.abc import Sequence
from functools import partial

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.operation import Stage
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import NoRoomError
from tensorfusion_dra.driver import operations
from tensorfusion_dra.driver.division import Division
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.state.ledger import Ledger


class Withdrawal:
    """Removes claims from this node; for callers that hold the claim's lock."""

    def __init__(
        self, ledger: Ledger, projection: Projection, *, division: Division, status: StatusReporter
    ) -> None:
        self._ledger = ledger
        self._projection = projection
        self._division = division
        self._status = status

    def withdraw(self, ref: ClaimRef) -> None:
        """Return once nothing is left of the claim; do nothing if nothing is.

        Raises:
            RetryableError: Its files or its record cannot be removed now.
            FatalError: A newer release has changed the ledger.
        """
        try:
            changed = self._removed(ref)
        except NoRoomError:
            self._ledger.make_room()
            changed = self._removed(ref)
        operations.enter(Stage.WRITE)
        self._status.forget(ref.uid)
        self._division.project(changed)

    def _removed(self, ref: ClaimRef) -> Sequence[PreparedClaim]:
        """Remove files and record; return the other claims whose limits changed by that."""
        operations.enter(Stage.WITHDRAW)
        with self._ledger.transaction() as step:
            record = step.get(ref.uid)
            # Inside the step, so that no other one writes the files again meanwhile. A crash after
            # it leaves a record without files, which is prepared or unprepared again; files
            # without a record would be orphans.
            if record is None:
                self._projection.remove(ref.uid, None)
                return ()
            workers = self._division.workers
            if workers is not None:
                same = self._division.of_same_pods(step, record)
                workers.release(record, [each for each in same if each.ref.uid != ref.uid])
            self._projection.remove(
                ref.uid, record, of_same_pods=partial(self._division.of_same_pods, step, record)
            )
            changed = self._division.remove(step, record)
            operations.enter(Stage.FLUSH)
        return changed
