"""The files of a prepared claim, all of them a function of its record."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorfusion_dra.core.claims import cdi, limits_document
from tensorfusion_dra.core.claims import claim as claims
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcers.enforcer import Enforcer, Needs
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.state.claim_files import ClaimFiles
from tensorfusion_dra.state.host_files import HostFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Files and folders of one prepared claim.

    Attributes:
        limits: The limits document; None if the claim has none.
        spec: The CDI spec; None if the claim has none.
    """

    claim_uid: str
    needs: Needs = field(default_factory=Needs)
    limits: Mapping[str, Any] | None = None
    spec: Mapping[str, Any] | None = None


class Projection:
    """A claim's CDI spec, its limits document and the folders its enforcer needs."""

    def __init__(
        self,
        specs: ClaimFiles,
        limits: ClaimFiles,
        host_files: HostFiles,
        enforcers: Mapping[str, Enforcer],
    ) -> None:
        self._specs = specs
        self._limits = limits
        self._host_files = host_files
        self._enforcers = enforcers

    def sets_limits_by_environment(self, claim: PreparedClaim) -> bool:
        """Whether a container of the claim takes a limit from its variables.

        It may, if the claim's enforcer is not known.
        """
        enforcer = self._enforcers.get(claim.enforcer)
        fixed = frozenset(Isolation) if enforcer is None else enforcer.fixed
        return any(share.limit and share.isolation in fixed for share in claim.shares)

    def plan(self, claim: PreparedClaim) -> Plan:
        """Return what has to be written for the claim; touch nothing.

        Raises:
            ClaimError: The claim's enforcer cannot express its limits, or is not known: settings
                changed, or an earlier release took over.
        """
        if not claim.shares:
            return Plan(claim_uid=claim.ref.uid)
        enforcer = self._enforcer(claim)
        return Plan(
            claim_uid=claim.ref.uid,
            needs=enforcer.needs(claim),
            limits=limits_document.document(claim),
            spec=cdi.spec(claim, enforcer),
        )

    def write(self, plan: Plan) -> int:
        """Return once everything is as planned; the number of files that had to be written.

        The spec comes last: a container that starts by it finds all the rest.

        Raises:
            RetryableError: Something that the claim's limits depend on is missing, or a folder
                cannot be written.
        """
        self._host_files.provide(plan.needs)
        written = 0
        if plan.limits is not None:
            written += self._limits.ensure(plan.claim_uid, plan.limits)
        if plan.spec is not None:
            written += self._specs.ensure(plan.claim_uid, plan.spec)
        return written

    def ensure(self, claim: PreparedClaim) -> int:
        """Plan and write; the number of files that had to be written.

        Raises:
            ClaimError: See plan(); nothing is written then.
            RetryableError: See write().
        """
        return self.write(self.plan(claim))

    def remove(
        self,
        claim_uid: str,
        claim: PreparedClaim | None,
        *,
        of_same_pods: Callable[[], Sequence[PreparedClaim]] = tuple,
    ) -> None:
        """Return once nothing of the claim is seen any more.

        Args:
            claim_uid: The claim's.
            claim: Its record; None if there is none.
            of_same_pods: Asked for the recorded claims of the claim's pods if folders are to go
                that these may use as well.

        Raises:
            RetryableError: A folder cannot be written.
        """
        self._specs.remove(claim_uid)
        self._limits.remove(claim_uid)
        needs = self._needs(claim) if claim is not None else Needs()
        if needs.folders:
            others = [each for each in of_same_pods() if each.ref.uid != claim_uid]
            used = {folder for other in others for folder in self._needs(other).folders}
            left = tuple(folder for folder in needs.folders if folder not in used)
            self._host_files.withdraw(Needs(folders=left))
        for root in self._claims_roots():
            self._host_files.remove(f"{root}/{claim_uid}")

    def remove_unfinished(self) -> None:
        """Removes what crashes left of writes; call it only while nobody writes.

        Raises:
            RetryableError: A folder cannot be read or written.
        """
        self._specs.remove_unfinished()
        self._limits.remove_unfinished()
        for root in self._claims_roots():
            self._host_files.remove_unfinished(root)

    def claim_ref(self, claim_uid: str) -> ClaimRef | None:
        """The claim that something is seen of; None if nothing readable names it.

        Raises:
            RetryableError: A folder cannot be read.
        """
        ref = limits_document.claim_ref(self._limits.read(claim_uid))
        return ref if ref is not None and ref.uid == claim_uid else None

    def claim_uids(self) -> frozenset[str]:
        """The claims that something is seen of.

        Raises:
            RetryableError: A folder cannot be read.
        """
        folders = [self._host_files.names(root) for root in self._claims_roots()]
        uids = {name for names in folders for name in names if claims.is_uid(name)}
        return self._specs.claim_uids() | self._limits.claim_uids() | uids

    def _needs(self, claim: PreparedClaim) -> Needs:
        """What is provided for the claim; nothing if it can not be said any more."""
        if not claim.shares:
            return Needs()
        try:
            return self._enforcer(claim).needs(claim)
        except ClaimError:
            return Needs()

    def _claims_roots(self) -> list[str]:
        roots = (enforcer.claims_root for enforcer in self._enforcers.values())
        return [root for root in roots if root]

    def _enforcer(self, claim: PreparedClaim) -> Enforcer:
        enforcer = self._enforcers.get(claim.enforcer)
        if enforcer is None:
            # A later release wrote the record. It costs this claim only.
            raise ClaimError(
                f"claim {claim.ref}: found the enforcer {claim.enforcer!r}, "
                f"expected one of {sorted(self._enforcers)}"
            )
        return enforcer
