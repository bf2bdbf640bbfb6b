"""At start, what others see of claims is made to follow from the ledger again."""

import structlog

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports import Ledger
from tensorfusion_dra.driver.projection import Projection

log = structlog.get_logger()


def recover(ledger: Ledger, projection: Projection) -> None:
    """Rebuilds missing or damaged files from the records and removes those without a record.

    The folders are empty after a reboot, and a crash can leave a file or a record alone. A file
    that cannot be written now is written when its claim is prepared again.

    Raises:
        RetryableError: The ledger cannot be read now.
        FatalError: The ledger is damaged.
    """
    records = {record.ref.uid: record for record in ledger.claims()}
    written = removed = 0
    for record in records.values():
        try:
            written += projection.ensure(record)
        except RetryableError as error:
            log.warning("claim_not_recovered", claim=str(record.ref), error=str(error))
    try:
        # Files are written in a step of the ledger, so in ours nobody is writing any.
        with ledger.transaction():
            projection.remove_unfinished()
        for uid in projection.claim_uids() - records.keys():
            projection.remove(uid, None)
            removed += 1
    except RetryableError as error:
        log.warning("recovery_incomplete", error=str(error))
    log.info("recovered", claims=len(records), files_written=written, claims_removed=removed)
