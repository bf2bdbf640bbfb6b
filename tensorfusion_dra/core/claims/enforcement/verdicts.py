"""Verdicts about the shares of a claim: does the limit of each hold now?

Theory of operation. Each share is in one of three states:

- Enforced: live signs of the enforcer show that it keeps the limits of this claim, and that a
  process of the container takes part. A share without a limit is Enforced as well (reason NoLimit),
  because nobody can exceed what there is not; the same for admin access.
- NotEnforced: a sign that has to be there is not, or it says something else than the claim.
- Unknown: nothing on the node can show it (a limiter in the image, clients of MPS, a simulated
  GPU), or not yet (a claim that was prepared a moment ago, a container that has not used its GPU).

A file that is only installed never makes a share Enforced. The signs are written by the enforcer
into memory that the container can write as well, so a tenant can deceive this check about its own
share, and about no other.

Example: a pod starts under the soft limiter. Unknown (Starting) while the hypervisor makes its
shared memory, Unknown (NoProcessYet) until the first CUDA call, Enforced from then on. The
hypervisor dies: NotEnforced (HeartbeatStale). It returns: Enforced.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol, runtime_checkable

from tensorfusion_dra.core.claims import limits
from tensorfusion_dra.core.claims.enforcement import soft_limiter, verdict
from tensorfusion_dra.core.claims.enforcement.signs import Cache, Places, Signs
from tensorfusion_dra.core.claims.enforcement.verdict import Verdict
from tensorfusion_dra.core.claims.enforcers import by_index, enforcer
from tensorfusion_dra.core.claims.enforcers.hami_core import HamiCore
from tensorfusion_dra.core.claims.enforcers.mps import Mps
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.sharing import Isolation

_WHOLE_PERCENT: Final = 100
_OWN: Final = frozenset({TensorFusion.name, HamiCore.name, Mps.name})
STARTING_SECONDS: Final = 30.0
"""Time after new limits in which missing signs mean nothing yet. The hypervisor itself tries for 30
seconds to make a pod's shared memory."""


@runtime_checkable
class Judge(Protocol):
    """An enforcer that judges by its own signs."""

    def judge(self, claim: PreparedClaim, share: PreparedShare, signs: Signs, /) -> Verdict:
        """Return the verdict about one share with a limit.

        Args:
            claim: As it is prepared now.
            share: One of its shares, not of a simulated card.
            signs: What was read at the places of the claim.
        """
        ...


def judge_of(enforcer: object) -> Judge | None:
    """Return the enforcer if it judges by its own signs; None if it does not."""
    return enforcer if isinstance(enforcer, Judge) else None


def of_claim(
    claim: PreparedClaim,
    signs: Signs,
    *,
    is_new: bool,
    beside: Iterable[PreparedClaim] = (),
    judge: Judge | None = None,
) -> tuple[Verdict, ...]:
    """Return the verdict about each share of the claim, in their order.

    Args:
        claim: As it is prepared now.
        signs: What was read at the claim's places.
        is_new: Its limits were set less than STARTING_SECONDS ago.
        beside: Other claims of the same pod, which share its limits.
        judge: The claim's enforcer if it is of another package and judges itself.
    """
    others = tuple(beside)
    return tuple(
        without_signs(claim, share)
        or (
            _by_signs(claim, share, signs, is_new=is_new, beside=others)
            if claim.enforcer in _OWN
            else _by_judge(claim, share, signs, judge)
        )
        for share in claim.shares
    )


def beside(
    claim: PreparedClaim, shared_memory: str, every: Iterable[tuple[PreparedClaim, Places]]
) -> list[PreparedClaim]:
    """Return the other claims whose limits are in the same shared memory: those of the same pod.

    Args:
        claim: The claim.
        shared_memory: Its path; "" for none, which no claim shares.
        every: All claims of the node with their places, this one included.
    """
    if not shared_memory:
        return []
    return [
        other
        for other, places in every
        if places.shared_memory == shared_memory
        and other.ref.uid != claim.ref.uid
        and other.pods[:1] == claim.pods[:1]  # and not of an earlier pod of this name
    ]


def without_signs(claim: PreparedClaim, share: PreparedShare) -> Verdict | None:
    """Return the verdict that follows from the record alone; None if signs decide."""
    if share.limit is None:
        why = "admin access" if share.admin_access else f"isolation {share.isolation.value}"
        return verdict.enforced(verdict.NO_LIMIT, f"no limit to enforce: {why}")
    if enforcer.is_simulated([each for each in claim.shares if each.limit]):
        return verdict.unknown(verdict.SIMULATED, "simulated GPU: there is nothing to enforce")
    if claim.enforcer == TensorFusion.name and share.isolation is not Isolation.SOFT:
        return verdict.unknown(
            verdict.LIMITER_IN_IMAGE,
            f"isolation {share.isolation.value}: the limiter is part of the container's image and "
            "leaves no sign on the node",
        )
    return None


def _by_judge(
    claim: PreparedClaim, share: PreparedShare, signs: Signs, judge: Judge | None
) -> Verdict:
    if judge is None:
        return verdict.unknown(
            verdict.UNKNOWN_ENFORCER, f"enforcer {claim.enforcer!r} is not known on this node"
        )
    return judge.judge(claim, share, signs)


def _by_signs(
    claim: PreparedClaim,
    share: PreparedShare,
    signs: Signs,
    *,
    is_new: bool,
    beside: tuple[PreparedClaim, ...],
) -> Verdict:
    if claim.enforcer == TensorFusion.name:
        shares = [each for one in (claim, *beside) for each in one.shares]
        expected = limits.by_uuid((each.gpu_uuid, each.limit) for each in shares)
        return soft_limiter.judge(share.gpu_uuid, expected[share.gpu_uuid], signs, is_new=is_new)
    if claim.enforcer == HamiCore.name:
        of_request = enforcer.enforced(claim)[share.request]
        return _of_hami_core(share.request, by_index.limits(of_request), signs)
    return _of_mps(signs)


def _of_hami_core(request: str, expected: tuple[Limit, ...], signs: Signs) -> Verdict:
    """Return the verdict about the cards of one request under HAMi-core.

    HAMi-core is a library in the container that counts in a file of its claim. The first process
    that loads it writes its limits into the file; each process registers in it. So the file is
    there only once a process has loaded the library, and it has the limits by which the library
    really refuses. It has process IDs of the container, which cannot be looked up from outside, so
    a registered process may have been killed by now.

    Args:
        request: Name of the request.
        expected: The request's limits by the index of a card in the container.
        signs: What was read.
    """
    cache = _cache(request, signs.caches)
    if cache is not None and cache.trouble:
        return verdict.unknown(verdict.UNREADABLE, f"{cache.path}: {cache.trouble}")
    if cache is not None and cache.processes:
        return _of_limits(cache, expected)
    missing = [f"{file.path}: {file.trouble}" for file in signs.files if file.trouble]
    if missing:
        return verdict.not_enforced(
            verdict.LIMITER_MISSING,
            f"{missing[0]}: no container can load HAMi-core; put it there",
        )
    return verdict.unknown(
        verdict.NO_PROCESS,
        "no process has registered with HAMi-core: none has used the GPU yet, or it runs without "
        "the library",
    )


def _cache(request: str, caches: Mapping[str, Cache]) -> Cache | None:
    """Return the file of a request.

    A container that uses several requests of its claim counts in the file of one of them. Their
    limits are equal (enforcers/by_index.py), so that one speaks for all.
    """
    own = caches.get(request)
    if own is not None and (own.processes or own.trouble):
        return own
    return next((cache for cache in caches.values() if cache.processes), own)


def _of_limits(cache: Cache, expected: tuple[Limit, ...]) -> Verdict:
    for index, (limit, found) in enumerate(zip(expected, cache.limits, strict=False)):
        if _exceeds(found, limit):
            return verdict.not_enforced(
                verdict.LIMITS_DIFFER,
                f"{cache.path}: card {index}: found {found}, expected "
                f"{limit}; the first process in the container had other limits "
                "in its environment; start the pod anew",
            )
    return verdict.enforced(
        verdict.LIMITER_ACTIVE,
        f"limits in {cache.path} as in the claim, registered processes: {cache.processes}",
    )


def _exceeds(found: Limit, limit: Limit) -> bool:
    """Return True if more is allowed than the limit; HAMi-core takes 0 for no limit."""
    percent = found.sm_percent or _WHOLE_PERCENT
    return not found.vram_bytes or found.vram_bytes > limit.vram_bytes or percent > limit.sm_percent


def _of_mps(signs: Signs) -> Verdict:
    """Return the verdict about a claim under MPS, whose clients only its own tool shows."""
    daemon = signs.daemon
    if daemon is None:
        return verdict.unknown(verdict.UNREADABLE, "its daemon was not looked for")
    if daemon.trouble:
        return verdict.not_enforced(
            verdict.DAEMON_SILENT,
            f"{daemon.path}: {daemon.trouble}: processes that start now run without limits; "
            "start nvidia-cuda-mps-control -d on this node",
        )
    return verdict.unknown(
        verdict.CLIENTS_HIDDEN,
        f"the MPS daemon answers at {daemon.path}; whether the container's processes are its "
        "clients only its tool shows: run get_client_list in nvidia-cuda-mps-control on the node",
    )
