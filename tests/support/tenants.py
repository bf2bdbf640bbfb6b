"""The claims of a node and the limits they get, as a ledger would keep them."""

from collections.abc import Sequence

from tensorfusion_dra.core.claims import tenancy
from tensorfusion_dra.core.claims.claim import Allocation
from tensorfusion_dra.core.claims.fit import Fit, NodeOffer
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.claims import admitted, allocated, policy


class Card:
    """Claims that come to a node and leave it."""

    def __init__(self, node: NodeOffer) -> None:
        self.node = node
        self.records: dict[str, PreparedClaim] = {}

    def admit(
        self,
        name: str,
        *allocations: Allocation,
        limit: str = "",
        tflops: str = "",
        isolation: Isolation = Isolation.SOFT,
    ) -> Fit:
        """Admits a claim with these limits of memory and compute."""
        holding = policy(vram=limit, tflops=tflops, isolation=isolation)
        admission = admitted(
            allocated(name, *allocations), on=self.node, beside=self.held(), policy=holding
        )
        self.records[name] = admission.claim
        self.records.update({other.ref.name: other for other in admission.changed})
        return admission

    def release(self, name: str) -> None:
        """Removes a claim, and divides what it leaves."""
        del self.records[name]
        self.divide()

    def divide(self) -> None:
        """Divides everything anew."""
        regranted = tenancy.regranted(self.held(), self.node.devices, self.node.rules)
        self.records.update({record.ref.name: record for record in regranted})

    def held(self) -> Sequence[PreparedClaim]:
        """The claims in the order in which they came."""
        return list(self.records.values())

    def gib(self) -> dict[str, float]:
        """The memory limit of each claim's first share."""
        return {name: limit_of(record).vram_bytes / GIB for name, record in self.records.items()}

    def percent(self) -> dict[str, int]:
        """The compute limit of each claim's first share."""
        return {name: limit_of(record).sm_percent for name, record in self.records.items()}


def limit_of(record: PreparedClaim) -> Limit:
    """The limit of a claim's first share."""
    limit = record.shares[0].limit
    assert limit is not None
    return limit
