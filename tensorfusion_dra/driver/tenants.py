"""What the coming and going of one claim changes for the other tenants of its cards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from tensorfusion_dra.core.claims import tenancy
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.tenancy import Rules
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.state.ledger import Ledger, Transaction

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """The claims of this node, each beside the others."""

    ledger: Ledger
    projection: Projection
    catalog: CatalogReader
    rules: Rules
    status: StatusReporter

    def divide(self) -> Sequence[PreparedClaim]:
        """Recompute the limits of all claims; return those that changed, which are all it writes.

        Raises:
            RetryableError: The ledger cannot be read or written now.
            FatalError: A newer release has changed the ledger.
        """
        catalog = self.catalog.current()
        if catalog is None:
            return ()
        devices = catalog.by_name()
        if not self._changed(self.ledger.claims(), devices):
            return ()
        with self.ledger.transaction() as step:
            changed = self._changed(step.claims_on(devices), devices)
            for record in changed:
                step.put(record)
        log.info("limits_recomputed", claims=len(changed))
        self.project(changed)
        return changed

    def regranted(self, step: Transaction, gone: PreparedClaim) -> Sequence[PreparedClaim]:
        """Return the claims whose limits grow now that another is gone."""
        catalog = self.catalog.current()
        if catalog is None:
            return ()  # the first catalog divides everything
        left = {share.device for share in gone.shares}
        devices = {name: d for name, d in catalog.by_name().items() if name in left}
        return self._changed(step.claims_on(devices), devices)

    def project(self, changed: Sequence[PreparedClaim]) -> None:
        """Tell the hypervisor the new limits of claims that are prepared already."""
        for record in changed:
            with self.ledger.transaction() as step:
                # By now it may be unprepared, or changed once more.
                current = step.get(record.ref.uid)
                if current is None:
                    continue
                try:
                    self.projection.ensure(current)
                    self.status.report(current, trouble="")
                except (ClaimError, RetryableError) as error:
                    # Its own next call, or recovery, writes them.
                    log.warning("limits_update_failed", claim=str(record.ref), error=str(error))

    def _changed(
        self, claims: Sequence[PreparedClaim], devices: Mapping[str, Device]
    ) -> Sequence[PreparedClaim]:
        regranted = tenancy.regranted(claims, devices, self.rules)
        return [new for new, old in zip(regranted, claims, strict=True) if new != old]
