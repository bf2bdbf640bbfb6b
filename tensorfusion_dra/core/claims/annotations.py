"""Parser of the annotations that configure a share, on claims and pods (user guide, section 4)."""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import share_parameters
from tensorfusion_dra.core.claims.share_parameters import ParameterError, ShareParameters
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity, QuantityError

_LIMITS: Final = (names.ANNOTATION_TFLOPS_LIMIT, names.ANNOTATION_VRAM_LIMIT)
Choice = TypeVar("Choice", Isolation, Qos)


def parameters(annotations: Mapping[str, str]) -> ShareParameters:
    """Parse the annotations of a share; ignore all other annotations.

    A limit of 0 counts as absent: Tensor Fusion writes it for pods without a limit.

    Raises:
        ParameterError: Some annotations are malformed; the text lists all errors.
    """
    errors: list[str] = []
    tflops, vram = (_limit(annotations, key, errors) for key in _LIMITS)
    parsed = ShareParameters(
        tflops_limit=tflops,
        vram_limit=vram,
        isolation=_choice(annotations, names.ANNOTATION_ISOLATION, Isolation, errors),
        qos=_choice(annotations, names.ANNOTATION_QOS, Qos, errors),
    )
    if errors:
        raise ParameterError(errors)
    return parsed


def smallest(several: Iterable[ShareParameters]) -> ShareParameters:
    """Return the parameters of a claim that several pods share: the smallest of each limit.

    Isolation and QoS apply to the claim as a whole, so the first pod that sets them decides.
    """
    every = tuple(several)
    return ShareParameters(
        tflops_limit=min((p.tflops_limit for p in every if p.tflops_limit), default=None),
        vram_limit=min((p.vram_limit for p in every if p.vram_limit), default=None),
        isolation=next((p.isolation for p in every if p.isolation), None),
        qos=next((p.qos for p in every if p.qos), None),
    )


def _limit(annotations: Mapping[str, str], key: str, errors: list[str]) -> Quantity | None:
    if key not in annotations:
        return None
    try:
        amount = quantity.parse(annotations[key])
    except QuantityError as error:
        errors.append(f"{key}: {error}")
        return None
    if amount.nano < 0:
        errors.append(f"{key}: found {amount}, expected 0 or more")
    return amount if amount.nano > 0 else None


def _choice(
    annotations: Mapping[str, str], key: str, choices: type[Choice], errors: list[str]
) -> Choice | None:
    if key not in annotations:
        return None
    try:
        return choices(annotations[key])
    except ValueError:
        expected = share_parameters.expected_choices(choices, annotations[key])
        errors.append(f"{key}: found {annotations[key][:80]!r}, expected {expected}")
        return None
