"""Parsing of a pod's annotations into a request (user guide, section 4)."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission.cards import CardKind, Cards
from tensorfusion_dra.core.cel import syntax, user_guide
from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.share_policy import ShareParameters
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import DriverError, InputError
from tensorfusion_dra.core.kubernetes import name_rules, quantity, resource_claims, untyped_json
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Fields, Reason
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO, Quantity

Item = Mapping[str, Any]

REQUESTING_ANNOTATIONS: Final = (
    names.ANNOTATION_DRA_ENABLED,
    names.ANNOTATION_TFLOPS_REQUEST,
    names.ANNOTATION_VRAM_REQUEST,
    names.ANNOTATION_COMPUTE_PERCENT_REQUEST,
    names.ANNOTATION_COMPUTE_PERCENT_LIMIT,
    names.ANNOTATION_VRAM_PERCENT_REQUEST,
    names.ANNOTATION_GPU_COUNT,
    names.ANNOTATION_GPU_MODEL,
    names.ANNOTATION_DEDICATED_GPU,
    names.ANNOTATION_CEL_EXPRESSION,
    names.ANNOTATION_CONTAINER_SHARES,
)
"""Annotations that request a GPU. A pod without any of them requests none."""

AMOUNTS: Final = (
    names.ANNOTATION_TFLOPS_REQUEST,
    names.ANNOTATION_VRAM_REQUEST,
    names.ANNOTATION_TFLOPS_LIMIT,
    names.ANNOTATION_VRAM_LIMIT,
    names.ANNOTATION_COMPUTE_PERCENT_REQUEST,
    names.ANNOTATION_COMPUTE_PERCENT_LIMIT,
    names.ANNOTATION_VRAM_PERCENT_REQUEST,
)
"""Annotations that name a part of a GPU."""
PERCENT_OF: Final = {
    names.ANNOTATION_TFLOPS_REQUEST: names.ANNOTATION_COMPUTE_PERCENT_REQUEST,
    names.ANNOTATION_TFLOPS_LIMIT: names.ANNOTATION_COMPUTE_PERCENT_LIMIT,
    names.ANNOTATION_VRAM_REQUEST: names.ANNOTATION_VRAM_PERCENT_REQUEST,
}
"""The annotation with which a pod names a percentage in place of an amount."""
_NO_PARAMETERS: Final = ShareParameters()
_COUNT: Final = re.compile(r"0*[0-9]{1,4}")
_HUNDRED: Final = Quantity.whole(100)
_BOOLEANS: Final = {"true": True, "false": False}
_REMEDY: Final = "or an amount instead of a percentage"
LIKE_MEMORY: Final = "memory"
"""Value of compute-percent-request: the part of each card's compute that the pod's memory is of the
card's memory, rounded up to whole percent."""
_MAX_MODELS: Final = 8
"""Maximum number of alternatives of a request (FirstAvailableDeviceRequestMaxSize)."""
_OF_CONTAINER: Final = tuple(
    name.removeprefix(names.ANNOTATION_PREFIX)
    for name in (
        names.ANNOTATION_TFLOPS_REQUEST,
        names.ANNOTATION_VRAM_REQUEST,
        names.ANNOTATION_COMPUTE_PERCENT_REQUEST,
        names.ANNOTATION_VRAM_PERCENT_REQUEST,
        names.ANNOTATION_TFLOPS_LIMIT,
        names.ANNOTATION_VRAM_LIMIT,
        names.ANNOTATION_COMPUTE_PERCENT_LIMIT,
        names.ANNOTATION_DEDICATED_GPU,
        names.ANNOTATION_GPU_MODEL,
    )
)
"""What the share of a container may say; the rest is of the whole pod."""
_OF_SHARE: Final = ("tflops_limit", "vram_limit", "isolation", "qos")


def _boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError(f"found {text[:80]!r}, expected true or false")
    return _BOOLEANS[text]


def _percent(text: str) -> Quantity | None:
    """Parse a percentage; 0 is unset, as for amounts."""
    amount = quantity.parse(text)
    if not 0 <= amount.nano <= _HUNDRED.nano:
        raise ValueError(f"found {amount}, expected more than 0 and at most 100")
    return amount if amount.nano else None


def _count(text: str) -> int:
    if _COUNT.fullmatch(text) is None or not 1 <= int(text) <= resource_claims.MAX_RESULTS:
        raise ValueError(f"found {text[:80]!r}, expected 1 to {resource_claims.MAX_RESULTS}")
    return int(text)


def _models(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(model.strip() for model in text.split(",")))
    if not all(found) or len(found) > _MAX_MODELS:
        raise ValueError(
            f"found {text[:80]!r}, expected a model such as A100, or up to {_MAX_MODELS} of them, "
            "separated by commas"
        )
    syntax.quoted(text)  # raises for text that no selector can contain
    return found


def _pool(text: str) -> str:
    for error in name_rules.subdomain("", text):
        raise ValueError(f"found {text[:80]!r}, expected the name of a GPUPool ({error.reason})")
    return text


def _expression(text: str) -> str:
    """Return an expression untranslated: each claim translates it again.

    Its types are the library's to check (`scheduling.cel_evaluation`), when the pod is created.
    """
    if text.strip():
        user_guide.translate(text)
    return text.strip() and text


def _attribute(text: str) -> str:
    """Return the name of an attribute, which a constraint names with its domain."""
    errors = [*name_rules.qualified("", text)] if "/" in text else ["no domain"]
    if errors:
        raise ValueError(
            f"found {text[:80]!r}, expected an attribute with its domain, such as "
            f"{names.ATTR_NUMA_NODE}"
        )
    return text


def _containers(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(found):
        raise ValueError(f"found {text[:80]!r}, expected names of containers, separated by commas")
    return found


def _text_of(found: object) -> str:
    if isinstance(found, str):
        return found
    raise ValueError(f"found {str(found)[:80]}, expected a string")


def _shares(text: str) -> Mapping[str, object]:
    """Return the share of each container, or the container whose share it uses.

    Example: {"app": {"vram-request": "16Gi"}, "log": {"vram-request": "2Gi"}, "setup": "app"}
    """
    try:
        found = untyped_json.parse(text.encode())
    except ValueError as error:
        raise ValueError(f"found no JSON: {error}") from error
    if not isinstance(found, dict) or not 1 <= len(found) <= resource_claims.MAX_RESULTS:
        raise ValueError(f"expected an object of 1 to {resource_claims.MAX_RESULTS} containers")
    for name, share in found.items():
        if isinstance(share, str) and share in found and not isinstance(found[share], str):
            continue
        fields = Fields(share, path=name)
        fields.refuse_others(_OF_CONTAINER)
        for key in fields.found:
            fields.read(key, _text_of, "")
        if fields.errors:
            raise ValueError(str(fields.errors[0])[:300])
    return found


class AnnotationError(InputError):
    """No card has what an annotation requests.

    Attributes:
        text: What was found and expected, without the annotation.
    """

    def __init__(self, annotation: str, text: str) -> None:
        self.annotation, self.text = annotation, text
        super().__init__(f"{annotation}: {text}")


# The order of errors. Of a pod's annotations, those that name a share are read by the node as well.
_READERS: Final[Mapping[str, tuple[str, Callable[[str], Any], Any]]] = {
    "enabled": (names.ANNOTATION_DRA_ENABLED, _boolean, None),
    "tflops": (names.ANNOTATION_TFLOPS_REQUEST, share_policy.amount_or_none, None),
    "vram": (names.ANNOTATION_VRAM_REQUEST, share_policy.amount_or_none, None),
    "percent": (
        names.ANNOTATION_COMPUTE_PERCENT_REQUEST,
        lambda text: text if text == LIKE_MEMORY else _percent(text),
        None,
    ),
    "percent_limit": (names.ANNOTATION_COMPUTE_PERCENT_LIMIT, _percent, None),
    "vram_percent": (names.ANNOTATION_VRAM_PERCENT_REQUEST, _percent, None),
    "whole": (names.ANNOTATION_DEDICATED_GPU, _boolean, False),
    "count": (names.ANNOTATION_GPU_COUNT, _count, 1),
    "models": (names.ANNOTATION_GPU_MODEL, _models, ()),
    "pool": (names.ANNOTATION_GPUPOOL, _pool, ""),
    "expression": (names.ANNOTATION_CEL_EXPRESSION, _expression, ""),
    "selector": (names.ANNOTATION_CEL_FILTER, _expression, ""),
    "match": (names.ANNOTATION_GPUS_MATCH, _attribute, ""),
    "containers": (names.ANNOTATION_INJECT_CONTAINER, _containers, ()),
    "tflops_limit": (names.ANNOTATION_TFLOPS_LIMIT, share_policy.tflops_limit, None),
    "vram_limit": (names.ANNOTATION_VRAM_LIMIT, share_policy.vram_limit, None),
    "isolation": (names.ANNOTATION_ISOLATION, share_policy.isolation, None),
    "qos": (names.ANNOTATION_QOS, share_policy.qos, None),
    "shares": (names.ANNOTATION_CONTAINER_SHARES, _shares, {}),
    "must_be_enforced": (names.ANNOTATION_REQUIRE_ENFORCEMENT, _boolean, False),
}
"""Annotation, its parser, and the value without it, by field of the request or of its share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """A pod's annotations, parsed: the share that it requests of each GPU.

    Attributes:
        enabled: True to use DRA, False not to; None leaves the choice to the pool.
        tflops: TFLOPS of each GPU; None if unset.
        vram: Bytes of each GPU; None if unset.
        percent: Percentage of each GPU's compute, instead of tflops.
        percent_limit: Limit of compute as a percentage, instead of the share's.
        vram_percent: Percentage of each GPU's memory, instead of vram.
        like_memory: True for the same part of compute as of memory, instead of tflops.
        whole: True for exclusive use of each GPU, whatever the amounts: a dedicated GPU, or
            isolation `shared`, which has no limits.
        count: Number of GPUs.
        models: Models of the GPUs, in order of preference; empty for any.
        pool: Name of a GPUPool; "" for the default one.
        expression: Device selector instead of the generated one; "" for none.
        selector: Device selector in addition to the generated one; "" for none.
        match: Attribute that has to be equal for all GPUs; "" for none.
        containers: Names of the containers that get the share; empty leaves that to the webhook.
        share: Limits, isolation and level of service.
        must_be_enforced: True to get only GPUs of nodes that enforce what the pod limits.
        of_containers: The request of each container with a share of its own. Its first container is
            the one that the request is named after; the others share with it. Empty if all
            containers share.
        is_virtual: True for virtual amounts.
        errors: What is wrong with the annotations.
    """

    enabled: bool | None = None
    tflops: Quantity | None = None
    vram: Quantity | None = None
    percent: Quantity | None = None
    percent_limit: Quantity | None = None
    vram_percent: Quantity | None = None
    like_memory: bool = False
    whole: bool = False
    count: int = 1
    models: tuple[str, ...] = ()
    pool: str = ""
    expression: str = ""
    selector: str = ""
    match: str = ""
    containers: tuple[str, ...] = ()
    share: ShareParameters = _NO_PARAMETERS
    must_be_enforced: bool = False
    of_containers: tuple["PodRequest", ...] = ()
    is_virtual: bool = False
    errors: tuple[FieldError, ...] = ()

    @property
    def percentages(self) -> tuple[str, ...]:
        """The annotations that request or limit something as a percentage."""
        compute = names.ANNOTATION_COMPUTE_PERCENT_REQUEST
        if self.percent and self.percent == self.percent_limit:
            compute = names.ANNOTATION_COMPUTE_PERCENT_LIMIT  # perhaps the only one
        found = {
            compute: self.percent or self.like_memory,
            names.ANNOTATION_COMPUTE_PERCENT_LIMIT: self.percent_limit,
            names.ANNOTATION_VRAM_PERCENT_REQUEST: self.vram_percent,
        }
        return tuple(annotation for annotation, is_set in found.items() if is_set)

    @property
    def selectors(self) -> Mapping[str, str]:
        """The pod's own device selectors, by annotation."""
        found = {
            names.ANNOTATION_CEL_EXPRESSION: self.expression,
            names.ANNOTATION_CEL_FILTER: self.selector,
        }
        return {annotation: text for annotation, text in found.items() if text}

    @property
    def is_partitioned(self) -> bool:
        """True for partitions of GPUs in MIG mode, False for GPUs and their shares."""
        return self.share.isolation is Isolation.PARTITIONED

    @property
    def has_amounts(self) -> bool:
        """Return True if the annotations determine how much of a GPU the pod gets."""
        return any((self.whole, self.tflops, self.vram, self.percent, self.vram_percent))

    def amounts(self) -> Mapping[str, Quantity]:
        """Return the amount that the claim requests of each capacity of a GPU, rounded up.

        An amount that is missing requests all of that capacity.
        """
        if self.whole:
            return {}
        named = {names.CAPACITY_TFLOPS: self.tflops, names.CAPACITY_VRAM: self.vram}
        return {name: capacity.rounded_up(name, amount) for name, amount in named.items() if amount}

    def below_request(self) -> Iterator[tuple[str, str]]:
        """Yield the annotation of each limit that is below its request, with the reason."""
        for name, text in share_policy.below_request(self.share, self.amounts()):
            yield f"{names.ANNOTATION_PREFIX}{name}-limit", text
        limit, request = self.percent_limit, self.percent
        if limit and request and limit < request:
            text = f"found {limit}, expected at least its request {request}"
            yield names.ANNOTATION_COMPUTE_PERCENT_LIMIT, text


def requests_gpu(pod_annotations: Mapping[str, str]) -> bool:
    """Return True if the pod requests a GPU through DRA, or leaves the use of DRA to its pool."""
    is_off = pod_annotations.get(names.ANNOTATION_DRA_ENABLED) == "false"
    return not is_off and any(name in pod_annotations for name in REQUESTING_ANNOTATIONS)


def path_of(annotation: str) -> str:
    """Return the path of an annotation in its pod."""
    return f"metadata.annotations[{annotation}]"


def _hint(annotation: str, text: str) -> str:
    """Return the annotation to which a percentage belongs; "" for another text."""
    instead = PERCENT_OF.get(annotation, annotation)
    if not text.endswith("%") or instead not in PERCENT_OF.values():
        return ""
    return f" (did you mean {instead}: {text[:80].removesuffix('%').strip()}?)"


def refusal(annotation: str, text: str) -> str:
    """Return why an annotation cannot have this text; "" if it can."""
    for name, read, _ in _READERS.values():
        if name == annotation:
            try:
                read(text)
            except (ValueError, DriverError) as error:
                return str(error)
    return ""


def parse(pod_annotations: Mapping[str, str]) -> PodRequest:
    """Parse a pod's annotations into its request, with all their errors.

    A malformed annotation counts as unset. As in Tensor Fusion, TFLOPS take precedence over
    percentages, a limit without a request is the request as well, and isolation `shared` gives
    whole GPUs, whatever the amounts.
    """
    found: dict[str, Any] = {}
    errors: list[FieldError] = []
    for field, (annotation, read, default) in _READERS.items():
        found[field] = default
        if annotation in pod_annotations:
            try:
                found[field] = read(pod_annotations[annotation])
            except (ValueError, DriverError) as error:
                text = f"{error}{_hint(annotation, pod_annotations[annotation])}"
                errors.append(FieldError(path_of(annotation), Reason.INVALID, text))
    if shares := found.pop("shares"):
        selectors = {field: found[field] for field in ("expression", "selector")}
        return _by_container(pod_annotations, shares, selectors, errors)
    malformed = {error.path for error in errors}
    if path_of(names.ANNOTATION_DRA_ENABLED) in malformed:
        found["enabled"] = True  # so that its error is reported
    share = ShareParameters(**{field: found.pop(field) for field in _OF_SHARE})
    is_like_memory = found["percent"] == LIKE_MEMORY
    percent = None if is_like_memory else found["percent"]
    if found["whole"] or share.isolation is Isolation.SHARED:
        share = replace(share, tflops_limit=None, vram_limit=None)
        found |= {"whole": True, "percent": None, "percent_limit": None, "vram_percent": None}
    else:
        tflops, vram = found["tflops"] or share.tflops_limit, found["vram"]
        vram_percent = None if vram else found["vram_percent"]
        vram = vram or (None if vram_percent else share.vram_limit)
        found["like_memory"] = is_like_memory and not tflops and bool(vram or vram_percent)
        percent = percent or (None if found["like_memory"] else found["percent_limit"])
        found |= {"tflops": tflops, "vram": vram, "vram_percent": vram_percent}
        found["percent"] = None if tflops else percent
        found["percent_limit"] = None if share.tflops_limit else found["percent_limit"]
    request = PodRequest(**found, share=share)
    # A malformed annotation that determines how much of a GPU the pod gets is error enough.
    is_malformed = not malformed.isdisjoint(map(path_of, (*AMOUNTS, names.ANNOTATION_ISOLATION)))
    if requests_gpu(pod_annotations) and not (request.has_amounts or is_malformed):
        tflops, vram = names.ANNOTATION_TFLOPS_REQUEST, names.ANNOTATION_VRAM_REQUEST
        errors.append(
            FieldError(
                path_of(tflops),
                Reason.REQUIRED,
                f"found no amount, expected {tflops}, {vram} or both",
            )
        )
    return replace(request, errors=tuple(errors))


def _by_container(
    pod_annotations: Mapping[str, str],
    shares: Mapping[str, Any],
    selectors: Mapping[str, Any],
    errors: Sequence[FieldError],
) -> PodRequest:
    """Return the request of a pod whose containers have shares of their own, in one claim."""
    where = path_of(names.ANNOTATION_CONTAINER_SHARES)
    read_once = {
        *(names.ANNOTATION_CONTAINER_SHARES, names.ANNOTATION_CEL_EXPRESSION),
        names.ANNOTATION_CEL_FILTER,
    }
    of_pod = {key: text for key, text in pod_annotations.items() if key not in read_once}
    found, of_shares = [], list(errors)
    for name, share in shares.items():
        if isinstance(share, str):
            continue
        own = {names.ANNOTATION_PREFIX + key: text for key, text in share.items()}
        part = parse({**of_pod, names.ANNOTATION_DRA_ENABLED: "true", **own})
        users = (name, *(user for user, other in shares.items() if other == name))
        found.append(replace(part, containers=users, enabled=None, **selectors))
        of_shares += [
            replace(each, path=f"{where}.{name}") if each not in errors else each
            for each in part.errors
        ]
    if found[0].count > 1:
        of_shares.append(
            FieldError(
                where,
                Reason.INVALID,
                "found it beside several GPUs, expected one: a container names one request",
            )
        )
    is_on = pod_annotations.get(names.ANNOTATION_DRA_ENABLED)
    return replace(
        found[0],
        enabled=None if is_on is None else is_on != "false",
        containers=tuple(shares),
        of_containers=tuple(found),
        errors=tuple(dict.fromkeys(of_shares)),
    )


def alternatives(wanted: PodRequest, published: Cards, *, pool: str) -> tuple[PodRequest, ...]:
    """Return a request for each model of the pod, in its order, with amounts for percentages.

    A claim requests one amount of each capacity, whichever card it gets. A percentage therefore has
    a definite meaning only if all cards that it can get have the same amount. Models that no node
    publishes are left out then.

    Example: with A100 (312 TFLOPS) in the pool, `compute-percent-request: 25` requests 78 TFLOPS.
    With A100 and T4 (65 TFLOPS) it is refused, unless `gpu-model` has one of them, or both: then
    it requests 78 TFLOPS of an A100 or 16.25 of a T4. Compute that follows memory is no
    percentage of the pod's own, so without `gpu-model` it has an alternative for each model.

    Args:
        wanted: The pod's request.
        published: The cards of all nodes that the pod's own selector matches.
        pool: The GPUPool that the pod's devices come from; "" for any.

    Raises:
        AnnotationError: Cards that the pod can get differ, or there is none.
    """
    if not wanted.percentages:
        return tuple(replace(wanted, models=(model,)) for model in wanted.models) or (wanted,)
    models = wanted.models
    if wanted.like_memory and wanted.vram and not models:
        every = published.kinds(partial(_is_in_reach, wanted, pool))
        models = tuple(dict.fromkeys(card.model for card in sorted(every)))[:_MAX_MODELS]
    found = []
    for model in models or ("",):
        choice = replace(wanted, models=(model,) if model else ())
        own = sorted(published.kinds(partial(_is_in_reach, choice, pool)))
        found += [_in_amounts(choice, own)] if own else []
    if not found:
        raise AnnotationError(
            wanted.percentages[0],
            f"found no published GPU {' or '.join(models) or 'of any model'} in "
            f"{f'pool {pool}' if pool else 'any pool'}, expected one, {_REMEDY}",
        )
    # All alternatives have one limit. That of whole cards may be more than a card has.
    limits = {each.share.tflops_limit for each in found}
    if wanted.percent_limit and (len(limits) > 1 or len(wanted.models) > 1):
        if wanted.percent_limit < _HUNDRED:
            raise AnnotationError(
                names.ANNOTATION_COMPUTE_PERCENT_LIMIT,
                f"found a limit in percent and {', '.join(models)}, expected one model of GPU",
            )
        share = replace(wanted.share, tflops_limit=max(filter(None, limits)))
        found = [replace(each, share=share) for each in found]
    return tuple(found)


def by_kind(
    choices: Sequence[PodRequest], published: Cards, *, pool: str, virtual: bool
) -> tuple[PodRequest, ...]:
    """Return each alternative once for each kind of amounts by which cards in its reach are shared.

    A card is shared by its physical or by its virtual amounts. A node that starts or stops
    oversubscribing changes a card when its last share ends, so a pool may have both for days. A
    request that named the wrong kind would get nothing, or a whole card. The virtual amounts come
    first: an empty card that has them satisfies these, and is never taken for the physical ones.

    Args:
        choices: The pod's request, in amounts, for each of its models.
        published: The cards of all nodes.
        pool: The GPUPool that the pod's devices come from; "" for any.
        virtual: The kind as long as no card is in reach.

    Raises:
        InputError: These are more alternatives than a request may have.
    """
    found: list[PodRequest] = []
    nodes: dict[bool, str] = {}
    for choice in choices:
        kinds = {
            card.is_virtual: node
            for card, node in published.kinds(partial(_is_in_reach, choice, pool)).items()
        } or {virtual and not choice.is_partitioned: ""}
        nodes |= kinds
        found += [replace(choice, is_virtual=kind) for kind in sorted(kinds, reverse=True)]
    if len(found) > max(_MAX_MODELS, len(choices)):
        models = ", ".join(each.models[0] for each in choices)
        raise InputError(
            f"found {len(found)} alternatives: for each of {models} one of the nodes that "
            f"oversubscribe, such as {nodes[True]}, and one of the others, such as {nodes[False]}; "
            f"expected at most {_MAX_MODELS}"
        )
    return tuple(found)


def _is_in_reach(wanted: PodRequest, pool: str, card: CardKind) -> bool:
    """Return True if the pod could get such a card, leaving its selector aside."""
    is_near = bool(wanted.expression) or card.is_in(pool)
    is_of_kind = card.is_partition == wanted.is_partitioned
    return is_near and is_of_kind and all(map(card.is_of, wanted.models))


def _in_amounts(wanted: PodRequest, every: Sequence[CardKind]) -> PodRequest:
    """Return the request with the amounts that its percentages are on each of these cards.

    Raises:
        AnnotationError: The cards differ, or a limit is below what the percentages request.
    """
    share, tflops, vram = wanted.share, wanted.tflops, wanted.vram
    if wanted.vram_percent:
        of_memory = {each.vram: f"{each.model} of {each.vram}" for each in every}
        whole = _only(names.ANNOTATION_VRAM_PERCENT_REQUEST, of_memory)
        part = whole.nano * wanted.vram_percent.nano // (_HUNDRED.nano * NANO)
        vram = Quantity.of_bytes(max(1, part // MIB) * MIB)
    of_compute = {each.tflops: f"{each.model} of {each.tflops} TFLOPS" for each in every}
    if limit := wanted.percent_limit:
        whole = max(of_compute) if limit == _HUNDRED else _only(wanted.percentages[0], of_compute)
        share = replace(share, tflops_limit=_part(whole, limit, is_limit=True))
    if wanted.percent:
        tflops = _part(_only(wanted.percentages[0], of_compute), wanted.percent)
    if wanted.like_memory and vram:
        tflops = max(
            _part(each.tflops, Quantity.whole(min(100, -(-100 * vram.nano // each.vram.nano))))
            for each in every
        )
    found = replace(
        wanted,
        tflops=tflops,
        vram=vram,
        share=share,
        percent=None,
        percent_limit=None,
        vram_percent=None,
        like_memory=False,
    )
    for annotation, text in found.below_request():
        if wanted.percent_limit and annotation == names.ANNOTATION_TFLOPS_LIMIT:
            annotation = names.ANNOTATION_COMPUTE_PERCENT_LIMIT  # noqa: PLW2901
        raise AnnotationError(annotation, text)
    return found


def _only(annotation: str, found: Mapping[Quantity, str]) -> Quantity:
    """Return the amount that all cards have, of which the annotation requests a part.

    Raises:
        AnnotationError: They differ.
    """
    if len(found) > 1:
        raise AnnotationError(
            annotation,
            f"found {', '.join(found[amount] for amount in sorted(found)[:5])}, expected one kind "
            f"of GPU ({names.ANNOTATION_GPU_MODEL}), {_REMEDY}",
        )
    return next(iter(found))


def _part(card: Quantity, percent: Quantity, *, is_limit: bool = False) -> Quantity:
    """Return a percentage of a card's TFLOPS in thousandths; at least one, because 0 means unset.

    A request is rounded down, so that the eighths of every card fit on it. A limit is rounded up.
    """
    milli, rest = divmod(card.nano * percent.nano, _HUNDRED.nano * (NANO // 1000))
    return Quantity.milli(max(1, milli + (is_limit and rest > 0)))
