"""Isolation rules: modes that a tenant may choose, that one card can hold, that a GPUPool sets.

`isolation` decides whether limits are enforced, and a card holds one isolation mode at a time. So
a tenant's choice could remove the limits of its own container, or make other tenants' claims fail:

- `soft` is open to every tenant.
- `hard` means that the limiter in the container reads its limits from the environment. It is open
  to every tenant if the node's enforcer brings such a limiter. Otherwise the image has to bring
  one, and only an administrator can know whether it does.
- `shared` means no limits at all. It is open to a tenant whose claim takes the whole card, because
  then no other tenant can have a claim on that card. A claim for whole cards gets it by itself on a
  node where nothing would enforce its limits, which are those of the cards anyway.

- `partitioned` is the mode of every partition of a card in MIG mode, and of nothing else. It shows
  that the claim asked for one: a DeviceClass says it, or the webhook by a pod's annotation. So a
  claim that got a partition in another way, by tolerating every taint, is refused.

A tenant is anyone who writes claims, templates, pods and their annotations. An administrator's
choice (a DeviceClass's parameters, the node's settings, its GPUPool) needs none of these
conditions.

A GPUPool sets the mode of its nodes as in Tensor Fusion (internal/utils/node_isolation.go): the
first of `spec.nodeManagerConfig.isolationModeRules` whose label selector selects the node, else
`defaultIsolationMode`. It replaces the node's setting, and applies to every share whose class,
claim and pod set no mode. A tenant may name the same mode.

Example: with Tensor Fusion's limiter, a pod annotated `isolation: hard` is refused, and one whose
claim names a DeviceClass with `isolation: hard` runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.claim import AllocatedClaim, Allocation, ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.capacity import Capacity
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import ClaimError, InputError
from tensorfusion_dra.core.kubernetes import node_fit
from tensorfusion_dra.core.kubernetes.node_fit import NodeLabels
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.core.kubernetes.untyped_json import (
    as_list,
    as_map,
    map_at,
)

HARD_NEEDS: Final = "hard from an administrator: DeviceClass, GPUPool or node settings"
"""What isolation hard needs on a node whose enforcer brings no limiter for it."""
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
    hard_needs: str,
) -> None:
    """Refuse a tenant's choice of isolation that is reserved for administrators.

    Args:
        subject: Claim and device, for errors.
        isolation: The tenant's choice.
        consumed: Amounts that the share consumes, by capacity.
        device: The card's capacities.
        hard_needs: What isolation hard needs; "" if the node's enforcer brings a limiter for it.

    Raises:
        ClaimError: The choice would remove limits, or keep other tenants off the card.
    """
    if isolation is Isolation.HARD and hard_needs:
        text = f"isolation hard: found no limiter for it on this node, expected {hard_needs}"
        raise ClaimError(f"{subject}: {text}")
    if isolation is Isolation.SHARED and not _is_whole(consumed, device):
        found = " and ".join(
            f"{capacity.consumed_amount(consumed, name)} of "
            f"{capacity.divided_capacity(device, name).value} {name}"
            for name in (names.CAPACITY_TFLOPS, names.CAPACITY_VRAM)
        )
        raise ClaimError(f"{subject}: isolation shared: found {found}, expected {SHARED_NEEDS}")


def own_enforcer(claim: AllocatedClaim, devices: Mapping[str, Device]) -> str:
    """Return the enforcer that comes with the claim's devices; "" if the node's is to limit them.

    Args:
        devices: By name.

    Raises:
        ClaimError: The claim has both kinds of devices, or its containers would see only one kind.
    """
    own = {
        devices[each.device].own_enforcer
        for each in claim.allocations
        if each.device in devices and not each.admin_access
    }
    if len(own) > 1:
        raise ClaimError(
            f"claim {claim.ref}: found partitions and other GPUs, expected one kind: CUDA shows a "
            "process a single partition and no GPU beside it"
        )
    return own.pop() if own else ""


def check_kind(subject: str, isolation: Isolation, device: Device) -> None:
    """Refuse a partition that the claim did not ask for, and a whole card in place of one.

    Raises:
        ClaimError: It is not the kind of device that the claim asked for.
    """
    if bool(device.own_enforcer) != (isolation is Isolation.PARTITIONED):
        found = f"partition {device.gpu.partition}" if device.own_enforcer else "no partition"
        raise ClaimError(
            f"{subject}: found {found} in isolation {isolation}, expected isolation "
            f"{Isolation.PARTITIONED} (class {names.PARTITION_CLASS}) for partitions, and for "
            "nothing else"
        )


def check_one(ref: ClaimRef, shares: Sequence[PreparedShare]) -> None:
    """Refuse a claim with several isolation modes.

    A container may use all requests of a claim, and has one environment for all its cards.

    Raises:
        ClaimError: The claim's shares have different modes.
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
    """Refuse a share whose isolation is incompatible with that of the card's other tenants.

    A card in `shared` isolation has one tenant. Otherwise all tenants of a card have the same mode,
    as in Tensor Fusion, unless the enforcer treats `soft` and `hard` alike. Then both can share a
    card, and a tenant that chooses one of them does not keep the other off.

    Args:
        tenants: The card's other shares without admin access, with their claims.
        fixed: Modes in which limits are set once, by the environment.

    Raises:
        ClaimError: The share's isolation and that of another tenant exclude each other.
    """
    for other, existing in tenants:
        modes = {share.isolation, existing.isolation}
        if Isolation.SHARED in modes:
            raise ClaimError(
                f"claim {ref}: {share.device}: isolation {share.isolation}: found {other} on the "
                f"card in isolation {existing.isolation}, expected no other tenant"
            )
        if len(modes) > 1 and not modes <= fixed:
            raise ClaimError(
                f"claim {ref}: {share.device}: isolation {share.isolation}: found the card in "
                f"isolation {existing.isolation} by {other}, expected the same"
            )


def without_limits(claim: PreparedClaim, devices: Mapping[str, Device]) -> PreparedClaim | None:
    """Return the claim in isolation `shared`; None if a limit of it has to be enforced.

    No limit has to be if the claim takes whole cards and nothing else: its limits are what the
    cards have, and no other tenant fits beside it. Later ones are refused by its isolation, even if
    a card grows. A card whose memory its pool expands is not whole in this sense: only a limiter
    can give a container more memory than the card has.

    A claim with a part of one of its cards keeps all its limits, since its containers have one
    environment, and limiters take a card that is missing there for one without a limit.

    Args:
        claim: Its record.
        devices: By name; all of the claim's.
    """
    if not takes_whole_cards(claim.shares, devices):
        return None
    shares = [
        share
        if share.admin_access
        else replace(
            share,
            isolation=Isolation.SHARED,
            limit=None,
            granted=None,
            divides_memory=False,
            idle_compute=False,
        )
        for share in claim.shares
    ]
    return replace(claim, shares=tuple(shares))


def takes_whole_cards(
    shares: Iterable[Allocation | PreparedShare], devices: Mapping[str, Device]
) -> bool:
    """Return True if each share takes a whole card, so that no limit of it has to be enforced.

    Args:
        shares: Of a claim's record, or as allocated.
        devices: By name.
    """
    for share in shares:
        if share.admin_access:
            continue
        if share.device not in devices:
            return False
        device = devices[share.device].capacity
        vram = capacity.divided_capacity(device, names.CAPACITY_VRAM).value
        is_whole = share.share_id is None or _is_whole(share.consumed, device)
        if vram > device[names.CAPACITY_VRAM].value or not is_whole:
            return False
    return True


def _is_whole(consumed: Mapping[str, Quantity], device: Mapping[str, Capacity]) -> bool:
    """Return True if the share consumes everything that tenants of the device divide."""
    try:
        return all(
            capacity.consumed_amount(consumed, name)
            >= capacity.divided_capacity(device, name).value
            for name in (names.CAPACITY_TFLOPS, names.CAPACITY_VRAM)
        )
    except KeyError:  # an allocation without this amount, which admit.py refuses
        return False


_PATH: Final = "spec.nodeManagerConfig"
_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


def pool_has_rules(pool: Mapping[str, Any]) -> bool:
    """Return True if the mode depends on the node's labels."""
    return bool(as_list(_config(pool).get("isolationModeRules")))


def pool_mode(pool: Mapping[str, Any], node: NodeLabels) -> Isolation | None:
    """Return the isolation that the pool sets for the node; None if it sets none.

    Raises:
        InputError: This driver does not have the mode, or a rule is malformed.
    """
    config = _config(pool)
    for index, rule in enumerate(map(as_map, as_list(config.get("isolationModeRules")))):
        path = f"{_PATH}.isolationModeRules[{index}]"
        try:
            matches = _selects(rule.get("selector"), node)
        except InputError as error:
            raise InputError(f"{path}.selector: {error}") from error
        if matches:
            return _mode(f"{path}.mode", rule.get("mode"))
    default = config.get("defaultIsolationMode")
    # An empty mode counts as absent, as in Tensor Fusion.
    return _mode(f"{_PATH}.defaultIsolationMode", default) if default else None


def pool_modes(pool: Mapping[str, Any]) -> frozenset[Isolation]:
    """Return the modes that the pool may set for any of its nodes; unknown modes are skipped."""
    config = _config(pool)
    rules = map(as_map, as_list(config.get("isolationModeRules")))
    found = (config.get("defaultIsolationMode"), *(rule.get("mode") for rule in rules))
    return frozenset(mode for mode in share_policy.OF_CARDS if mode in found)


def _config(pool: Mapping[str, Any]) -> Mapping[str, object]:
    return map_at(pool, "spec", "nodeManagerConfig")


def _mode(path: str, found: object) -> Isolation:
    try:
        return share_policy.isolation_of_cards(found)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _selects(selector: object, node: NodeLabels) -> bool:
    """Return True if a LabelSelector (meta/v1) selects the node.

    An absent selector selects no node, an empty one all.

    Raises:
        InputError: The selector is malformed.
    """
    if selector is None:
        return False
    if not isinstance(selector, Mapping):
        raise InputError(f"found {selector!r}, expected an object")
    unknown = sorted(map(str, selector.keys() - {"matchLabels", "matchExpressions"}))
    if unknown:
        raise InputError(f"found {unknown}, expected matchLabels and matchExpressions")
    wanted = [
        {"key": key, "operator": "In", "values": [value]}
        for key, value in as_map(selector.get("matchLabels")).items()
    ]
    expressions = as_list(selector.get("matchExpressions"))
    for each in map(as_map, expressions):
        if each.get("operator") not in _OPERATORS:
            known = ", ".join(sorted(_OPERATORS))
            raise InputError(f"found operator {each.get('operator')!r}, expected one of {known}")
    if not wanted and not expressions:
        return True
    term = {"matchExpressions": [*wanted, *expressions]}
    return node_fit.selects({"nodeSelectorTerms": [term]}, node)
