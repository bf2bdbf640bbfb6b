"""Admission of an allocated claim: its record, put into the ledger beside those of other claims."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Event

from tensorfusion_dra.core.claims import device_metadata, isolation
from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.enforcement import presence
from tensorfusion_dra.core.claims.enforcement.signs import NodeSigns
from tensorfusion_dra.core.claims.fit import Fit, NodeOffer, fit
from tensorfusion_dra.core.claims.operation import Stage
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.quick_fit import quick_fit
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver import operations
from tensorfusion_dra.driver.catalog import Catalog
from tensorfusion_dra.driver.projection import Plan, Projection
from tensorfusion_dra.driver.shared_containers import SharedContainers, Together
from tensorfusion_dra.driver.tenant_index import TenantIndex
from tensorfusion_dra.state.ledger import Ledger
from tensorfusion_dra.state.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A claim that was admitted.

    Attributes:
        claim: The claim's record.
        stored: The record as the ledger has it.
        plan: The claim's files; none of them is written yet.
        changed: Other claims whose limits shrank in favour of its request.
    """

    claim: PreparedClaim
    stored: Record
    plan: Plan
    changed: Sequence[PreparedClaim]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Admits claims in one step of the ledger each.

    Attributes:
        refused: Set when a claim does not fit, perhaps because of a record whose claim is gone.
    """

    ledger: Ledger
    index: TenantIndex
    projection: Projection
    shared_containers: SharedContainers
    refused: Event = field(default_factory=Event)

    def admit(
        self,
        claim: AllocatedClaim,
        policies: Sequence[SharePolicy],
        together: Together,
        *,
        catalog: Catalog,
        offer: NodeOffer,
        signs: NodeSigns | None = None,
    ) -> Admitted:
        """Record the claim, and the changes that it causes to other claims.

        Args:
            claim: The allocated claim.
            policies: One for each of its allocations.
            together: Claims that share a container with it.
            catalog: The node's cards.
            offer: The node, made of this catalog.
            signs: Signs of the enforcer that has to be alive; None if none has to be.

        Raises:
            ClaimError: The claim does not fit, or its limits cannot be enforced. Nothing changes.
            RetryableError: The ledger cannot be read or written now, or nothing on the node would
                enforce the claim's limits now; the kubelet asks again.
            FatalError: A newer release has changed the ledger.
        """
        with self.ledger.transaction() as step:
            tenants = self.index.at(step, catalog)
            # A record from another instance, which prepared the claim at the same time.
            is_recorded = tenants.has(claim.ref)
            record = None if is_recorded else quick_fit(claim, policies, offer, tenants)
            changed: Sequence[PreparedClaim] = ()
            before: dict[str, PreparedClaim] = {}
            if record is None:
                before = {each.ref.uid: each for each in step.claims_on(offer.access)}
                fitting = self._fitted(claim, policies, offer, before.values())
                record, changed = fitting.claim, fitting.changed
            if offer.describes_devices:
                record = replace(record, metadata=device_metadata.of_claim(claim, offer.devices))
            plan = self.projection.plan(record)
            if trouble := self._trouble(record, plan, signs):
                unlimited = isolation.without_limits(record, offer.devices)
                if unlimited is None:
                    raise RetryableError(f"claim {record.ref}: {trouble}")
                record = unlimited
                plan = self.projection.plan(record)
            self.shared_containers.check(record, together, step, tenants)
            self._check_earlier_pods(record, plan, map(step.get, tenants.uids_of_pods(record.pods)))
            stored = step.put(record)
            for other in changed:
                step.put(other)
            if not is_recorded:
                replaced = [before[other.ref.uid] for other in changed]
                self.index.note(step, added=[record, *changed], removed=replaced)
                tenants.mark_divided(record)
            operations.enter(Stage.FLUSH)
        return Admitted(claim=record, stored=stored, plan=plan, changed=changed)

    def _trouble(self, record: PreparedClaim, plan: Plan, signs: NodeSigns | None) -> str:
        """Return why nothing on this node would enforce the claim's limits; "" if something does.

        Without `signs`, what the enforcer needs has to be there, and nothing has to be alive.
        """
        if missing := self.projection.missing(plan):
            return missing
        dead = presence.refusal(record, signs) if signs else ""
        return f"nothing would enforce its limits (require-enforcement): {dead}" if dead else ""

    def _check_earlier_pods(
        self, record: PreparedClaim, plan: Plan, of_same_names: Iterable[PreparedClaim | None]
    ) -> None:
        """Refuse a claim while an earlier pod of its pod's name has the folder that it needs.

        Raises:
            RetryableError: There is one; it was deleted by force, or the kubelet still ends it.
        """
        for other in filter(None, of_same_names):
            if {*other.pods} & {*record.pods} or other.ref.uid == record.ref.uid:
                continue
            if {*self.projection.needs(other).folders} & {*plan.needs.folders}:
                pod = record.pods[0]
                raise RetryableError(
                    f"pod {pod}: UID {pod.uid}: found claim {other.ref} of an earlier pod of this "
                    f"name still prepared, UID {other.pods[0].uid}, expected the kubelet to "
                    f"unprepare it"
                )

    def _fitted(
        self,
        claim: AllocatedClaim,
        policies: Sequence[SharePolicy],
        offer: NodeOffer,
        existing: Iterable[PreparedClaim],
    ) -> Fit:
        try:
            return fit(claim, policies, offer, existing)
        except ClaimError:
            self.refused.set()
            raise
