"""Memory limits of pods that the NVIDIA driver keeps (enforcer nvidia).

A pod's limit on a card is the sum of its recorded claims. It is set in a transaction of the ledger,
so that of two claims of one pod the later one sees both. The limits end with the NVIDIA driver's
module and with the machine, so each check of the watch over limits sets them again.

The records say at once what each claim may use, and the NVIDIA driver follows when it can: what was
lent to a pod cannot be taken back while the pod uses it. Until then no limit on this card grows, so
a claim that was to have this memory waits in its prepare.
"""

from collections.abc import Iterable, Mapping, Sequence

import structlog

from tensorfusion_dra.core.claims.enforcers import nvidia
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports import MemoryLimits
from tensorfusion_dra.runtime.loops import LogThrottle
from tensorfusion_dra.state.ledger import Ledger, Transaction

log = structlog.get_logger()


class PodLimits:
    """Sets and clears the limits of pods; safe for all threads, but restore() is for one."""

    def __init__(self, memory: MemoryLimits, ledger: Ledger) -> None:
        self._memory = memory
        self._ledger = ledger
        self._throttle = LogThrottle()

    def set(self, claim: PreparedClaim) -> Sequence[str]:
        """Have the limits of the claim's pod be as recorded; return the cards that had others.

        Raises:
            RetryableError: A limit is not as recorded now; the text has the cause.
        """
        if not nvidia.memory_limits([claim]):
            return ()
        with self._ledger.transaction() as transaction:
            current = transaction.get(claim.ref.uid)
            if current is None:
                return ()
            pods = _by_pod(transaction.claims())
            mine = pods.pop(_pod_uid(current))
            return self._memory.set(
                _pod_uid(current),
                mine,
                {
                    pod: on_same
                    for pod, limits in pods.items()
                    if (on_same := {uuid: limits[uuid] for uuid in limits.keys() & mine.keys()})
                },
            )

    def restore(self, claim: PreparedClaim) -> None:
        """Set limits again that the NVIDIA driver has lost, and those that could not change yet."""
        try:
            if changed := self.set(claim):
                log.info("memory_limits_set", claim=str(claim.ref), devices=list(changed))
        except RetryableError as error:
            if self._throttle.is_new(str(error), key=claim.ref.uid):
                log.warning("memory_limits_failed", claim=str(claim.ref), error=str(error))

    def used(self, claim: PreparedClaim) -> Mapping[tuple[str, str], int]:
        """Return the memory in use by pod UID and GPU UUID; nothing if it cannot be read now."""
        uuids = nvidia.memory_limits([claim])
        if not uuids:
            return {}
        pod = _pod_uid(claim)
        try:
            found = self._memory.get(pod, uuids)
        except RetryableError:
            return {}
        return {(pod, uuid): each[1] for uuid, each in found.items() if not isinstance(each, str)}

    def release(self, transaction: Transaction, claim: PreparedClaim) -> None:
        """Lower the limits of the pod to those of its other claims; without any, remove them.

        A failure is logged only: the claim's containers have ended, and their pod could not end.
        """
        mine = nvidia.memory_limits([claim])
        if not mine:
            return
        pod = _pod_uid(claim)
        others = (each for each in transaction.claims() if each.ref.uid != claim.ref.uid)
        wanted = {**dict.fromkeys(mine, nvidia.NO_LIMIT), **_by_pod(others).get(pod, {})}
        try:
            self._memory.set(pod, wanted, {})
        except RetryableError as error:
            log.warning("memory_limits_not_removed", claim=str(claim.ref), error=str(error))


def _by_pod(claims: Iterable[PreparedClaim]) -> dict[str, Mapping[str, int]]:
    """Return the limits of each pod, by its UID."""
    of_pods: dict[str, list[PreparedClaim]] = {}
    for claim in claims:
        of_pods.setdefault(_pod_uid(claim), []).append(claim)
    return {pod: nvidia.memory_limits(own) for pod, own in of_pods.items()}


def _pod_uid(claim: PreparedClaim) -> str:
    return claim.pods[0].uid if claim.pods else ""
