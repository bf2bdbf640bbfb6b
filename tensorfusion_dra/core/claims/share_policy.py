"""What holds for a share: put together from class, claim, annotations and the node's defaults."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import annotations, share_parameters
from tensorfusion_dra.core.claims.claim import AllocatedClaim, Allocation, OpaqueConfig
from tensorfusion_dra.core.claims.share_parameters import ParameterError, ShareParameters
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePolicy:
    """What holds for one share.

    Attributes:
        tflops_limit: None stands for what the share consumes.
        vram_limit: None stands for what the share consumes.
        limiter: False only if a DeviceClass says so.
        isolation_by_tenant: The isolation is the choice of the claim or its pods, and another one
            than the DeviceClass, or without its word the node, would have set.
    """

    isolation: Isolation
    qos: Qos
    tflops_limit: Quantity | None
    vram_limit: Quantity | None
    limiter: bool
    isolation_by_tenant: bool = False


def annotated(claim: AllocatedClaim) -> ShareParameters | None:
    """What the claim's own annotations say; None if they say nothing that concerns a share.

    Raises:
        ClaimError: They are malformed; all errors at once.
    """
    if not names.SHARE_ANNOTATIONS & claim.annotations.keys():
        return None
    return _of_annotations(claim, "annotation", claim.annotations)


def of_pods(claim: AllocatedClaim, pods: Mapping[str, Mapping[str, str]]) -> ShareParameters:
    """What the pods' annotations say: of several pods on one claim, the smallest limits.

    Args:
        claim: The claim that they are reserved for.
        pods: Annotations by pod, ``namespace/name``.

    Raises:
        ClaimError: Some are malformed; all errors of a pod at once.
    """
    return annotations.smallest(
        _of_annotations(claim, f"pod {pod}: annotation", said) for pod, said in pods.items()
    )


def of_share(
    claim: AllocatedClaim, allocation: Allocation, said: ShareParameters, defaults: SharePolicy
) -> SharePolicy:
    """The terms of one share.

    A claim's parameters go over its class's, unless the class is not overridable; both go over
    annotations, and those over the node's defaults.

    Args:
        claim: Carries the parameters of claim and class.
        allocation: The share.
        said: What annotations say.
        defaults: What holds where nobody says anything.

    Raises:
        ClaimError: Parameters are malformed; all errors at once.
    """
    mine = [config for config in claim.configs if _is_for(config, allocation)]
    of_class = _merged(claim, (config for config in mine if config.trusted))
    of_claim = _merged(claim, (config for config in mine if not config.trusted))
    upper, lower = of_claim, of_class
    if of_class.overridable is False:
        upper, lower = of_class, of_claim
    asked = upper.over(lower).over(said)
    isolation = asked.isolation or defaults.isolation
    return SharePolicy(
        isolation=isolation,
        qos=asked.qos or defaults.qos,
        tflops_limit=asked.tflops_limit,
        vram_limit=asked.vram_limit,
        limiter=asked.limiter is not False,
        isolation_by_tenant=isolation is not (of_class.isolation or defaults.isolation),
    )


def _is_for(config: OpaqueConfig, allocation: Allocation) -> bool:
    chosen = f"{allocation.request}/{allocation.subrequest}"
    return not config.requests or bool({allocation.request, chosen} & set(config.requests))


def _merged(claim: AllocatedClaim, configs: Iterable[OpaqueConfig]) -> ShareParameters:
    merged = ShareParameters()
    for config in configs:
        source = "class" if config.trusted else "claim"
        try:
            parsed = share_parameters.parse(config.parameters, trusted=config.trusted)
        except ParameterError as error:
            raise ClaimError(f"claim {claim.ref}: parameters of the {source}: {error}") from error
        merged = parsed.over(merged)
    return merged


def _of_annotations(
    claim: AllocatedClaim, subject: str, said: Mapping[str, str]
) -> ShareParameters:
    try:
        return annotations.parameters(said)
    except ParameterError as error:
        raise ClaimError(f"claim {claim.ref}: {subject} {error}") from error
