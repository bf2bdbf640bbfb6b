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

from collections.abc import Iterable
from typing import Final, Protocol, runtime_checkable

from tensorfusion_dra.core.claims import limits
from tensorfusion_dra.core.claims.enforcement import hami_core, mps, soft_limiter, verdict
from tensorfusion_dra.core.claims.enforcement.signs import Places, Signs
from tensorfusion_dra.core.claims.enforcement.verdict import Verdict
from tensorfusion_dra.core.claims.enforcers import by_index, enforcer
from tensorfusion_dra.core.claims.enforcers.hami_core import HamiCore
from tensorfusion_dra.core.claims.enforcers.mps import Mps
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.sharing import Isolation

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
        return hami_core.judge(share.request, by_index.limits(of_request), signs)
    return mps.judge(signs)
