"""Views of cards and shares, from devices and the records of prepared claims."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Standing
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.capacity import VIRTUAL_OF
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.health import Sickness
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.core.observed import other_capacities
from tensorfusion_dra.core.observed.node_view import Amounts, CardView, ShareView, XidCount

_PERCENT_OF_MILLI: Final = 10_000
"""Billionths of a TFLOPS in one percent of a thousandth of a TFLOPS."""


def cards(
    devices: Iterable[Device],
    claims: Iterable[PreparedClaim],
    *,
    sick: Mapping[str, Sickness],
    absent: AbstractSet[str],
    xids: Mapping[str, Sequence[XidCount]],
) -> tuple[CardView, ...]:
    """Return a view of each device, in their order.

    Args:
        devices: As they are published.
        claims: All prepared claims.
        sick: Unhealthy devices, by device name.
        absent: Names of devices whose card is absent.
        xids: Reports of XIDs, by GPU UUID.
    """
    held: dict[str, list[PreparedShare]] = {}
    for claim in claims:
        for share in claim.shares:
            held.setdefault(share.device, []).append(share)
    return tuple(
        _card(
            device,
            held.get(device.name, ()),
            sickness=sick.get(device.name),
            is_absent=device.name in absent,
            xids=tuple(xids.get(device.gpu.uuid, ())),
        )
        for device in devices
    )


def shares(
    claim: PreparedClaim, devices: Mapping[str, Device], standing: Sequence[Standing]
) -> tuple[ShareView, ...]:
    """Return a view of each share of a claim, in their order.

    Args:
        claim: As it is prepared.
        devices: By name; a share of another device is shown without its limit in TFLOPS.
        standing: The verdict about each share; of another number before the first look at the
            claim's present limits.
    """
    are_known = len(standing) == len(claim.shares)
    return tuple(
        _share(claim, share, devices.get(share.device), standing[index] if are_known else None)
        for index, share in enumerate(claim.shares)
    )


def _card(
    device: Device,
    held: Sequence[PreparedShare],
    *,
    sickness: Sickness | None,
    is_absent: bool,
    xids: tuple[XidCount, ...],
) -> CardView:
    gpu = device.gpu
    total = _amounts(
        capacity.divided_capacity(device.capacity, names.CAPACITY_TFLOPS).value,
        capacity.divided_capacity(device.capacity, names.CAPACITY_VRAM).value,
    )
    consumed = _consumed(device, held, total)
    return CardView(
        device=device.name,
        uuid=gpu.uuid,
        index=gpu.index,
        product_name=gpu.product_name,
        model=gpu.model,
        driver_version=gpu.driver_version,
        pci_bus_id=gpu.pci_bus_id or "",
        is_simulated=gpu.simulated,
        physical=_amounts(
            device.capacity[names.CAPACITY_TFLOPS].value, device.capacity[names.CAPACITY_VRAM].value
        ),
        total_vram_bytes=gpu.vram_bytes,
        capacity=total,
        is_virtual=any(virtual in device.capacity for virtual in VIRTUAL_OF.values()),
        consumed=consumed,
        free=consumed.left_of(total),
        sickness=sickness,
        is_absent=is_absent,
        xids=xids,
        others=other_capacities.of_card(device, held),
    )


def _consumed(device: Device, held: Iterable[PreparedShare], total: Amounts) -> Amounts:
    """Return what the shares count against the device; an exclusive one counts as all of it."""
    consumed, is_whole = Amounts(), False
    tflops, vram = (
        VIRTUAL_OF[name] if VIRTUAL_OF[name] in device.capacity else name
        for name in (names.CAPACITY_TFLOPS, names.CAPACITY_VRAM)
    )
    for share in held:
        is_whole = is_whole or (share.exclusive and not share.admin_access)
        if share.consumed:
            consumed += _amounts(
                capacity.counted_amount(share.consumed, tflops, device.capacity),
                capacity.counted_amount(share.consumed, vram, device.capacity),
            )
    if not is_whole:
        return consumed
    # Under another pool's ratios the same card had other amounts.
    return Amounts(
        nano_tflops=max(consumed.nano_tflops, total.nano_tflops),
        vram_bytes=max(consumed.vram_bytes, total.vram_bytes),
    )


def _share(
    claim: PreparedClaim, share: PreparedShare, device: Device | None, standing: Standing | None
) -> ShareView:
    limit = None if share.admin_access else share.limit
    requested = Amounts()
    if share.consumed:
        requested = _amounts(
            capacity.consumed_amount(share.consumed, names.CAPACITY_TFLOPS),
            capacity.consumed_amount(share.consumed, names.CAPACITY_VRAM),
        )
    compute = None
    if limit is not None and device is not None:
        compute = device.gpu.milli_tflops * limit.sm_percent * _PERCENT_OF_MILLI
    return ShareView(
        claim=claim.ref,
        pods=tuple(pod.name for pod in claim.pods),
        request=share.request,
        share_id=share.share_id,
        device=share.device,
        gpu_uuid=share.gpu_uuid,
        requested=requested,
        limit=limit,
        limit_nano_tflops=compute,
        wanted=None
        if limit is None
        else Limit(sm_percent=share.wanted_sm_percent, vram_bytes=share.wanted_vram_bytes),
        isolation=share.isolation,
        qos=share.qos,
        enforcer=claim.enforcer,
        is_exclusive=share.exclusive,
        is_admin=share.admin_access,
        enforcement=standing,
    )


def _amounts(tflops: Quantity, vram: Quantity) -> Amounts:
    return Amounts(nano_tflops=tflops.nano, vram_bytes=vram.ceil())
