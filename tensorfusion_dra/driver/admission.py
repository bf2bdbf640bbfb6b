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
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver import operations
from tensorfusion_dra.driver.projection import Plan, Projection
from tensorfusion_dra.driver.shared_containers import SharedContainers, Together
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
    projection: Projection
    shared_containers: SharedContainers
    refused: Event = field(default_factory=Event)

    def admit(
        self,
        claim: AllocatedClaim,
        policies: Sequence[SharePolicy],
        together: Together,
        *,
        offer: NodeOffer,
        signs: NodeSigns | None = None,
    ) -> Admitted:
        """Record the claim, and the changes that it causes to other claims.

        Args:
            claim: The allocated claim.
            policies: One for each of its allocations.
            together: Claims that share a container with it.
            offer: The node.
            signs: Signs of the enforcer that has to be alive; None if none has to be.

        Raises:
            ClaimError: The claim does not fit, or its limits cannot be enforced. Nothing changes.
            RetryableError: The ledger cannot be read or written now, or nothing on the node would
                enforce the claim's limits now; the kubelet asks again.
            FatalError: A newer release has changed the ledger.
        """
        with self.ledger.transaction() as step:
            # Another instance may have prepared this claim meanwhile; fit() ignores that record.
            fitting = self._fitted(claim, policies, offer, step.claims_on(offer.access))
            record = fitting.claim
            if offer.describes_devices:
                record = replace(record, metadata=device_metadata.of_claim(claim, offer.devices))
            plan = self.projection.plan(record)
            if trouble := self._trouble(record, plan, signs):
                unlimited = isolation.without_limits(record, offer.devices)
                if unlimited is None:
                    raise RetryableError(f"claim {record.ref}: {trouble}")
                record = unlimited
                plan = self.projection.plan(record)
            self.shared_containers.check(record, together, step.claims())
            stored = step.put(record)
            for other in fitting.changed:
                step.put(other)
            operations.enter(Stage.FLUSH)
        return Admitted(claim=record, stored=stored, plan=plan, changed=fitting.changed)

    def _trouble(self, record: PreparedClaim, plan: Plan, signs: NodeSigns | None) -> str:
        """Return why nothing on this node would enforce the claim's limits; "" if something does.

        Without `signs`, what the enforcer needs has to be there, and nothing has to be alive.
        """
        if missing := self.projection.missing(plan):
            return missing
        dead = presence.refusal(record, signs) if signs else ""
        return f"nothing would enforce its limits (require-enforcement): {dead}" if dead else ""

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
