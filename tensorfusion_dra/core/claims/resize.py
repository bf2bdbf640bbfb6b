"""Change of a running share's limits by annotations of its claim.

A claim's spec and what it consumes are fixed once it is allocated. What its containers may use is
not: the annotations tensor-fusion.ai/vram-limit and tflops-limit of the claim set the limits that
its shares want, also while they run. They come before limits in the claim's parameters, and after
those of a DeviceClass with `overridable: false` (share_policy.py).

A wanted limit is no promise: the card's tenants divide what nobody has reserved (lending.py), so a
later request takes back what a raise was given. An amount is refused if the enforcer has it fixed
while containers run, if nothing limits it, or if it is below the request.

Example: claim a requests 16Gi of a card of 80Gi, and its annotation changes from 16Gi to 60Gi.
Beside a claim that requests 40Gi its limit is 40Gi, granted in part. When that one ends, it is
60Gi.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import lending, share_policy
from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.enforcer import EnforcerFacts
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.share_policy import ShareParameters, SharePolicy
from tensorfusion_dra.core.devices import device as device_facts
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import name_rules, resource_claims, untyped_json

GRANTED: Final = "Granted"
IN_PART: Final = "GrantedInPart"
REFUSED: Final = "Refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """What the annotations of a prepared claim ask for.

    Attributes:
        asked: The amounts as annotated, by capacity.
        refused: Why some of them have no effect.
    """

    asked: Mapping[str, str]
    refused: tuple[str, ...] = ()

    def outcome(self, share: PreparedShare) -> tuple[str, str]:
        """Return a reason, one of this module's constants, and a text for a share as it is now."""
        if share.limit is None:
            return REFUSED, f"{share.gpu_uuid}: the share has no limits"
        text = f"{share.gpu_uuid}: limit {share.limit}"
        if self.refused:
            return REFUSED, f"{'; '.join(self.refused)}; {text}"
        is_clamped = {
            names.CAPACITY_TFLOPS: share.compute_clamped,
            names.CAPACITY_VRAM: share.memory_clamped,
        }
        if any(is_clamped[name] for name in self.asked):
            wanted = f"{text} of the wanted {share.wanted}"
            return IN_PART, f"{wanted}: the card has no more that is not reserved"
        return GRANTED, text


def node_label(node: str) -> str:
    """Return the value of the label of a node's claims: its name, or a digest of a longer one."""
    if len(node) <= name_rules.LABEL_BYTES:
        return node
    return hashlib.sha256(node.encode()).hexdigest()[: name_rules.LABEL_BYTES]


def nodes(claim: Mapping[str, Any]) -> frozenset[str]:
    """Return the nodes of the devices of this driver that a stored claim has."""
    return frozenset(
        device_facts.node_name(str(result.get("pool")))
        for result in resource_claims.results(claim)
        if result.get("driver") == names.DRIVER
    )


def labelled(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored claim with the label by which its node sees changes of it."""
    found: dict[str, Any] = untyped_json.copied(claim)
    for node in nodes(claim):
        found["metadata"].setdefault("labels", {})[names.LABEL_NODE] = node_label(node)
    return found


def of_claim(
    record: PreparedClaim,
    claim: AllocatedClaim,
    facts: EnforcerFacts,
    devices: Mapping[str, Device],
) -> tuple[PreparedClaim, Resize]:
    """Return the record with the limits that the claim's annotations want, not divided yet.

    Args:
        record: The claim's.
        claim: As it is stored now.
        facts: Of the claim's enforcer.
        devices: The node's cards by name, to turn TFLOPS into percent.

    Raises:
        ClaimError: The claim's annotations or parameters are malformed, or its allocation is
            another one than the record's.
    """
    first = record.shares[0]
    defaults = SharePolicy(
        isolation=first.isolation, qos=first.qos, tflops_limit=None, vram_limit=None, limiter=True
    )
    policies = share_policy.of_claim(claim, dict, defaults)
    annotated = share_policy.of_annotations(claim.annotations)
    if [(each.request, each.share_id) for each in claim.allocations] != [
        (share.request, share.share_id) for share in record.shares
    ]:
        raise ClaimError(f"claim {record.ref}: found another allocation than the prepared one")
    shares = []
    refused: dict[str, None] = {}
    for share, policy in zip(record.shares, policies, strict=True):
        wanted = share
        for name, most, allowed in (
            (names.CAPACITY_TFLOPS, annotated.tflops_limit, policy.tflops_limit),
            (names.CAPACITY_VRAM, annotated.vram_limit, policy.vram_limit),
        ):
            if most is None or share.limit is None:
                continue
            if reason := _refusal(share, name, annotated, facts):
                refused[reason] = None
            elif most != allowed:
                text = f"{name}: the DeviceClass sets a limit of {allowed}, which claims keep"
                refused[text] = None
            elif name == names.CAPACITY_VRAM:
                at_least = max(most.ceil(), share.reserved.vram_bytes)
                wanted = replace(wanted, wanted_vram_bytes=at_least)
            else:
                percent = lending.percent(most, devices[share.device].gpu)
                wanted = replace(wanted, wanted_sm_percent=percent)
        shares.append(wanted)
    asked = {
        names.CAPACITY_TFLOPS: annotated.tflops_limit,
        names.CAPACITY_VRAM: annotated.vram_limit,
    }
    return replace(record, shares=tuple(shares)), Resize(
        asked={name: str(amount) for name, amount in asked.items() if amount},
        refused=tuple(refused),
    )


def _refusal(
    share: PreparedShare, name: str, annotated: ShareParameters, facts: EnforcerFacts
) -> str:
    """Return why a share's limit of this capacity cannot be changed; "" if it can."""
    is_compute = name == names.CAPACITY_TFLOPS
    if share.granted is not None and (is_compute or not share.divides_memory):
        return f"{name}: {facts.keeper} fixes this limit when the container starts"
    if is_compute and not facts.enforces_compute:
        return f"{name}: {facts.keeper} does not limit compute"
    below = dict(share_policy.below_request(annotated, share.consumed))
    return f"{name} limit: {below[name]}" if name in below else ""
