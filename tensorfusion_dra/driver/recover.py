"""Rebuild the files derived from the ledger (CDI specs, limits documents) at start and later."""

from dataclasses import dataclass, field

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.state.ledger import Ledger


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """What one look at every claim found.

    Attributes:
        claims: The records.
        files_written: Files that were missing or damaged.
        claims_removed: Claims without a record, of which files were left.
        outdated: Claims whose access is of another boot, and that are not projected therefore.
        unknown: Claims without a record of which files name the claim: these may be right.
        troubles: What could not be done now, by claim UID; "" for none in particular.
        unenforceable: Records whose limits the settings of today cannot enforce; each of them has
            its text among the troubles.
    """

    claims: list[PreparedClaim] = field(default_factory=list)
    files_written: int = 0
    claims_removed: int = 0
    outdated: list[ClaimRef] = field(default_factory=list)
    unknown: list[ClaimRef] = field(default_factory=list)
    troubles: dict[str, str] = field(default_factory=dict)
    unenforceable: list[PreparedClaim] = field(default_factory=list)


def recover(ledger: Ledger, projection: Projection, *, boot_id: str) -> RecoveryReport:
    """Rebuilds missing or damaged files from the records and removes those of no claim.

    The folders are empty after a reboot, and a crash can leave a file or a record alone. Every
    claim is looked at in a step of the ledger, since other instances prepare and unprepare claims
    at the same time. The API server is not asked.

    Raises:
        RetryableError: The ledger cannot be read now.
        FatalError: A newer release has changed the ledger.
    """
    found = RecoveryReport(claims=list(ledger.claims()))
    for record in found.claims:
        _repair(record, ledger, projection, boot_id=boot_id, found=found)
    try:
        # Files are written in a step of the ledger, so in ours nobody is writing any.
        with ledger.transaction():
            projection.remove_unfinished()
        for uid in sorted(projection.claim_uids() - {record.ref.uid for record in found.claims}):
            _remove_orphan(uid, ledger, projection, found)
    except RetryableError as error:
        found.troubles[""] = str(error)
    return found


def _repair(
    record: PreparedClaim,
    ledger: Ledger,
    projection: Projection,
    *,
    boot_id: str,
    found: RecoveryReport,
) -> None:
    uid = record.ref.uid
    with ledger.transaction() as step:
        current = step.get(uid)
        if current is None:
            return
        if current.boot_id != boot_id:
            # Its device nodes may be another card's by now.
            found.outdated.append(current.ref)
            return
        try:
            found.files_written += projection.ensure(current)
        except ClaimError as error:
            # The files stay as they are: containers that run were started by them.
            found.troubles[uid] = str(error)
            found.unenforceable.append(current)
        except RetryableError as error:
            found.troubles[uid] = f"claim {current.ref}: {error}"


def _remove_orphan(uid: str, ledger: Ledger, projection: Projection, found: RecoveryReport) -> None:
    with ledger.transaction() as step:
        if step.get(uid) is not None:
            return  # prepared just now
        ref = projection.claim_ref(uid)
        if ref is not None:
            found.unknown.append(ref)
            return
        projection.remove(uid, None)
        found.claims_removed += 1
