"""Parser of the annotations that configure a share, on claims and pods (user guide, section 4)."""

from collections.abc import Iterable, Mapping

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import share_parameters
from tensorfusion_dra.core.claims.share_parameters import ParameterError, ShareParameters
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.field_reader import Fields
from tensorfusion_dra.core.kubernetes.quantity import Quantity


def parameters(annotations: Mapping[str, str]) -> ShareParameters:
    """Parse the annotations of a share; ignore all other annotations.

    Raises:
        ParameterError: Some annotations are malformed; the text lists all errors.
    """
    fields = Fields(annotations)
    parsed = read(fields)
    if fields.errors:
        raise ParameterError(fields.errors)
    return parsed


def read(annotations: Fields) -> ShareParameters:
    """Read the annotations of a share; the errors are left in the reader.

    A limit of 0 counts as absent: Tensor Fusion writes it for pods without a limit.
    """
    return ShareParameters(
        tflops_limit=annotations.read(names.ANNOTATION_TFLOPS_LIMIT, _limit, None),
        vram_limit=annotations.read(names.ANNOTATION_VRAM_LIMIT, _limit, None),
        isolation=annotations.read(names.ANNOTATION_ISOLATION, share_parameters.isolation, None),
        qos=annotations.read(names.ANNOTATION_QOS, share_parameters.qos, None),
    )


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


def _limit(text: str) -> Quantity | None:
    amount = quantity.parse(text)
    if amount.nano < 0:
        raise ValueError(f"found {amount}, expected 0 or more")
    return amount if amount.nano else None
