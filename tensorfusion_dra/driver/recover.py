"""At start, what the CDI directory holds is made to follow from the ledger again."""

import structlog

from tensorfusion_dra.core import cdi
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports import Ledger, Specs

log = structlog.get_logger()


def recover(ledger: Ledger, specs: Specs) -> None:
    """Rebuilds missing or damaged specs from the records and removes specs without a record.

    The directory is empty after a reboot, and a crash can leave a spec or a record alone. A spec
    that cannot be written now is written when its claim is prepared again.

    Raises:
        RetryableError: The ledger cannot be read now.
        FatalError: The ledger is damaged.
    """
    records = {record.ref.uid: record for record in ledger.claims()}
    written = removed = 0
    try:
        for uid, record in records.items():
            spec = cdi.spec(record)
            if spec is not None:
                written += specs.ensure(uid, spec)
        for uid in specs.claim_uids() - records.keys():
            specs.remove(uid)
            removed += 1
    except RetryableError as error:
        log.warning("recovery_incomplete", error=str(error))
    log.info("recovered", claims=len(records), specs_written=written, specs_removed=removed)
