"""The plan of a prepared claim: all that has to be on the node for it, computed from its record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorfusion_dra.core.claims import cdi, documents
from tensorfusion_dra.core.claims.enforcer import Enforcer, Needs
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Files and folders of one prepared claim.

    Attributes:
        enforcer: Name of the claim's enforcer.
        needs: Files and folders on the host that it needs.
        limits: The limits document; None if the claim has none.
        metadata: The documents of device metadata by file name; empty if the claim has none.
        spec: The CDI spec; None if the claim has none.
    """

    claim_uid: str
    enforcer: str = ""
    needs: Needs = field(default_factory=Needs)
    limits: Mapping[str, Any] | None = None
    metadata: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    spec: Mapping[str, Any] | None = None


def plan(claim: PreparedClaim, enforcers: Mapping[str, Enforcer], *, metadata_folder: str) -> Plan:
    """Return the files and folders of the claim.

    Args:
        claim: Its record.
        enforcers: Those of the node, by name.
        metadata_folder: Host folder of the files with device metadata.

    Raises:
        ClaimError: The claim's enforcer cannot express its limits or is unknown, because settings
            changed or an earlier release took over.
    """
    if not claim.shares:
        return Plan(claim_uid=claim.ref.uid)
    enforcer = _enforcer(claim, enforcers)
    return Plan(
        claim_uid=claim.ref.uid,
        enforcer=claim.enforcer,
        needs=enforcer.needs(claim),
        limits=documents.limits_document(claim),
        metadata=documents.metadata_documents(claim),
        spec=cdi.spec(claim, enforcer, metadata_folder=metadata_folder),
    )


def needs(claim: PreparedClaim, enforcers: Mapping[str, Enforcer]) -> Needs:
    """Return the needs of the claim's enforcer; none if it is unknown or refuses by now."""
    if not claim.shares:
        return Needs()
    try:
        return _enforcer(claim, enforcers).needs(claim)
    except ClaimError:
        return Needs()


def _enforcer(claim: PreparedClaim, enforcers: Mapping[str, Enforcer]) -> Enforcer:
    enforcer = enforcers.get(claim.enforcer)
    if enforcer is None:
        # A later release may have written the record; only this claim fails.
        raise ClaimError(
            f"claim {claim.ref}: found the enforcer {claim.enforcer!r}, "
            f"expected one of {sorted(enforcers)}"
        )
    return enforcer
