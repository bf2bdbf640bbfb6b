"""Claims of a node and their limits, as the store would record them."""

from collections.abc import Sequence

from tensorfusion_dra.core.claims import lending
from tensorfusion_dra.core.claims.admit import ClaimFacts
from tensorfusion_dra.core.claims.claim import Allocation
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.claims import allocated_claim, claim_admission
from tests.support.builders.policies import share_policy


class Card:
    """Claims that are admitted to a node and released again."""

    def __init__(self, node: ClaimFacts) -> None:
        self.node = node
        self.records: dict[str, PreparedClaim] = {}

    def admit(
        self,
        name: str,
        *allocations: Allocation,
        limit: str = "",
        tflops: str = "",
        isolation: Isolation = Isolation.SOFT,
    ) -> PreparedClaim:
        """Admit a claim with these limits of memory and compute."""
        policy = share_policy(vram=limit, tflops=tflops, isolation=isolation)
        admission = claim_admission(
            allocated_claim(name, *allocations),
            on=self.node,
            beside=self.claims(),
            policy=policy,
        )
        self.records[name] = admission
        self._redistribute()
        return admission

    def release(self, name: str) -> None:
        """Remove a claim, and lend the memory that it frees to the other claims."""
        del self.records[name]
        self.divide()

    def divide(self) -> None:
        """Take over what the cards have now, and compute all limits again."""
        for name, record in self.records.items():
            self.records[name] = lending.with_totals(record, self.node.devices)
        self._redistribute()

    def _redistribute(self) -> None:
        regranted = lending.divided(self.claims(), self.node.rules)
        self.records.update({record.ref.name: record for record in regranted})

    def claims(self) -> Sequence[PreparedClaim]:
        """Return the claims in the order of their admission."""
        return list(self.records.values())

    def gib(self) -> dict[str, float]:
        """Return the memory limit of each claim's first share, in GiB."""
        return {name: limit_of(record).vram_bytes / GIB for name, record in self.records.items()}

    def percent(self) -> dict[str, int]:
        """Return the compute limit of each claim's first share, in percent."""
        return {name: limit_of(record).sm_percent for name, record in self.records.items()}


def limit_of(record: PreparedClaim) -> Limit:
    """Return the limit of a claim's first share."""
    limit = record.shares[0].limit
    assert limit is not None
    return limit
