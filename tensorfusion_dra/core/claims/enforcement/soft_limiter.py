"""Verdict under Tensor Fusion's soft limiter: a hypervisor on the node and a library in the pod.

The hypervisor makes a file of shared memory for each pod that it serves. It writes the limits into
it once, and from then on the memory that the pod uses and, twice a second, a heartbeat. The library
in the container refuses memory and delays kernels by what it finds there. Once the heartbeat is
older than two seconds, it still refuses memory, by the usage that was written last, but lets every
kernel pass (NexusGPU/vgpu.rs, crates/cuda-limiter/src/limiter.rs). So without a heartbeat the
limits do not hold, and without a registered process nobody knows: only such a process has loaded
the library.
"""

from typing import Final

from tensorfusion_dra.core.claims.enforcement import verdict
from tensorfusion_dra.core.claims.enforcement.signs import SharedMemory, Signs
from tensorfusion_dra.core.claims.enforcement.verdict import Verdict
from tensorfusion_dra.core.claims.limits import Limit

FRESH_SECONDS: Final = 5.0
"""Greatest age of a heartbeat. The limiter wants two seconds; the rest is for whole seconds in the
file and for a busy node."""
_EARLY_SECONDS: Final = 2.0
"""Time by which a heartbeat may be ahead, since two clocks are read one after the other."""
_CURE: Final = "check that Tensor Fusion's hypervisor runs on this node and serves this pod"


def is_fresh(memory: SharedMemory, read_at: float) -> bool:
    """Return True if a hypervisor was at this shared memory a moment ago."""
    return memory.heartbeat > 0 and -_EARLY_SECONDS <= read_at - memory.heartbeat <= FRESH_SECONDS


def judge(gpu_uuid: str, expected: Limit, signs: Signs, *, is_new: bool) -> Verdict:
    """Return the verdict about one card of a pod.

    Args:
        gpu_uuid: The card.
        expected: The pod's limit on this card: that of all its shares of it together.
        signs: What was read.
        is_new: The limits were set a moment ago, so the hypervisor may still be about to write.
    """
    memory = signs.shared_memory
    if memory is None:
        return verdict.unknown(verdict.UNREADABLE, "its shared memory was not looked for")
    if memory.trouble and not memory.is_replaced:
        return verdict.unknown(verdict.UNREADABLE, f"{memory.path}: {memory.trouble}")
    trouble = _trouble(gpu_uuid, expected, memory, signs.read_at)
    if trouble is not None and is_new:
        text = f"the limits were set a moment ago; {trouble.text}"
        trouble = verdict.unknown(verdict.STARTING, text)
    if trouble is not None:
        return trouble
    if memory.processes:
        return verdict.enforced(
            verdict.LIMITER_ACTIVE,
            f"hypervisor alive, limits in {memory.path} as in the claim, "
            f"registered processes: {memory.processes}",
        )
    missing = [f"{file.path}: {file.trouble}" for file in signs.files if file.trouble]
    if missing:
        return verdict.not_enforced(
            verdict.LIMITER_MISSING,
            f"{missing[0]}: the hypervisor is alive, but no container can load the limiter; "
            "put the limiter there",
        )
    return verdict.unknown(
        verdict.NO_PROCESS,
        "hypervisor alive, limits as in the claim, but no process has registered: none has used "
        "the GPU yet, or it runs without the limiter",
    )


def _trouble(
    gpu_uuid: str, expected: Limit, memory: SharedMemory, read_at: float
) -> Verdict | None:
    """Return why the hypervisor does not keep this limit; None if it does."""
    if memory.is_replaced:
        return verdict.not_enforced(
            verdict.SHARED_MEMORY_REPLACED,
            f"{memory.path}: its folder is not the one that the pod's containers have mounted, so "
            "they see no limits; delete the pod, so that a new one starts with them",
        )
    if not memory.found:
        return verdict.not_enforced(
            verdict.SHARED_MEMORY_MISSING,
            f"{memory.path}: not found: no hypervisor keeps the limits of this pod; {_CURE}",
        )
    if not is_fresh(memory, read_at):
        return verdict.not_enforced(
            verdict.HEARTBEAT_STALE,
            f"{memory.path}: {_age(memory, read_at)}, expected one of the last "
            f"{FRESH_SECONDS:g} s: compute is unlimited, and memory is limited by the usage of "
            f"then; {_CURE}",
        )
    by_uuid = {plain_uuid(uuid): limit for uuid, limit in memory.limits.items()}
    found = by_uuid.get(plain_uuid(gpu_uuid))
    if found is None:
        known = ", ".join(sorted(memory.limits)) or "no GPU"
        return verdict.not_enforced(
            verdict.DEVICE_MISSING, f"{memory.path}: found {known}, expected {gpu_uuid}; {_CURE}"
        )
    differing = ""
    if found.sm_percent > expected.sm_percent or found.vram_bytes > expected.vram_bytes:
        differing = f"{memory.path}: {gpu_uuid}: found {found}, expected {expected}; {_CURE}"
    elif memory.overruled:
        differing = f"the pod's annotations rule the hypervisor: {memory.overruled}"
    return verdict.not_enforced(verdict.LIMITS_DIFFER, differing) if differing else None


def plain_uuid(uuid: str) -> str:
    """Return a UUID without its prefix, in lower case: upstream's parts spell it in three ways."""
    return uuid.lower().removeprefix("gpu-")


def _age(memory: SharedMemory, read_at: float) -> str:
    if not memory.heartbeat:
        return "no heartbeat"
    seconds = round(read_at - memory.heartbeat)
    if seconds < 0:
        return f"a heartbeat {-seconds} s ahead of this node's clock"
    return f"the last heartbeat is {seconds} s old"
