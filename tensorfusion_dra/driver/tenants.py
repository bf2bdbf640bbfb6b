"""What the coming and going of one claim changes for the other tenants of its cards."""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from tensorfusion_dra.core import tenancy
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.prepared import PreparedClaim
from tensorfusion_dra.core.tenancy import Rules
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.ports.state import Ledger, LedgerTransaction
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.driver.status import StatusReporter

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """The claims of this node, each beside the others."""

    ledger: Ledger
    projection: Projection
    catalog: CatalogReader
    rules: Rules
    status: StatusReporter

    def regranted(self, step: LedgerTransaction, gone: PreparedClaim) -> Sequence[PreparedClaim]:
        """Claims whose memory limits grow now that another is gone."""
        catalog = self.catalog.current()
        if catalog is None:
            return ()
        left = {share.device for share in gone.shares}
        devices = {name: d for name, d in catalog.by_name().items() if name in left}
        staying = step.claims_on(devices)
        regranted = tenancy.regranted(staying, devices, self.rules)
        return [new for new, old in zip(regranted, staying, strict=True) if new != old]

    def project(self, changed: Sequence[PreparedClaim]) -> None:
        """Tells the hypervisor the new limits of claims that are prepared already."""
        for record in changed:
            with self.ledger.transaction() as step:
                # By now it may be unprepared, or changed once more.
                current = step.get(record.ref.uid)
                if current is None:
                    continue
                try:
                    self.projection.ensure(current)
                    self.status.report(current)
                except RetryableError as error:
                    # Its own next call, or recovery, writes them.
                    log.warning("limits_not_told", claim=str(record.ref), error=str(error))
