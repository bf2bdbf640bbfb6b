"""Which isolation a tenant may choose, and which isolations one card can hold.

`isolation` decides whether limits are enforced, and a card holds one isolation at a time. So a
tenant's choice could take the limits off its own container, or make the claims of others fail:

- `soft` is open to everybody.
- `hard` means that the limiter in the container takes its limits from the environment. It is open
  to everybody where the node's enforcer has such a limiter. Elsewhere the image has to bring one,
  and whether it does, only an administrator can know.
- `shared` means no limits at all. It is open to a tenant whose claim takes the whole card, because
  nobody else can have a claim on that card meanwhile.

What an administrator says holds without these conditions: a DeviceClass's parameters, the node's
settings, its GPUPool. A tenant is whoever writes claims, templates, pods and their annotations.

Example: with Tensor Fusion's limiter, a pod annotated `isolation: hard` is refused, and one whose
claim names a DeviceClass with `isolation: hard` runs.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedShare
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.capacity import Capacity
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import Quantity

HARD_NEEDS: Final = (
    "an enforcer that brings one (hami-core, mps), or hard from an administrator: DeviceClass, "
    "GPUPool or node settings"
)
SHARED_NEEDS: Final = (
    "the whole card (leave the amounts out), or shared from an administrator: DeviceClass, "
    "GPUPool or node settings"
)


def check_choice(
    subject: str,
    isolation: Isolation,
    *,
    consumed: Mapping[str, Quantity],
    device: Mapping[str, Capacity],
    enforces_hard: bool,
) -> None:
    """Refuse an isolation that a tenant chose and may not choose.

    Args:
        subject: Claim and device, for errors.
        isolation: What the tenant chose.
        consumed: What the share consumes, by capacity.
        device: The card's capacities.
        enforces_hard: Whether the node's enforcer brings a limiter for hard isolation.

    Raises:
        ClaimError: The choice would take limits off, or keep others off the card.
    """
    if isolation is Isolation.HARD and not enforces_hard:
        text = f"isolation hard: found no limiter for it on this node, expected {HARD_NEEDS}"
        raise ClaimError(f"{subject}: {text}")
    if isolation is Isolation.SHARED and not _is_whole(consumed, device):
        found = " and ".join(
            f"{capacity.taken(consumed, name)} of {capacity.in_force(device, name).value} {name}"
            for name in (names.CAPACITY_TFLOPS, names.CAPACITY_VRAM)
        )
        raise ClaimError(f"{subject}: isolation shared: found {found}, expected {SHARED_NEEDS}")


def check_one(ref: ClaimRef, shares: Sequence[PreparedShare]) -> None:
    """Refuse a claim of several isolations.

    A container may use all requests of a claim, and has one environment for all its cards.

    Raises:
        ClaimError: Its shares differ.
    """
    modes = {share.isolation.value for share in shares if not share.admin_access}
    if len(modes) > 1:
        raise ClaimError(f"claim {ref}: isolation: found {', '.join(sorted(modes))}, expected one")


def check_beside(
    ref: ClaimRef,
    share: PreparedShare,
    tenants: Sequence[tuple[ClaimRef, PreparedShare]],
    *,
    fixed: AbstractSet[Isolation],
) -> None:
    """Refuse a share whose isolation cannot hold beside that of the card's tenants.

    Without limits a card has one tenant. With limits its tenants have the same isolation, as in
    Tensor Fusion, unless the enforcer does the same for both: then `soft` and `hard` share a
    card, and a tenant that chooses one of them keeps nobody off.

    Args:
        tenants: The card's other shares, with their claims.
        fixed: Isolations in which limits are set once, by the environment.

    Raises:
        ClaimError: The share's isolation and a tenant's exclude each other.
    """
    if share.admin_access:
        return
    for other, held in tenants:
        if held.admin_access:
            continue
        modes = {share.isolation, held.isolation}
        if Isolation.SHARED in modes:
            raise ClaimError(
                f"claim {ref}: {share.device}: isolation {share.isolation}: {other} has the card "
                f"in isolation {held.isolation}, expected no other tenant"
            )
        if len(modes) > 1 and not modes <= fixed:
            raise ClaimError(
                f"claim {ref}: {share.device}: isolation {share.isolation}: found the card in "
                f"{held.isolation} by {other}, expected the same"
            )


def _is_whole(consumed: Mapping[str, Quantity], device: Mapping[str, Capacity]) -> bool:
    """Whether nothing is left of what tenants divide."""
    return all(
        capacity.taken(consumed, name) >= capacity.in_force(device, name).value
        for name in (names.CAPACITY_TFLOPS, names.CAPACITY_VRAM)
    )
