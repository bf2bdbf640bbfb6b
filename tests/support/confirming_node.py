"""A node that checks at the API server whether its claims still exist."""

from pathlib import Path
from typing import Any

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tests.support.ports import ClaimsInMemory, Readiness
from tests.support.prepared_node import Setup, put_claim, share_result

GONE_SECONDS = 600.0


class ConfirmingNode(Setup):
    """A node with a round each minute, in which it checks all claims unless told otherwise."""

    def __init__(
        self, folder: Path, claims: ClaimsInMemory | None = None, *, check_seconds: float = 60
    ) -> None:
        super().__init__(folder, claims)
        self.readiness = Readiness()
        self.now = 0.0
        self.stale_claims = StaleClaimCollector(
            self.claims,
            self.readiness,
            self.preparer,
            gone_seconds=GONE_SECONDS,
            check_seconds=check_seconds,
            clock=lambda: self.now,
        )

    def run_round(self, *unknown: ClaimRef) -> list[str]:
        """Run one round of the check a minute later; return the claims that were fetched."""
        self.now += 60
        self.claims.fetched.clear()
        self.stale_claims.collect([*self.ledger.claims(), *unknown])
        return list(self.claims.fetched)

    def run_rounds_for(self, seconds: float) -> list[str]:
        """Run a round each minute for some time; return the claims that were fetched."""
        return [name for _ in range(int(seconds / 60)) for name in self.run_round()]

    def prepare_new(self, name: str = "a", **more: Any) -> ClaimRef:
        ref = put_claim(self, name, share_result(tflops="0.1", vram="1Mi", **more))
        assert isinstance(self.prepare(ref)[ref.uid], PreparedClaim)
        return ref

    def recorded_names(self) -> list[str]:
        return sorted(claim.ref.name for claim in self.ledger.claims())


def delete_claim(claims: ClaimsInMemory, ref: ClaimRef) -> None:
    del claims.stored[str(ref)]
