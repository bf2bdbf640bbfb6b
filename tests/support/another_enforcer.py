"""The enforcer of another package: it limits memory, and compute by nice values."""

from collections.abc import Sequence
from typing import Any

from tensorfusion_dra.extend import (
    ClaimError,
    Edits,
    Enforcer,
    EnforcerSettings,
    Folder,
    Mount,
    Needs,
    PreparedClaim,
    PreparedShare,
    limits_by_index,
)


class Another(Enforcer):
    """Writes a claim's limits into variables, and mounts a folder of the claim."""

    name = "another"

    def __init__(self, settings: EnforcerSettings) -> None:
        self._settings = settings

    @classmethod
    def from_settings(cls, settings: EnforcerSettings) -> "Another":
        return cls(settings)

    def needs(self, claim: PreparedClaim) -> Needs:
        if len(claim.shares) > 4:
            raise ClaimError(f"claim {claim.ref}: found {len(claim.shares)} shares, expected 4")
        return Needs(folders=(Folder(path=self._folder(claim), mode=0o755),))

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        limits = limits_by_index(shares)
        return Edits(
            env={
                f"ANOTHER_MEMORY_{index}": str(limit.vram_bytes)
                for index, limit in enumerate(limits)
            },
            mounts=(Mount(host_path=self._folder(claim), container_path="/run/another"),),
        )

    def _folder(self, claim: PreparedClaim) -> str:
        return f"{self._settings.claims_root}/{claim.ref.uid}"


def variant(**members: Any) -> type[Another]:
    """Return the class with other members."""
    return type("Variant", (Another,), members)
