"""Access of prepared claims to the node's cards, today and after a reboot."""

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

_FIRST_READ_SECONDS: Final = 10.0


class CardsUnreadError(RetryableError):
    """The node's cards were not read yet, and a claim cannot do without."""


@dataclass(frozen=True, slots=True)
class LocalCards:
    """The node's cards as claims get access to them, today and after a reboot."""

    catalog: CatalogReader
    offers: NodeOffers

    def readable(self, ref: ClaimRef, deadline: float) -> Catalog:
        """Return the catalog; wait for it for some seconds after the start.

        A kubelet whose call fails repeats it only after a minute.

        Raises:
            CardsUnreadError: There is none yet.
        """
        seconds = min(_FIRST_READ_SECONDS, deadline - time.monotonic())
        self.catalog.wait_changed(None, seconds=max(0.0, seconds), stopped=lambda: False)
        catalog = self.catalog.current()
        if catalog is None:
            raise CardsUnreadError(f"claim {ref}: {self.catalog.awaited()}")
        return catalog

    def check_present(self, ref: ClaimRef, wanted: Iterable[str]) -> None:
        """Return if none of the devices is known to be absent.

        An unhealthy card that answers is handed out: the claim tolerates the taint, or was
        allocated before it. An absent card is of no use.

        Raises:
            RetryableError: One is absent.
        """
        catalog = self.catalog.current()
        if catalog is None:
            return
        for device in wanted:
            if device in catalog.absent:
                text = catalog.sick[device].worst.text
                raise RetryableError(f"claim {ref}: {device}: {text}, expected a working GPU")

    def with_todays_access(self, record: PreparedClaim, catalog: Catalog | None) -> PreparedClaim:
        """Return the record with today's device nodes and mounts.

        A reboot may have given a card another minor number, or the driver other files.

        Args:
            record: As in the ledger.
            catalog: None if the cards were not read yet.

        Raises:
            CardsUnreadError: The record is of an earlier boot, and the cards were not read yet.
            RetryableError: One of the claim's cards is gone since a reboot.
        """
        rebooted = record.boot_id != self.offers.boot_id
        if catalog is None:
            if rebooted:
                raise CardsUnreadError(f"claim {record.ref}: {self.catalog.awaited()}")
            return record
        offer = self.offers.offer(catalog, {share.device for share in record.shares})
        missing = sorted({share.device for share in record.shares} - offer.access.keys())
        if rebooted and missing:
            # The nodes in the record may be another card's by now.
            raise RetryableError(f"claim {record.ref}: {', '.join(missing)}: gone since a reboot")
        if not offer.access:
            return record
        return access.refreshed(record, offer.access, offer.shared_access, boot_id=offer.boot_id)
