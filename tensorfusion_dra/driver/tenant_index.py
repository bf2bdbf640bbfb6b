"""Sums over the recorded claims, kept in memory between steps of the ledger.

The sums follow from the records (core/claims/tenants.py). Every step that adds or removes a claim
adds it to the sums or removes it from them, and the sums are then those of the ledger's new
version. They are computed from all records again

- at the first step after a start;
- if another instance has changed the ledger (a rolling update), or a step failed;
- if a card's capacity has changed, or records were changed by a step that does not keep the sums.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.tenancy import LendingRules
from tensorfusion_dra.core.claims.tenants import NodeTenants
from tensorfusion_dra.driver.catalog import Catalog
from tensorfusion_dra.state.ledger_transaction import Transaction

if TYPE_CHECKING:
    from tensorfusion_dra.core.devices.device import Device


class TenantIndex:
    """The sums of one ledger. Use it inside a step of the ledger, of which one runs at a time."""

    def __init__(self, rules: LendingRules) -> None:
        """Sum up nothing yet.

        Args:
            rules: The node's rules for limits above requests.
        """
        self._rules = rules
        self._catalog: Catalog | None = None
        self._devices: Mapping[str, Device] = {}
        self._tenants = NodeTenants((), {}, rules)
        self._version: Hashable = None

    def at(self, step: Transaction, catalog: Catalog | None) -> NodeTenants:
        """Return the sums of the ledger as it is in this step.

        Args:
            step: The running step.
            catalog: The node's cards; None leaves all cards out.
        """
        devices = self._devices
        if catalog is not self._catalog:
            devices = {} if catalog is None else catalog.by_name()
        if step.version() != self._version or not self._tenants.fit_devices(devices):
            self._tenants = NodeTenants(step.claims(), devices, self._rules)
            self._version = step.version()
        self._catalog, self._devices = catalog, devices
        return self._tenants

    def note(
        self,
        step: Transaction,
        *,
        added: Iterable[PreparedClaim] = (),
        removed: Iterable[PreparedClaim] = (),
    ) -> None:
        """Keep the sums up to date with the changes of a step, once all of them are made.

        Args:
            step: The step, which called at() before its changes.
            added: Records that were put.
            removed: Records that were removed or replaced.
        """
        for record in removed:
            self._tenants.remove(record)
        for record in added:
            self._tenants.add(record)
        self._version = step.version()
