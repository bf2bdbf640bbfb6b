"""What a pod's annotations ask for (user guide, section 4), with all errors at once."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import selector, translate, type_check
from tensorfusion_dra.core.cel.selector import SelectorTerms
from tensorfusion_dra.core.claims import annotations
from tensorfusion_dra.core.claims.share_parameters import ParameterError, ShareParameters
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes import name_rules, quantity
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.quantity import Quantity

Value = TypeVar("Value")

MOST_GPUS: Final = 32
"""The devices that one claim can have (AllocationResultsMaxSize of resource.k8s.io/v1)."""

ASKING: Final = (
    names.ANNOTATION_DRA_ENABLED,
    names.ANNOTATION_TFLOPS_REQUEST,
    names.ANNOTATION_VRAM_REQUEST,
    names.ANNOTATION_COMPUTE_PERCENT_REQUEST,
    names.ANNOTATION_COMPUTE_PERCENT_LIMIT,
    names.ANNOTATION_GPU_COUNT,
    names.ANNOTATION_GPU_MODEL,
    names.ANNOTATION_DEDICATED_GPU,
    names.ANNOTATION_CEL_EXPRESSION,
)
"""A pod without any of these asks for nothing, whatever else it carries."""

NOTHING_SAID: Final = ShareParameters()
_COUNT: Final = re.compile(r"0*[0-9]{1,4}")
_HUNDRED: Final = Quantity.whole(100)
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """A pod's annotations, parsed: the share that it requests of each GPU.

    Attributes:
        enabled: Whether through DRA; None leaves that to the pool.
        tflops: Of each GPU; None where nothing is said.
        vram: In bytes, of each GPU; None where nothing is said.
        percent: Of each GPU's compute, in place of tflops; see core.admission.compute_percent.
        percent_limit: The limit of compute, as percent, in place of the share's.
        whole: Each GPU alone, whatever the amounts say: dedicated, or shared without limits.
        count: How many GPUs.
        model: "" for any.
        pool: A GPUPool; "" for the default one.
        expression: A device selector in place of the generated one; "" for none.
        containers: Which of the pod's get the share; none named leaves that to the webhook.
        share: Limits, isolation and level of service.
    """

    enabled: bool | None = None
    tflops: Quantity | None = None
    vram: Quantity | None = None
    percent: Quantity | None = None
    percent_limit: Quantity | None = None
    whole: bool = False
    count: int = 1
    model: str = ""
    pool: str = ""
    expression: str = ""
    containers: tuple[str, ...] = ()
    share: ShareParameters = NOTHING_SAID

    @property
    def has_amounts(self) -> bool:
        """Whether it is said how much of a GPU the pod gets."""
        return any((self.whole, self.tflops, self.vram, self.percent))

    def amounts(self) -> Mapping[str, Quantity]:
        """What is asked of each GPU by capacity; what is not named is taken whole."""
        if self.whole:
            return {}
        named = {names.CAPACITY_TFLOPS: self.tflops, names.CAPACITY_VRAM: self.vram}
        return {name: amount for name, amount in named.items() if amount}


def is_asking(said: Mapping[str, str]) -> bool:
    """Whether these annotations ask for a GPU through DRA, or leave that to the pool."""
    is_off = said.get(names.ANNOTATION_DRA_ENABLED) == "false"
    return not is_off and any(name in said for name in ASKING)


def path_of(annotation: str) -> str:
    """Where an annotation stands in its pod."""
    return f"metadata.annotations[{annotation}]"


def parse(said: Mapping[str, str], errors: list[FieldError]) -> PodRequest:
    """Parse annotations into what a pod asks for.

    What is malformed goes to the errors and counts as not said. As in Tensor Fusion, TFLOPS go
    before percents, a limit without a request is the request as well, and isolation `shared`
    gives whole GPUs, whatever the amounts say.
    """
    read = _Reader(said, errors)
    request = PodRequest(
        # A malformed one counts as true, so that its error is seen.
        enabled=read.value(
            names.ANNOTATION_DRA_ENABLED,
            _boolean,
            True if names.ANNOTATION_DRA_ENABLED in said else None,
        ),
        tflops=read.value(names.ANNOTATION_TFLOPS_REQUEST, _amount, None),
        vram=read.value(names.ANNOTATION_VRAM_REQUEST, _amount, None),
        percent=read.value(names.ANNOTATION_COMPUTE_PERCENT_REQUEST, _percent, None),
        percent_limit=read.value(names.ANNOTATION_COMPUTE_PERCENT_LIMIT, _percent, None),
        whole=read.value(names.ANNOTATION_DEDICATED_GPU, _boolean, default=False),
        count=read.value(names.ANNOTATION_GPU_COUNT, _count, 1),
        model=read.value(names.ANNOTATION_GPU_MODEL, _model, ""),
        pool=read.value(names.ANNOTATION_GPUPOOL, _pool, ""),
        expression=read.value(names.ANNOTATION_CEL_EXPRESSION, _expression, ""),
        containers=read.value(names.ANNOTATION_INJECT_CONTAINER, _containers, ()),
        share=read.share(),
    )
    request = _completed(request)
    if is_asking(said) and not (request.has_amounts or read.amounts_bad):
        text = f"found none, expected it, {names.ANNOTATION_VRAM_REQUEST} or both"
        where = path_of(names.ANNOTATION_TFLOPS_REQUEST)
        errors.append(FieldError(where, Reason.REQUIRED, text))
    return request


def _completed(request: PodRequest) -> PodRequest:
    """Return the request with what follows from it."""
    share = request.share
    if request.whole or share.isolation is Isolation.SHARED:
        unlimited = replace(share, tflops_limit=None, vram_limit=None)
        return replace(request, whole=True, percent=None, percent_limit=None, share=unlimited)
    tflops = request.tflops or share.tflops_limit
    return replace(
        request,
        tflops=tflops,
        vram=request.vram or share.vram_limit,
        percent=None if tflops else request.percent or request.percent_limit,
        percent_limit=None if share.tflops_limit else request.percent_limit,
    )


class _Reader:
    def __init__(self, said: Mapping[str, str], errors: list[FieldError]) -> None:
        self._said = said
        self._errors = errors
        self.amounts_bad = False

    def value(self, annotation: str, parsed: Callable[[str], Value], default: Value) -> Value:
        if annotation not in self._said:
            return default
        try:
            return parsed(self._said[annotation])
        except (ValueError, DriverError) as error:
            self._wrong(annotation, str(error))
            self.amounts_bad |= parsed in {_amount, _percent}
            return default

    def share(self) -> ShareParameters:
        try:
            return annotations.parameters(self._said)
        except ParameterError as error:
            for text in error.errors:
                annotation, _, complaint = text.partition(": ")
                self._wrong(annotation, complaint)
                # It may have stood for the amounts, as a limit or a partition does.
                self.amounts_bad |= annotation != names.ANNOTATION_QOS
            return NOTHING_SAID

    def _wrong(self, annotation: str, text: str) -> None:
        self._errors.append(FieldError(path_of(annotation), Reason.INVALID, text))


def _boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError(f"found {text[:80]!r}, expected true or false")
    return _BOOLEANS[text]


def _amount(text: str) -> Quantity | None:
    """0 says nothing: Tensor Fusion writes it where a pod names no amount."""
    amount = quantity.parse(text)
    if amount.nano < 0:
        raise ValueError(f"found {amount}, expected more than 0")
    return amount if amount.nano else None


def _percent(text: str) -> Quantity | None:
    """0 says nothing, as for amounts."""
    amount = quantity.parse(text)
    if not 0 <= amount.nano <= _HUNDRED.nano:
        raise ValueError(f"found {amount}, expected more than 0 and at most 100")
    return amount if amount.nano else None


def _count(text: str) -> int:
    if _COUNT.fullmatch(text) is None or not 1 <= int(text) <= MOST_GPUS:
        raise ValueError(f"found {text[:80]!r}, expected 1 to {MOST_GPUS}")
    return int(text)


def _model(text: str) -> str:
    if not text.strip():
        raise ValueError(f"found {text[:80]!r}, expected a model such as A100")
    selector.selector(SelectorTerms(model=text))
    return text


def _pool(text: str) -> str:
    for error in name_rules.subdomain("", text):
        raise ValueError(f"found {text[:80]!r}, expected the name of a GPUPool ({error.reason})")
    return text


def _expression(text: str) -> str:
    """As it was written, for it is translated again for each claim."""
    if text.strip():
        type_check.check(translate.translate(text))
    return text.strip() and text


def _containers(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(found):
        raise ValueError(f"found {text[:80]!r}, expected names of containers, separated by commas")
    return found
