"""Observer of this node: builds the view that the status page, its JSON and the metrics show.

It reads what the loops have found, and asks neither the API server nor the NVIDIA driver.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tensorfusion_dra.core import names, observed
from tensorfusion_dra.core.claims import use
from tensorfusion_dra.core.claims.operation import EndedOperation
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.resize import Resize
from tensorfusion_dra.core.claims.use import NodeUse
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes import device_rules
from tensorfusion_dra.core.observed import (
    ApiServerView,
    NodeView,
    PublishingView,
    RegistrationView,
    StoreView,
    XidCounts,
)
from tensorfusion_dra.driver.publish import DeviceCatalog
from tensorfusion_dra.driver.status import utc_now


@dataclass(slots=True, kw_only=True)
class NodeObserver:
    """Builder of views of this node; safe for all threads.

    Attributes:
        node: The node's name.
        version: Of this driver.
        claims: All prepared claims. Raises DriverError if the store cannot be read, after waiting
            for it; the other functions return at once, from any thread.
        current_verdicts: The verdicts about each claim's shares, by claim UID.
        use: Who uses the cards.
        raised: Claims whose compute limits are raised; see Enforcer.raised().
        resized: What claims ask for while they run, by claim UID.
        enforcer: The verdict about the node's enforcer; None if there is none.
        xids: Counts of reported XIDs since this process started.
        keepers: What keeps limits, for texts, by the name of the enforcer.
        operations: Finished prepares and unprepares, the newest first.
        taint_rules: DeviceTaintRules of the cluster; none before Kubernetes 1.37.
        now: Returns the wall clock's time.
    """

    node: str
    version: str
    catalog: DeviceCatalog
    claims: Callable[[], Sequence[PreparedClaim]]
    current_verdicts: Callable[[], Mapping[str, Sequence[CurrentVerdict]]] = dict
    use: Callable[[], NodeUse] = lambda: use.NOTHING
    raised: Callable[[], Mapping[str, int]] = dict
    resized: Callable[[], Mapping[str, Resize]] = dict
    enforcer: Callable[[], CurrentVerdict | None] = lambda: None
    keepers: Mapping[str, str] = field(default_factory=dict)
    registration: Callable[[], RegistrationView] = RegistrationView
    api_server: Callable[[], ApiServerView] = ApiServerView
    publishing: Callable[[], PublishingView] = PublishingView
    store: Callable[[], StoreView] = StoreView
    xids: Callable[[], XidCounts] = dict
    operations: Callable[[], Sequence[EndedOperation]] = tuple
    taint_rules: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    now: Callable[[], datetime] = utc_now
    started_at: datetime = field(default_factory=utc_now)
    _claims: Sequence[PreparedClaim] = field(init=False, default=())

    def view(self) -> NodeView:
        """Return the node as it is now; after an error of the store, with the last known shares."""
        shares_error = ""
        try:
            self._claims = self.claims()
        except DriverError as error:
            shares_error = str(error)
        rules = self.taint_rules()
        catalog, used, verdicts = self.catalog.current(), self.use(), self.current_verdicts()
        return NodeView(
            node=self.node,
            pool=catalog.node.pool if catalog else "",
            version=self.version,
            started_at=self.started_at,
            observed_at=self.now(),
            registration=self.registration(),
            api_server=self.api_server(),
            publishing=self.publishing(),
            store=self.store(),
            enforcer=self.enforcer(),
            keepers=self.keepers,
            cards=()
            if catalog is None
            else observed.cards(
                catalog.devices,
                self._claims,
                unhealthy=catalog.unhealthy,
                absent=catalog.absent,
                xids=self.xids(),
                foreign=used.foreign,
                rules_of=lambda device: device_rules.rule_taints(
                    rules, driver=names.DRIVER, pool=catalog.node.pool, device=device.name
                ),
            ),
            cards_missing="" if catalog else self.catalog.reason_missing,
            left_out=catalog.left_out if catalog else (),
            shares=observed.shares(
                self._claims,
                catalog.by_name() if catalog else {},
                verdicts=verdicts,
                used=used.shares,
                raised=self.raised(),
                resized=self.resized(),
            ),
            shares_error=shares_error,
            use_error=used.reason,
            operations=tuple(self.operations()),
        )
