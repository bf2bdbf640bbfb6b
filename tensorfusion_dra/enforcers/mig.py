"""Enforcer mig: the card itself keeps each partition within its memory and multiprocessors.

It is the enforcer of partitions alone (docs/adr/0076), so no setting names it. Containers get no
limiter, and nothing has to be there but the partition.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import Edits, Enforcer, EnforcerFacts, Needs
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.device import MIG
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.kubernetes.quantity import Quantity


class Mig(Enforcer):
    """Limits kept by hardware."""

    name = MIG
    facts = EnforcerFacts(
        keeper="the card",
        enforces_compute=True,
        enforces_memory=True,
        counts_by_pid=False,
        mixed=frozenset(),
    )

    def __init__(self, partitions: Callable[[], Mapping[str, Gpu]]) -> None:
        """Args:
        partitions: Returns what the last reading of NVML found, by UUID; empty if not known.
        """
        self._partitions = partitions

    def needs(self, claim: PreparedClaim) -> Needs:
        return Needs()

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        return Edits(env={names.ENV_ISOLATION_MODE: shares[0].isolation.value})

    def judge(
        self,
        claim: PreparedClaim,
        shares: Sequence[PreparedShare],
        others: Iterable[PreparedClaim],
        *,
        is_new: bool,
    ) -> Sequence[Verdict]:
        known = self._partitions()
        return [_judged(share, known) for share in shares]


def _judged(share: PreparedShare, known: Mapping[str, Gpu]) -> Verdict:
    found = known.get(share.gpu_uuid)
    if not known:
        return verdicts.unknown(verdicts.UNREADABLE, "NVML's last answers could not be read")
    if found is None:
        text = f"NVML has no partition {share.gpu_uuid} any more; its containers have lost it"
        return verdicts.not_enforced(verdicts.DEVICE_MISSING, text)
    size = Quantity.of_bytes(capacity.usable_vram_bytes(found))
    text = f"NVML has partition {found.partition} of GPU {found.parent_uuid} with {size}"
    if share.limit is None or size.ceil() != share.limit.vram_bytes:
        return verdicts.not_enforced(verdicts.LIMITS_DIFFER, f"{text}, expected {share.limit}")
    return verdicts.enforced(verdicts.LIMIT_IN_HARDWARE, text)
