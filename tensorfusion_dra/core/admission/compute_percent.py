"""Conversion of compute percentages into TFLOPS, the capacity by which devices are divided.

A claim requests one amount of TFLOPS, whichever card it gets. A pod's percentages therefore have a
definite meaning only if all cards that it can get have the same TFLOPS.

Example: with A100 (312 TFLOPS) in the pool, `compute-percent-request: 25` requests 78 TFLOPS. With
A100 and T4 (65 TFLOPS) it is refused, unless `gpu-model` names one of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tensorfusion_dra.core.devices import device
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity, QuantityError
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

Item = Mapping[str, Any]

_CURE: Final = f"or {names.ANNOTATION_TFLOPS_REQUEST} instead of a percentage"
_MOST_SHOWN: Final = 5


def has_percentages(wanted: PodRequest) -> bool:
    """Return True if the pod requests or limits compute as a percentage."""
    return wanted.percent is not None or wanted.percent_limit is not None


def in_tflops(wanted: PodRequest, slices: Iterable[Item], *, pool: str) -> PodRequest:
    """Return the pod's request with TFLOPS in place of percentages.

    Args:
        wanted: The pod's request.
        slices: The driver's ResourceSlices.
        pool: The GPUPool that the pod's devices come from; "" for any.

    Raises:
        InputError: The cards that the pod can get differ in TFLOPS, or there is none.
    """
    found = {
        amount: model
        for model, amount in _cards(slices, pool="" if wanted.expression else pool)
        if not wanted.model or model == device.shortened(wanted.model)
    }
    if not found:
        raise InputError(
            f"found no published GPU {wanted.model or 'of any model'} in "
            f"{f'pool {pool}' if pool else 'any pool'}, expected one, {_CURE}"
        )
    if len(found) > 1:
        several = [f"{model} of {amount} TFLOPS" for amount, model in sorted(found.items())]
        shown = ", ".join(several[:_MOST_SHOWN])
        raise InputError(
            f"found {shown}, expected one kind of GPU ({names.ANNOTATION_GPU_MODEL}), {_CURE}"
        )
    (card,) = found
    share = wanted.share
    if wanted.percent_limit is not None:
        share = replace(share, tflops_limit=_part(card, wanted.percent_limit))
    tflops = wanted.tflops if wanted.percent is None else _part(card, wanted.percent)
    return replace(wanted, tflops=tflops, percent=None, percent_limit=None, share=share)


def _cards(slices: Iterable[Item], *, pool: str) -> Iterator[tuple[str, Quantity]]:
    """Yield model and TFLOPS of each published device of a GPUPool; "" for any pool."""
    for item in slices:
        for entry in map(as_map, as_list(as_map(item.get("spec")).get("devices"))):
            attributes = as_map(entry.get("attributes"))
            if pool and _text(attributes, names.ATTR_POOL_NAME) != device.shortened(pool):
                continue
            tflops = as_map(as_map(entry.get("capacity")).get(names.CAPACITY_TFLOPS)).get("value")
            try:
                yield _text(attributes, names.ATTR_MODEL), quantity.parse(tflops)
            except QuantityError:
                continue  # a device of an older release, or of another driver


def _text(attributes: Mapping[str, object], name: str) -> str:
    return str(as_map(attributes.get(name)).get("string", ""))


def _part(card: Quantity, percent: Quantity) -> Quantity:
    """Return a percentage of a card's TFLOPS; at least a billionth, because 0 means unset."""
    return Quantity(max(1, card.nano * percent.nano // (100 * quantity.NANO)), card.family)
