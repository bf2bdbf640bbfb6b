"""The policy of a share: its limits, isolation and QoS, merged from all sources.

Each value comes from the first source that sets it:

1. the claim's parameters (GpuShare);
2. the DeviceClass's parameters, which come before the claim's if the class says
   `overridable: false`;
3. annotations: those of the claim, or those of its pods if the claim has none for shares;
4. the node's defaults. A limit has no default: None means the amount that the share consumes.

Only a DeviceClass can turn the limiter off.

Example: the class sets a limit of 100 TFLOPS and QoS low, the claim sets QoS high, and a pod's
annotations set isolation hard and a limit of 9Gi. The share has 100 TFLOPS, 9Gi, QoS high and
isolation hard. The isolation is the tenant's choice, so fit() checks whether a tenant may choose
it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import share_parameters
from tensorfusion_dra.core.claims.claim import AllocatedClaim, Allocation, OpaqueConfig
from tensorfusion_dra.core.claims.share_parameters import ParameterError, ShareParameters
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePolicy:
    """The merged policy of one share.

    Attributes:
        tflops_limit: None for the amount that the share consumes.
        vram_limit: None for the amount that the share consumes.
        limiter: False only if a DeviceClass turns the limiter off.
        isolation_by_tenant: True if the claim or its pods chose the isolation, and the DeviceClass
            or, if it sets none, the node's default would have been another one.
    """

    isolation: Isolation
    qos: Qos
    tflops_limit: Quantity | None
    vram_limit: Quantity | None
    limiter: bool
    isolation_by_tenant: bool = False


def annotated(claim: AllocatedClaim) -> ShareParameters | None:
    """Parse the claim's own annotations; None if it has no annotation for shares.

    Raises:
        ClaimError: Some annotations are malformed; the text lists all errors.
    """
    if not names.SHARE_ANNOTATIONS & claim.annotations.keys():
        return None
    return _of_annotations(claim, "annotation", claim.annotations)


def leaves_values_open(claim: AllocatedClaim) -> bool:
    """Return True if the parameters of the claim and its class leave a value of some share open.

    Raises:
        ClaimError: Parameters are malformed.
    """
    for allocation in claim.allocations:
        found = _merged(claim, (each for each in claim.configs if _is_for(each, allocation)))
        if None in (found.tflops_limit, found.vram_limit, found.isolation, found.qos):
            return True
    return False


def of_pods(claim: AllocatedClaim, pods: Mapping[str, Mapping[str, str]]) -> ShareParameters:
    """Parse the annotations of a claim's pods; of several pods the smallest limits count.

    Args:
        claim: The claim that is reserved for the pods.
        pods: Annotations by pod, ``namespace/name``.

    Raises:
        ClaimError: A pod's annotations are malformed; the text lists all errors of that pod.
    """
    return share_parameters.smallest(
        _of_annotations(claim, f"pod {pod}: annotation", found) for pod, found in pods.items()
    )


def of_share(
    claim: AllocatedClaim, allocation: Allocation, annotated: ShareParameters, defaults: SharePolicy
) -> SharePolicy:
    """Return the policy of one share, merged from all sources in the order above.

    Args:
        claim: The claim, with the parameters of claim and class.
        allocation: The share.
        annotated: Parameters from annotations.
        defaults: The node's defaults.

    Raises:
        ClaimError: Parameters are malformed; the text lists all errors of one of them.
    """
    applicable = [config for config in claim.configs if _is_for(config, allocation)]
    of_class = _merged(claim, (config for config in applicable if config.trusted))
    of_claim = _merged(claim, (config for config in applicable if not config.trusted))
    upper, lower = of_claim, of_class
    if of_class.overridable is False:
        upper, lower = of_class, of_claim
    merged = upper.over(lower).over(annotated)
    isolation = merged.isolation or defaults.isolation
    return SharePolicy(
        isolation=isolation,
        qos=merged.qos or defaults.qos,
        tflops_limit=merged.tflops_limit,
        vram_limit=merged.vram_limit,
        limiter=merged.limiter is not False,
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
    claim: AllocatedClaim, subject: str, found: Mapping[str, str]
) -> ShareParameters:
    try:
        return share_parameters.of_annotations(found)
    except ParameterError as error:
        raise ClaimError(f"claim {claim.ref}: {subject} {error}") from error
