"""Verdict about a card of a pod under the soft limiter, by the shared memory of the pod."""

from typing import Final

from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.prepared import Limit
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.enforcers.tensor_fusion import shared_memory
from tensorfusion_dra.enforcers.tensor_fusion.shared_memory import SharedMemory

_REMEDY: Final = "check that Tensor Fusion's hypervisor runs on this node and serves this pod"


def of_card(
    gpu_uuid: str,
    expected: Limit,
    memory: SharedMemory,
    *,
    read_at: float,
    limiter_reason: str,
    is_new: bool,
) -> Verdict:
    """Return the verdict about one card of a pod.

    Args:
        gpu_uuid: The card.
        expected: The pod's limit on this card: that of all its shares of it together.
        memory: As it was read.
        read_at: Time of the reading, in seconds since 1970.
        limiter_reason: Why no process can load the limiter; "" if one can.
        is_new: The limits were set a moment ago, so the hypervisor may still be about to write.
    """
    if memory.reason and not memory.is_replaced:
        return verdicts.unknown(verdicts.UNREADABLE, f"{memory.path}: {memory.reason}")
    reason = _memory_reason(gpu_uuid, expected, memory, read_at)
    if reason is not None:
        starting = f"the limits were set a moment ago; {reason.text}"
        return verdicts.unknown(verdicts.STARTING, starting) if is_new else reason
    if memory.processes:
        return verdicts.enforced(
            verdicts.LIMITER_ACTIVE,
            f"hypervisor alive, limits in {memory.path} as in the claim, "
            f"registered processes: {memory.processes}",
        )
    if limiter_reason:
        return verdicts.not_enforced(
            verdicts.LIMITER_MISSING,
            f"{limiter_reason}: the hypervisor is alive, but no container can load the limiter; "
            "put the limiter there",
        )
    return verdicts.unknown(
        verdicts.NO_PROCESS,
        "hypervisor alive, limits as in the claim, but no process has registered: none has used "
        "the GPU yet, or it runs without the limiter",
    )


def _memory_reason(
    gpu_uuid: str, expected: Limit, memory: SharedMemory, read_at: float
) -> Verdict | None:
    """Return why the hypervisor does not keep this limit; None if it does."""
    if memory.is_replaced:
        return verdicts.not_enforced(
            verdicts.SHARED_MEMORY_REPLACED,
            f"{memory.path}: its folder is not the one that the pod's containers have mounted, so "
            "they see no limits; delete the pod, so that a new one starts with them",
        )
    if not memory.found:
        return verdicts.not_enforced(
            verdicts.SHARED_MEMORY_MISSING,
            f"{memory.path}: not found: no hypervisor keeps the limits of this pod; {_REMEDY}",
        )
    if not shared_memory.is_fresh(memory, read_at):
        return verdicts.not_enforced(
            verdicts.HEARTBEAT_STALE,
            f"{memory.path}: {_age(memory, read_at)}, expected one of the last "
            f"{shared_memory.FRESH_SECONDS:g} s: compute is unlimited, and memory is limited by "
            f"the usage of then; {_REMEDY}",
        )
    by_uuid = {shared_memory.plain_uuid(uuid): limit for uuid, limit in memory.limits.items()}
    found = by_uuid.get(shared_memory.plain_uuid(gpu_uuid))
    if found is None:
        known = ", ".join(sorted(memory.limits)) or "no GPU"
        return verdicts.not_enforced(
            verdicts.DEVICE_MISSING, f"{memory.path}: found {known}, expected {gpu_uuid}; {_REMEDY}"
        )
    differing = ""
    if found.sm_percent > expected.sm_percent or found.vram_bytes > expected.vram_bytes:
        differing = f"{memory.path}: {gpu_uuid}: found {found}, expected {expected}; {_REMEDY}"
    elif memory.overruled:
        differing = f"the pod's annotations rule the hypervisor: {memory.overruled}"
    return verdicts.not_enforced(verdicts.LIMITS_DIFFER, differing) if differing else None


def _age(memory: SharedMemory, read_at: float) -> str:
    if not memory.heartbeat:
        return "no heartbeat"
    seconds = round(read_at - memory.heartbeat)
    if seconds < 0:
        return f"a heartbeat {-seconds} s ahead of this node's clock"
    return f"the last heartbeat is {seconds} s old"
