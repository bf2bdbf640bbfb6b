"""The cards of this node as claims get at them, today and after a reboot."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.claims import access
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.catalog import Catalog, CatalogReader
from tensorfusion_dra.driver.node_offers import NodeOffers
from tensorfusion_dra.state.ledger import Ledger, Transaction

_FIRST_READ_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class LocalCards:
    """The catalog and the machine, for claims that are recorded in the ledger."""

    catalog: CatalogReader
    offers: NodeOffers
    ledger: Ledger

    def readable(self, ref: ClaimRef, deadline: float) -> Catalog:
        """Return the catalog; wait a moment for it after the start.

        A kubelet that is refused asks again only in a minute.

        Raises:
            RetryableError: There is none yet.
        """
        seconds = min(_FIRST_READ_SECONDS, deadline - time.monotonic())
        self.catalog.wait_changed(None, seconds=max(0.0, seconds), stopped=lambda: False)
        catalog = self.catalog.current()
        if catalog is None:
            raise RetryableError(f"claim {ref}: {self.catalog.awaited()}")
        return catalog

    def check_present(self, ref: ClaimRef, wanted: Iterable[str]) -> None:
        """Return if none of the devices is known to be away.

        An unhealthy card that answers is handed out: the claim tolerates the taint, or was
        allocated before it. A card that is away is of no use.

        Raises:
            RetryableError: One is away.
        """
        catalog = self.catalog.current()
        if catalog is None:
            return
        for device in wanted:
            if device in catalog.absent:
                text = catalog.sick[device].worst.text
                raise RetryableError(f"claim {ref}: {device}: {text}, expected a working GPU")

    def with_todays_access(self, record: PreparedClaim, deadline: float) -> PreparedClaim:
        """Return the record with today's device nodes and mounts, recorded if they are new.

        A reboot may have given a card another minor number, or the driver other files.

        Raises:
            RetryableError: The cards are not known yet, or one of the claim's is gone.
        """
        rebooted = record.boot_id != self.offers.boot_id
        if rebooted:
            catalog = self.readable(record.ref, deadline)
        else:
            known = self.catalog.current()
            if known is None:
                return record
            catalog = known
        offer = self.offers.offer(catalog, {share.device for share in record.shares})
        missing = sorted({share.device for share in record.shares} - offer.access.keys())
        if rebooted and missing:
            # The nodes in the record may be another card's by now.
            raise RetryableError(f"claim {record.ref}: {', '.join(missing)}: gone since a reboot")
        if not offer.access:
            return record
        with self.ledger.transaction() as step:
            # Read again: another claim's step may have changed its limits meanwhile.
            current = recorded(step, record)
            today = access.refreshed(
                current, offer.access, offer.shared_access, boot_id=offer.boot_id
            )
            if today != current:
                step.put(today)
        return today


def recorded(step: Transaction, record: PreparedClaim) -> PreparedClaim:
    """Return the record as it is now.

    Raises:
        RetryableError: Another instance unprepared the claim meanwhile.
    """
    current = step.get(record.ref.uid)
    if current is None:
        raise RetryableError(f"claim {record.ref}: it was unprepared meanwhile")
    return current
