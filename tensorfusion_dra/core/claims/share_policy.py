"""The policy of a share: its limits, isolation and QoS, merged from all sources.

Each value comes from the first source that sets it:

1. the claim's annotations for limits, which may change while its containers run (resize.py);
2. the claim's parameters (GpuShare);
3. the DeviceClass's parameters, which come before both if the class says `overridable: false`;
4. annotations: those of the claim, or those of its pods if the claim has none for shares;
5. the node's defaults. A limit has no default: None means the amount that the share consumes.

Only a DeviceClass can turn the limiter off, or name amounts for requests that name none, which the
webhook fills in (core/admission/class_admission.py).

Example: the class sets a limit of 100 TFLOPS and QoS low, the claim sets QoS high, and a pod's
annotations set isolation hard and a limit of 9Gi. The share has 100 TFLOPS, 9Gi, QoS high and
isolation hard. The isolation is the tenant's choice, so admit.py checks whether a tenant may choose
it.

An enforcer may have to mark a pod for its own software. The marks are results and request nothing,
so what a pod asks for is read without them (original_annotations()). What the driver added is named
in `dra-marks`; the former value of an annotation that it replaced is kept under another name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import AllocatedClaim, Allocation, OpaqueConfig
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.errors import ClaimError, DriverError
from tensorfusion_dra.core.kubernetes import field_errors, quantity
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Fields, Reason, boolean
from tensorfusion_dra.core.kubernetes.quantity import MIB, Quantity
from tensorfusion_dra.core.kubernetes.untyped_json import map_at

API_VERSION: Final = "tensor-fusion.ai/v1alpha1"
KIND: Final = "GpuShare"


OF_CARDS: Final = tuple(mode for mode in Isolation if mode is not Isolation.PARTITIONED)
"""The modes of whole cards and of their shares."""
_OF_PARTITIONS: Final = (
    f" (partitions of GPUs in MIG mode have their own class, {names.PARTITION_CLASS}, and "
    f"pods ask for them by {names.ANNOTATION_ISOLATION})"
)

RULING: Final = (
    names.ANNOTATION_COMPUTE_PERCENT_LIMIT,
    names.ANNOTATION_GPU_COUNT,
    names.MARK_GPU_INDICES,
    names.ANNOTATION_ISOLATION,
    names.ANNOTATION_TFLOPS_LIMIT,
    names.ANNOTATION_VRAM_LIMIT,
)
"""The annotations of a pod that this driver may replace."""


class ParameterError(DriverError):
    """Parameters are malformed; the text lists every error with its path.

    Attributes:
        errors: Every error with its path.
    """

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors: Final = tuple(errors)
        super().__init__("; ".join(map(str, self.errors)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareParameters:
    """Parameters of a share; each is None if it is not set.

    Attributes:
        limiter: False runs the container without a limiter.
        overridable: False gives the class's parameters precedence over the claim's.
        requests: Of a class: what its requests consume of each card, by capacity.
    """

    tflops_limit: Quantity | None = None
    vram_limit: Quantity | None = None
    isolation: Isolation | None = None
    qos: Qos | None = None
    limiter: bool | None = None
    overridable: bool | None = None
    requests: Mapping[str, Quantity] | None = None

    def over(self, lower: "ShareParameters") -> "ShareParameters":
        """Return these parameters, with the lower ones in place of those that are not set."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(lower, **{name: value for name, value in own.items() if value is not None})


def parse(found: object, *, trusted: bool, path: str = "") -> ShareParameters:
    """Parse the parameters of an opaque configuration.

    Args:
        found: The decoded JSON value.
        trusted: True if it comes from a DeviceClass, which may set what only an administrator may.
        path: Prefix of every error's path, joined with a dot; "" for none.

    Raises:
        ParameterError: The parameters are malformed; the text lists all errors.
    """
    if not isinstance(found, Mapping):
        raise ParameterError([field_errors.wrong(path or "parameters", found, "an object")])
    top = Fields(found, path=path)
    allowed = ["apiVersion", "kind", "limits", "isolation", "qos"]
    if trusted:
        allowed += ["limiter", "overridable", "requests"]
    top.refuse_others(allowed)
    top.expect("apiVersion", API_VERSION)
    top.expect("kind", KIND)
    # An absent object has no limits; null is an error.
    limits = Fields(found.get("limits", {}), path=top.path_of("limits"), errors=top.errors)
    limits.refuse_others(["tflops", "vram"])
    requests = Fields(found.get("requests", {}), path=top.path_of("requests"), errors=top.errors)
    requests.refuse_others(sorted(names.CAPACITIES))
    amounts = {name: _amount(requests, name) for name in sorted(names.CAPACITIES)}
    parameters = ShareParameters(
        tflops_limit=_amount(limits, names.CAPACITY_TFLOPS),
        vram_limit=_amount(limits, names.CAPACITY_VRAM),
        isolation=top.read("isolation", isolation if trusted else isolation_of_cards, None),
        qos=top.read("qos", qos, None),
        limiter=top.read("limiter", boolean, None) if trusted else None,
        overridable=top.read("overridable", boolean, None) if trusted else None,
        requests={name: amount for name, amount in amounts.items() if amount} or None,
    )
    if parameters.requests:
        if parameters.isolation is Isolation.SHARED:
            text = "found shared beside requests, expected another one: shared gives whole cards"
            top.errors.append(FieldError(top.path_of("isolation"), Reason.INVALID, text))
        virtual = parameters.requests.keys() & set(capacity.VIRTUAL_OF.values())
        for name in sorted(virtual) if parameters.isolation is Isolation.PARTITIONED else ():
            text = "found a virtual amount, expected a physical one: a partition has no other"
            top.errors.append(FieldError(requests.path_of(name), Reason.INVALID, text))
        for name, text in below_request(parameters, parameters.requests):
            top.errors.append(FieldError(limits.path_of(name), Reason.INVALID, text))
    if top.errors:
        raise ParameterError(top.errors)
    return parameters


def as_config(
    *requests: str, tflops: Quantity | None, vram: Quantity | None
) -> Mapping[str, object]:
    """Return the configuration of a claim that sets the limits of some of its requests."""
    limits = {"tflops": tflops, "vram": vram}
    parameters = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "limits": {name: str(limit) for name, limit in limits.items() if limit},
    }
    return {
        "requests": [*requests],
        "opaque": {"driver": names.DRIVER, "parameters": parameters},
    }


def of_annotations(annotations: Mapping[str, str]) -> ShareParameters:
    """Parse the annotations of a share; ignore all other annotations.

    Raises:
        ParameterError: Some annotations are malformed; the text lists all errors.
    """
    fields = Fields(annotations)
    found = fields.read_all(
        {
            "tflops_limit": (names.ANNOTATION_TFLOPS_LIMIT, tflops_limit),
            "vram_limit": (names.ANNOTATION_VRAM_LIMIT, vram_limit),
            "isolation": (names.ANNOTATION_ISOLATION, isolation),
            "qos": (names.ANNOTATION_QOS, qos),
        }
    )
    if fields.errors:
        raise ParameterError(fields.errors)
    return ShareParameters(**found)


def limits_of_annotations(annotations: Mapping[str, str]) -> ShareParameters:
    """Parse the limits alone that a claim's annotations set.

    Raises:
        ParameterError: Some annotations are malformed; the text lists all errors.
    """
    found = of_annotations(annotations)
    return ShareParameters(tflops_limit=found.tflops_limit, vram_limit=found.vram_limit)


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


def isolation(found: object) -> Isolation:
    """Return the isolation with this name.

    Raises:
        ValueError: There is none.
    """
    return field_errors.choice(found, Isolation)


def isolation_of_cards(found: object) -> Isolation:
    """Return the isolation of cards with this name.

    Raises:
        ValueError: There is none; about that of partitions the text says more.
    """
    if found == Isolation.PARTITIONED:
        expected = f"one of {', '.join(OF_CARDS)}{_OF_PARTITIONS}"
        raise ValueError(f"found {str(found)!r}, expected {expected}")
    return isolation(found)


def qos(found: object) -> Qos:
    """Return the level of service with this name.

    Raises:
        ValueError: There is none.
    """
    return field_errors.choice(found, Qos)


def _amount(amounts: Fields, name: str) -> Quantity | None:
    """Return the amount of a capacity in an object, rounded up; None if it is absent or wrong."""

    def positive(found: object) -> Quantity:
        amount = quantity.parse(found)
        if amount.nano <= 0:
            raise ValueError(f"found {str(amount)!r}, expected more than 0")
        return capacity.rounded_up(name, amount)

    return amounts.read(name, positive, None)


def amount_or_none(text: str) -> Quantity | None:
    """Return an annotated amount; 0 counts as absent, since Tensor Fusion writes it for none.

    Raises:
        ValueError, QuantityError: It is no amount, or below 0.
    """
    amount = quantity.parse(text)
    if amount.nano < 0:
        raise ValueError(f"found {amount}, expected 0 or more")
    return amount if amount.nano else None


def _limit(name: str, text: str) -> Quantity | None:
    amount = amount_or_none(text)
    return amount and capacity.rounded_up(name, amount)


tflops_limit: Final = partial(_limit, names.CAPACITY_TFLOPS)
vram_limit: Final = partial(_limit, names.CAPACITY_VRAM)
"""Return an annotated limit as amount_or_none() does, rounded up."""


def below_request(
    limits: "ShareParameters | SharePolicy", requests: Mapping[str, Quantity]
) -> Iterator[tuple[str, str]]:
    """Yield each capacity whose limit is below its request, with the reason of the refusal.

    Args:
        requests: Amounts by capacity. A virtual amount precedes the physical one, and an amount
            that is missing is not compared.
    """
    for name, limit in (
        (names.CAPACITY_TFLOPS, limits.tflops_limit),
        (names.CAPACITY_VRAM, limits.vram_limit),
    ):
        request = requests.get(capacity.VIRTUAL_OF[name], requests.get(name))
        # A request of 1G consumes 954Mi, which is more. So a limit of 1G is 954Mi as well.
        if limit and request and capacity.rounded_up(name, limit, unit_bytes=MIB) < request:
            yield name, f"found {limit}, expected at least its request {request}"


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


def of_claim(
    claim: AllocatedClaim,
    of_pods: Callable[[], Mapping[str, Mapping[str, str]]],
    defaults: SharePolicy,
) -> Sequence[SharePolicy]:
    """Return the policy of each of the claim's allocations, merged from all sources as above.

    Args:
        claim: The claim, with the parameters of claim and class.
        of_pods: Returns the annotations of each pod, by ``namespace/name``. Called only if they
            matter: the claim has none for shares, and its parameters leave a value open. Of several
            pods the smallest limits count.
        defaults: The node's defaults.

    Raises:
        ClaimError: Parameters or annotations are malformed; the text lists all errors of one
            object.
    """
    parsed = [
        (config, _parsed(claim, config))
        for config in claim.configs
        if any(_is_for(config, allocation) for allocation in claim.allocations)
    ]
    try:
        limits = limits_of_annotations(claim.annotations)
    except ParameterError as error:
        raise ClaimError(f"claim {claim.ref}: annotation {error}") from error
    merged = [_merged(parsed, allocation, limits) for allocation in claim.allocations]
    sources: dict[str, Mapping[str, str]] = {}
    if names.SHARE_ANNOTATIONS & claim.annotations.keys():
        sources = {"annotation": claim.annotations}
    elif any(
        None in (both.tflops_limit, both.vram_limit, both.isolation, both.qos) for _, both in merged
    ):
        sources = {f"pod {pod}: annotation": found for pod, found in of_pods().items()}
    annotated = []
    for subject, found in sources.items():
        try:
            annotated.append(of_annotations(found))
        except ParameterError as error:
            raise ClaimError(f"claim {claim.ref}: {subject} {error}") from error
    lower = smallest(annotated)
    policies = []
    for of_class, both in merged:
        share = both.over(lower)
        isolation = share.isolation or defaults.isolation
        policies.append(
            SharePolicy(
                isolation=isolation,
                qos=share.qos or defaults.qos,
                tflops_limit=share.tflops_limit,
                vram_limit=share.vram_limit,
                limiter=share.limiter is not False,
                isolation_by_tenant=isolation is not (of_class.isolation or defaults.isolation),
            )
        )
    return policies


def _is_for(config: OpaqueConfig, allocation: Allocation) -> bool:
    chosen = f"{allocation.request}/{allocation.subrequest}"
    return not config.requests or bool({allocation.request, chosen} & set(config.requests))


def _parsed(claim: AllocatedClaim, config: OpaqueConfig) -> ShareParameters:
    try:
        return parse(config.parameters, trusted=config.trusted)
    except ParameterError as error:
        source = "class" if config.trusted else "claim"
        raise ClaimError(f"claim {claim.ref}: parameters of the {source}: {error}") from error


def _merged(
    parsed: Iterable[tuple[OpaqueConfig, ShareParameters]],
    allocation: Allocation,
    limits: ShareParameters,
) -> tuple[ShareParameters, ShareParameters]:
    """Return the parameters of the class for one share, and those of class and claim together.

    Args:
        limits: Those of the claim's annotations.
    """
    of_class = of_claim = ShareParameters()
    for config, parameters in parsed:
        if _is_for(config, allocation) and config.trusted:
            of_class = parameters.over(of_class)
        elif _is_for(config, allocation):
            of_claim = parameters.over(of_claim)
    of_claim = limits.over(of_claim)
    if of_class.overridable is False:
        return of_class, of_class.over(of_claim)
    return of_class, of_claim.over(of_class)


def pod_annotations(stored: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the annotations of a pod."""
    return map_at(stored, "metadata", "annotations")


def original_annotations(stored: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the annotations of a pod as they would be without this driver."""
    found = pod_annotations(stored)
    if names.MARK_DRA_MARKS not in found:
        return found
    own = added_keys(found) | {names.MARK_DRA_MARKS}
    rest = {key: value for key, value in found.items() if key not in own}
    return {**rest, **replaced_annotations(found)}


def replaced_annotations(found: Mapping[str, object]) -> dict[str, object]:
    """Return the former values of the annotations that this driver replaced."""
    return {key: found[kept_key(key)] for key in RULING if kept_key(key) in found}


def added_keys(found: Mapping[str, object]) -> frozenset[str]:
    """Return the labels and annotations that this driver added, as it listed them."""
    text = str(found.get(names.MARK_DRA_MARKS, ""))
    return frozenset(names.ANNOTATION_PREFIX + key for key in text.split(",") if key)


def kept_key(key: str) -> str:
    """Return the annotation that has the former value of one that this driver replaced."""
    return names.MARK_DRA_PREFIX + key.removeprefix(names.ANNOTATION_PREFIX)
