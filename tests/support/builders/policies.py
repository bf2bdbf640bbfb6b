"""Share policies: how a share is isolated and limited."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.share_policy import SharePolicy, of_claim
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.kubernetes import quantity

DEFAULTS: Final = SharePolicy(
    isolation=Isolation.SOFT, qos=Qos.MEDIUM, tflops_limit=None, vram_limit=None, limiter=True
)


def policies_of(
    claim: AllocatedClaim,
    pods: Callable[[], Mapping[str, Mapping[str, str]]] = dict,
) -> Sequence[SharePolicy]:
    """Return the policies of a claim by its parameters and annotations, or those of its pods."""
    return of_claim(claim, pods, DEFAULTS)


def share_policy(*, tflops: str = "", vram: str = "", **changes: Any) -> SharePolicy:
    """Return a policy with these limits and soft isolation; changes set its other attributes."""
    return replace(
        DEFAULTS,
        tflops_limit=quantity.parse(tflops) if tflops else None,
        vram_limit=quantity.parse(vram) if vram else None,
        **changes,
    )
