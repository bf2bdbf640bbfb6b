"""Recovery of the files derived from the ledger: CDI specs and limits documents."""

from dataclasses import dataclass, field

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.state.ledger import Ledger


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """Result of one round of recovery.

    Attributes:
        claims: All records.
        files_written: Number of files that were missing or damaged.
        claims_removed: Number of claims without a record whose leftover files were removed.
        outdated: Claims whose record has the device nodes of another boot. Their files are left
            alone until the record is refreshed.
        unknown: Claims without a record whose files name the claim. The files are left alone: the
            claim may still be allocated to this node.
        troubles: Error texts by claim UID; an error of no single claim has the key "".
        unenforceable: Records whose limits the present settings cannot enforce; the error of each
            is among the troubles.
        left: Why folders that were removed cannot be deleted; their claims need them no more.
    """

    claims: list[PreparedClaim] = field(default_factory=list)
    files_written: int = 0
    claims_removed: int = 0
    outdated: list[ClaimRef] = field(default_factory=list)
    unknown: list[ClaimRef] = field(default_factory=list)
    troubles: dict[str, str] = field(default_factory=dict)
    unenforceable: list[PreparedClaim] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def recover(ledger: Ledger, projection: Projection, *, boot_id: str) -> RecoveryReport:
    """Write missing or damaged files from the records; remove files without a record.

    The folders are empty after a reboot, and a crash can leave a record without files or files
    without a record. Every claim has its own step of the ledger, because another instance may
    prepare and unprepare claims at the same time. The API server is not needed.

    Raises:
        RetryableError: The ledger cannot be read now.
        FatalError: A newer release has changed the ledger.
    """
    found = RecoveryReport(claims=list(ledger.claims()))
    for record in found.claims:
        _repair(record, ledger, projection, boot_id=boot_id, found=found)
    try:
        # Within a step, since most files are written in one. A new claim's files are not; if a
        # temporary file of theirs is removed here, they are written again.
        with ledger.transaction():
            projection.remove_unfinished()
        for uid in sorted(projection.claim_uids() - {record.ref.uid for record in found.claims}):
            _remove_orphan(uid, ledger, projection, found)
    except RetryableError as error:
        found.troubles[""] = str(error)
    found.left.extend(projection.delete_removed())  # slow, so outside any step
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
            # Its device nodes may be another card's by now, so its files must not name them.
            found.outdated.append(current.ref)
            return
        try:
            found.files_written += projection.ensure(current)
        except ClaimError as error:
            # The files stay as they are: running containers were started with them.
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
