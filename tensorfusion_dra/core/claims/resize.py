"""Change of a running share's limits by annotations of its claim.

A claim's spec and what it consumes are fixed once it is allocated. What its containers may use is
not: the annotations tensor-fusion.ai/vram-limit and tflops-limit of the claim set the limits that
its shares want, also while they run. They come before limits in the claim's parameters, and after
those of a DeviceClass with `overridable: false` (share_policy.py).

A wanted limit is no promise: the card's tenants divide what nobody has reserved (lending.py), so a
later request takes back what a raise was given. An amount is refused if the enforcer has it fixed
while containers run, if nothing limits it, or if it is below the request.

Without an annotation the limit is that of the parameters, or the request, as at a prepare. A quota
charges the claim no more from then on, so the node must not keep a raise.

Example: claim a requests 16Gi of a card of 80Gi, and its annotation changes from 16Gi to 60Gi.
Beside a claim that requests 40Gi its limit is 40Gi, granted in part. When that one ends, it is
60Gi.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import lending, prepared, share_policy
from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.enforcer import EnforcerFacts
from tensorfusion_dra.core.claims.lending import LendingRules
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.share_policy import ShareParameters, SharePolicy
from tensorfusion_dra.core.claims.use import Used
from tensorfusion_dra.core.devices import device as device_facts
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.gpu import Gpu, Isolation
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.kubernetes import name_rules, resource_claims
from tensorfusion_dra.core.kubernetes.quantity import Quantity

GRANTED: Final = "Granted"
IN_PART: Final = "GrantedInPart"
REFUSED: Final = "Refused"
ANNOTATIONS: Final = {
    names.CAPACITY_TFLOPS: names.ANNOTATION_TFLOPS_LIMIT,
    names.CAPACITY_VRAM: names.ANNOTATION_VRAM_LIMIT,
}
_MAX_SHOWN: Final = 64
"""Characters of an amount; anybody may annotate more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """What the annotations of a prepared claim ask for.

    Attributes:
        asked: The amounts as annotated, by capacity.
        refused: Why some of them have no effect.
        bounds: By device, the most that it can ever give of what is asked above that, as text.
    """

    asked: Mapping[str, str]
    refused: tuple[str, ...] = ()
    bounds: Mapping[str, str] = field(default_factory=dict)

    def outcome(self, share: PreparedShare, used: Used | None = None) -> tuple[str, str]:
        """Return a reason, one of this module's constants, and a text for a share as it is now.

        Args:
            used: What the share uses; None if it is not known.
        """
        if share.limit is None:
            return REFUSED, f"{share.gpu_uuid}: the share has no limits"
        text = f"{share.gpu_uuid}: limit {share.limit}"
        if self.refused:
            return REFUSED, f"{'; '.join(self.refused)}; {text}"
        if used and used.vram_bytes > share.limit.vram_bytes:
            in_use = Quantity.of_bytes(used.vram_bytes)
            return IN_PART, f"{text}; {in_use} is in use and counts until the container frees it"
        is_clamped = {
            # A fixed limit was decided when the container started.
            names.CAPACITY_TFLOPS: share.compute_clamped and share.granted is None,
            names.CAPACITY_VRAM: share.memory_clamped,
        }
        bound = self.bounds.get(share.device, "")
        if bound or any(is_clamped[name] for name in self.asked):
            why = "the card lends no more now" + (f", and never more than {bound}" if bound else "")
            return IN_PART, f"{text} of the wanted {share.wanted}: {why}"
        return GRANTED, text


def node_label(node: str) -> str:
    """Return the value of the label on a node's claims: its name, or a digest of a longer one."""
    if len(node) <= name_rules.LABEL_BYTES:
        return node
    return hashlib.sha256(node.encode()).hexdigest()[: name_rules.LABEL_BYTES]


def label(claim: Mapping[str, Any]) -> dict[str, str]:
    """Return the label by which a node watches the claims that are allocated on it.

    Empty if no device of this driver is allocated to it.
    """
    for result in resource_claims.results(claim):
        if result.get("driver") == names.DRIVER:
            return {names.LABEL_NODE: node_label(device_facts.node_name(str(result.get("pool"))))}
    return {}


def of_claim(
    record: PreparedClaim,
    claim: AllocatedClaim,
    rules: LendingRules,
    devices: Mapping[str, Device],
) -> tuple[PreparedClaim, Resize]:
    """Return the record with the limits that the claim wants by now, not divided yet.

    They are those with which a prepare would begin today, except for the annotations of pods: these
    count when a container starts. An amount that the enforcer has fixed stays as it is.

    Args:
        record: The claim's.
        claim: As it is stored now.
        rules: Of the node, with the facts of the claim's enforcer.
        devices: The node's cards by name, to turn TFLOPS into percent.

    Raises:
        RetryableError: A card of the claim is not published now, so its TFLOPS are not known.
    """
    asked = {
        name: claim.annotations[key][:_MAX_SHOWN]
        for name, key in ANNOTATIONS.items()
        if claim.annotations.get(key, "0") != "0"
    }
    if any(share.isolation is Isolation.PARTITIONED for share in record.shares):
        why = "a partition's limits are kept by hardware"
        return record, Resize(asked=asked, refused=tuple(f"{name}: {why}" for name in asked))
    try:
        shares, refused, bounds = _shares(record, claim, rules, devices)
    except ClaimError as error:
        return record, Resize(asked=asked, refused=(str(error),))
    found = Resize(asked=asked, refused=tuple(refused), bounds=bounds)
    return replace(record, shares=tuple(shares)), found


def _shares(
    record: PreparedClaim,
    claim: AllocatedClaim,
    rules: LendingRules,
    devices: Mapping[str, Device],
) -> tuple[list[PreparedShare], dict[str, None], dict[str, str]]:
    """Return the shares with their wanted limits, and why amounts are refused or bounded.

    Raises:
        ClaimError: An annotation is malformed, a limit is below its request, or the record is of
            another allocation.
        RetryableError: A card is not among the devices.
    """
    first = record.shares[0]
    defaults = SharePolicy(
        isolation=first.isolation, qos=first.qos, tflops_limit=None, vram_limit=None, limiter=True
    )
    policies = share_policy.of_claim(claim, dict, defaults)
    if not prepared.describes(record, claim):
        raise ClaimError(f"claim {record.ref}: found another allocation than the prepared one")
    annotated = share_policy.limits_of_annotations(claim.annotations)
    facts = rules.facts_of(record.enforcer)
    keeper = facts.keeper or f"enforcer {record.enforcer}"
    shares: list[PreparedShare] = []
    refused: dict[str, None] = {}
    bounds: dict[str, str] = {}
    for share, policy in zip(record.shares, policies, strict=True):
        shares.append(share)
        if share.limit is None:
            continue
        if share.device not in devices:
            raise RetryableError(
                f"claim {record.ref}: {share.device}: found no such card now, expected the one "
                "whose limit is to change"
            )
        gpu = devices[share.device].gpu
        _, wanted = lending.request_and_wanted(
            share.device, gpu, share.consumed, policy, rules.unasked_percent
        )
        no_compute = "" if facts.enforces_compute else f"{keeper} does not limit compute"
        fixed = f"{keeper} fixes this limit when a container starts"
        for name, attribute, most, kept, reason in (
            (
                *(names.CAPACITY_TFLOPS, "sm_percent"),
                *(annotated.tflops_limit, policy.tflops_limit),
                no_compute if share.granted is None else fixed,
            ),
            (
                *(names.CAPACITY_VRAM, "vram_bytes"),
                *(annotated.vram_limit, policy.vram_limit),
                "" if share.granted is None or share.divides_memory else fixed,
            ),
        ):
            before = getattr(share.wanted, attribute)
            if most is not None and most != kept:
                refused[f"{name}: the DeviceClass sets the limit {kept}, which claims keep"] = None
            elif reason and getattr(wanted, attribute) != before:
                wanted = replace(wanted, **{attribute: before})
                if most is not None:
                    refused[f"{name}: {reason}"] = None
        if bound := _bound(share, gpu, annotated, rules, facts):
            bounds[share.device] = bound
        shares[-1] = replace(
            share, wanted_sm_percent=wanted.sm_percent, wanted_vram_bytes=wanted.vram_bytes
        )
    return shares, refused, bounds


def _bound(
    share: PreparedShare,
    gpu: Gpu,
    annotated: ShareParameters,
    rules: LendingRules,
    facts: EnforcerFacts,
) -> str:
    """Return the most that the card can ever give of each amount that asks for more; "" if none."""
    vram = Quantity.of_bytes(share.total.vram_bytes)
    if facts.keeps_lent_memory and not rules.overcommit_limits:
        vram = min(vram, Quantity.of_bytes(rules.factor * share.reserved.vram_bytes))
    tflops = Quantity.milli(gpu.milli_tflops)
    amounts = (
        (annotated.vram_limit, vram, f"{vram}"),
        (annotated.tflops_limit, tflops, f"{tflops} TFLOPS"),
    )
    return " and ".join(text for asked, most, text in amounts if asked and asked > most)
