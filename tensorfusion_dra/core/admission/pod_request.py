"""Parsing of a pod's annotations into a request (user guide, section 4)."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import dialect, syntax
from tensorfusion_dra.core.claims import isolation, share_policy
from tensorfusion_dra.core.claims.share_policy import ShareParameters
from tensorfusion_dra.core.devices import device, gpupool
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import name_rules, quantity, review
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.field_reader import Fields
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO, Quantity, QuantityError
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

Item = Mapping[str, Any]
Card = tuple[Quantity, Quantity, str]
"""Memory, TFLOPS and model of a published GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraPool:
    """A GPUPool's settings for its pods.

    Attributes:
        name: Name of the GPUPool; "" for pods without one.
        enabled: True if its pods use DRA unless their annotations say otherwise.
        template: Name of their ResourceClaimTemplate.
        isolations: Isolation modes that the pool may set for its nodes.
    """

    name: str = ""
    enabled: bool = False
    template: str = names.CLAIM_TEMPLATE
    isolations: frozenset[Isolation] = frozenset()


def choose(pools: Sequence[Item], name: str) -> Item | None:
    """Return the pool of this name, or the default pool if the name is "".

    Return None if there are no GPUPools; the pools of nodes then come from their settings.

    Raises:
        InputError: No pool has this name; or none is named, and not exactly one is the default.
    """
    if not pools:
        return None
    if name:
        try:
            return gpupool.named(pools, name)
        except InputError as error:
            known = ", ".join(sorted(map(_name, pools))[:10])
            raise InputError(f"found {name!r}, expected a GPUPool such as {known}") from error
    default = [
        pool
        for pool in pools
        if review.annotations_of(pool).get(names.ANNOTATION_DEFAULT_POOL) == "true"
    ]
    if len(default) == 1:
        return default[0]
    if default:
        found = ", ".join(sorted(map(_name, default)))
        raise InputError(f"found no name and the defaults {found}, expected one default GPUPool")
    raise InputError("found no name and no default GPUPool, expected the name of a GPUPool")


def is_by_settings(name: str, pools: Sequence[Item], published: AbstractSet[str]) -> bool:
    """Return True if a pod's nodes are in their pools by settings, whatever GPUPools there are.

    Pods have to get devices as nodes publish them. Example: node plugins with pool-source=settings
    publish `default`, and the cluster has the default GPUPool `prod` for Tensor Fusion's own
    scheduler. Then a pod may name `default`, and a pod that names none gets GPUs of every pool. A
    GPUPool that no node publishes may still get nodes, so a pod that names one waits.

    Args:
        name: The pool that the pod names; "" for none.
        pools: The cluster's GPUPools.
        published: The GPUPools that nodes publish.
    """
    known = set(map(_name, pools))
    if name:
        return name not in known and name in published
    return bool(published) and published.isdisjoint(known)


def parse_pool(pool: Item, templates: Iterable[Item]) -> DraPool:
    """Return a GPUPool's settings for its pods.

    The pool's own draConfig takes precedence over the SchedulingConfigTemplate that it names. The
    CRDs of Tensor Fusion have neither field, so the API server drops them; those of the chart
    have both.
    """
    spec = as_map(pool.get("spec"))
    own = as_map(spec.get("draConfig"))
    shared: Mapping[str, object] = {}
    for template in templates:
        if _name(template) == spec.get("schedulingConfigTemplate"):
            shared = as_map(as_map(template.get("spec")).get("dra"))
    enabled = shared.get("enable") if own.get("enable") is None else own.get("enable")
    name = own.get("resourceClaimTemplateName") or shared.get("resourceClaimTemplateName")
    return DraPool(
        name=_name(pool),
        enabled=enabled is True,
        template=str(name or names.CLAIM_TEMPLATE),
        isolations=isolation.pool_modes(pool),
    )


def _name(item: Item) -> str:
    return str(item["metadata"]["name"])


MOST_GPUS: Final = 32
"""Maximum number of devices in a claim (AllocationResultsMaxSize of resource.k8s.io/v1)."""

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
)
"""Annotations that request a GPU. A pod without any of them requests none."""

_IMPLYING_AMOUNTS: Final = (
    names.ANNOTATION_TFLOPS_REQUEST,
    names.ANNOTATION_VRAM_REQUEST,
    names.ANNOTATION_COMPUTE_PERCENT_REQUEST,
    names.ANNOTATION_COMPUTE_PERCENT_LIMIT,
    names.ANNOTATION_VRAM_PERCENT_REQUEST,
    names.ANNOTATION_TFLOPS_LIMIT,
    names.ANNOTATION_VRAM_LIMIT,
    names.ANNOTATION_ISOLATION,
)
"""Annotations that determine how much of a GPU the pod gets; a malformed one is error enough."""
_PATH: Final = "metadata.annotations"
_NO_PARAMETERS: Final = ShareParameters()
_COUNT: Final = re.compile(r"0*[0-9]{1,4}")
_HUNDRED: Final = Quantity.whole(100)
_BOOLEANS: Final = {"true": True, "false": False}
_CURE: Final = "or an amount instead of a percentage"
LIKE_MEMORY: Final = "memory"
"""Value of compute-percent-request: the part of each card's compute that the pod's memory is of the
card's memory, rounded up to whole percent."""
_MOST_MODELS: Final = 8
"""Maximum number of alternatives of a request (FirstAvailableDeviceRequestMaxSize)."""


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
        containers: Names of the containers that get the share; empty leaves that to the webhook.
        share: Limits, isolation and level of service.
        must_be_enforced: True to get only GPUs of nodes that enforce what the pod limits.
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
    containers: tuple[str, ...] = ()
    share: ShareParameters = _NO_PARAMETERS
    must_be_enforced: bool = False

    @property
    def has_percentages(self) -> bool:
        """Return True if the pod requests or limits something as a percentage."""
        return self.like_memory or any((self.percent, self.percent_limit, self.vram_percent))

    @property
    def has_amounts(self) -> bool:
        """Return True if the annotations determine how much of a GPU the pod gets."""
        return any((self.whole, self.tflops, self.vram, self.percent, self.vram_percent))

    def amounts(self) -> Mapping[str, Quantity]:
        """Return the requested amount of each capacity of a GPU; a missing one is taken whole."""
        if self.whole:
            return {}
        named = {names.CAPACITY_TFLOPS: self.tflops, names.CAPACITY_VRAM: self.vram}
        return {name: amount for name, amount in named.items() if amount}


def requests_gpu(pod_annotations: Mapping[str, str]) -> bool:
    """Return True if the pod requests a GPU through DRA, or leaves the use of DRA to its pool."""
    is_off = pod_annotations.get(names.ANNOTATION_DRA_ENABLED) == "false"
    return not is_off and any(name in pod_annotations for name in REQUESTING_ANNOTATIONS)


def path_of(annotation: str) -> str:
    """Return the path of an annotation in its pod."""
    return f"{_PATH}[{annotation}]"


def parse(pod_annotations: Mapping[str, str], errors: list[FieldError]) -> PodRequest:
    """Parse a pod's annotations into its request; append all errors to the list.

    A malformed annotation counts as unset. As in Tensor Fusion, TFLOPS take precedence over
    percentages, a limit without a request is the request as well, and isolation `shared` gives
    whole GPUs, whatever the amounts.
    """
    fields = Fields(pod_annotations, path=_PATH, errors=errors)
    is_like_memory = pod_annotations.get(names.ANNOTATION_COMPUTE_PERCENT_REQUEST) == LIKE_MEMORY
    request = PodRequest(
        # A malformed value counts as true, so that its error is reported.
        enabled=fields.read(
            names.ANNOTATION_DRA_ENABLED,
            _boolean,
            True if names.ANNOTATION_DRA_ENABLED in pod_annotations else None,
        ),
        tflops=fields.read(names.ANNOTATION_TFLOPS_REQUEST, _amount, None),
        vram=fields.read(names.ANNOTATION_VRAM_REQUEST, _amount, None),
        percent=None
        if is_like_memory
        else fields.read(names.ANNOTATION_COMPUTE_PERCENT_REQUEST, _percent, None),
        percent_limit=fields.read(names.ANNOTATION_COMPUTE_PERCENT_LIMIT, _percent, None),
        vram_percent=fields.read(names.ANNOTATION_VRAM_PERCENT_REQUEST, _percent, None),
        like_memory=is_like_memory,
        whole=fields.read(names.ANNOTATION_DEDICATED_GPU, _boolean, default=False),
        count=fields.read(names.ANNOTATION_GPU_COUNT, _count, 1),
        models=fields.read(names.ANNOTATION_GPU_MODEL, _models, ()),
        pool=fields.read(names.ANNOTATION_GPUPOOL, _pool, ""),
        expression=fields.read(names.ANNOTATION_CEL_EXPRESSION, _expression, ""),
        selector=fields.read(names.ANNOTATION_CEL_FILTER, _expression, ""),
        containers=fields.read(names.ANNOTATION_INJECT_CONTAINER, _containers, ()),
        share=share_policy.read_annotations(fields),
        must_be_enforced=fields.read(names.ANNOTATION_REQUIRE_ENFORCEMENT, _boolean, default=False),
    )
    request = _completed(request)
    malformed = {error.path for error in errors}
    amounts_malformed = not malformed.isdisjoint(map(path_of, _IMPLYING_AMOUNTS))
    if requests_gpu(pod_annotations) and not (request.has_amounts or amounts_malformed):
        tflops, vram = names.ANNOTATION_TFLOPS_REQUEST, names.ANNOTATION_VRAM_REQUEST
        text = f"found no amount, expected {tflops}, {vram} or both"
        where = path_of(tflops)
        errors.append(FieldError(where, Reason.REQUIRED, text))
    return request


def _completed(request: PodRequest) -> PodRequest:
    """Return the request with the values that follow from its other values."""
    share = request.share
    none = replace(request, percent=None, percent_limit=None, vram_percent=None, like_memory=False)
    if request.whole or share.isolation is Isolation.SHARED:
        unlimited = replace(share, tflops_limit=None, vram_limit=None)
        return replace(none, whole=True, share=unlimited)
    tflops = request.tflops or share.tflops_limit
    vram_percent = None if request.vram else request.vram_percent
    vram = request.vram or (None if vram_percent else share.vram_limit)
    is_like_memory = request.like_memory and not tflops and bool(vram or vram_percent)
    percent = request.percent or (None if is_like_memory else request.percent_limit)
    return replace(
        none,
        tflops=tflops,
        vram=vram,
        percent=None if tflops else percent,
        percent_limit=None if share.tflops_limit else request.percent_limit,
        vram_percent=vram_percent,
        like_memory=is_like_memory,
    )


def _boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError(f"found {text[:80]!r}, expected true or false")
    return _BOOLEANS[text]


def _amount(text: str) -> Quantity | None:
    """Parse an amount; 0 is unset, because Tensor Fusion writes it if a pod names none."""
    amount = quantity.parse(text)
    if amount.nano < 0:
        raise ValueError(f"found {amount}, expected more than 0")
    return amount if amount.nano else None


def _percent(text: str) -> Quantity | None:
    """Parse a percentage; 0 is unset, as for amounts."""
    amount = quantity.parse(text)
    if not 0 <= amount.nano <= _HUNDRED.nano:
        raise ValueError(f"found {amount}, expected more than 0 and at most 100")
    return amount if amount.nano else None


def _count(text: str) -> int:
    if _COUNT.fullmatch(text) is None or not 1 <= int(text) <= MOST_GPUS:
        raise ValueError(f"found {text[:80]!r}, expected 1 to {MOST_GPUS}")
    return int(text)


def _models(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(model.strip() for model in text.split(",")))
    if not all(found) or len(found) > _MOST_MODELS:
        raise ValueError(
            f"found {text[:80]!r}, expected a model such as A100, or up to {_MOST_MODELS} of them, "
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
        dialect.translate(text)
    return text.strip() and text


def _containers(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(found):
        raise ValueError(f"found {text[:80]!r}, expected names of containers, separated by commas")
    return found


def alternatives(
    wanted: PodRequest, slices: Iterable[Mapping[str, Any]], *, pool: str
) -> tuple[PodRequest, ...]:
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
        slices: The driver's ResourceSlices, with those devices that the pod's own selector matches.
        pool: The GPUPool that the pod's devices come from; "" for any.

    Raises:
        InputError: Cards that the pod can get differ, or there is none.
    """
    if not wanted.has_percentages:
        return tuple(replace(wanted, models=(model,)) for model in wanted.models) or (wanted,)
    if wanted.percent_limit and len(wanted.models) > 1:
        several = ", ".join(wanted.models)
        raise InputError(f"found a limit in percent and {several}, expected one model of GPU")
    cards = sorted(_cards(slices, pool="" if wanted.expression else pool))
    models = wanted.models
    if wanted.like_memory and wanted.vram and not models:
        models = tuple(dict.fromkeys(model for _, _, model in cards))[:_MOST_MODELS]
    found = []
    for model in models or ("",):
        own = [card for card in cards if not model or card[2] == device.shortened(model)]
        choice = replace(wanted, models=(model,) if model else ())
        found += [_in_amounts(choice, own)] if own else []
    if not found:
        raise InputError(
            f"found no published GPU {' or '.join(models) or 'of any model'} in "
            f"{f'pool {pool}' if pool else 'any pool'}, expected one, {_CURE}"
        )
    return tuple(found)


def _in_amounts(wanted: PodRequest, cards: Sequence[Card]) -> PodRequest:
    """Return the request with the amounts that its percentages are on each of these cards."""
    share, tflops, vram = wanted.share, wanted.tflops, wanted.vram
    if wanted.vram_percent:
        whole = _only({vram: f"{model} of {vram}" for vram, _, model in cards})
        part = whole.nano * wanted.vram_percent.nano // (_HUNDRED.nano * NANO)
        vram = Quantity.of_bytes(max(1, part // MIB) * MIB)
    if wanted.percent or wanted.percent_limit:
        whole = _only({tflops: f"{model} of {tflops} TFLOPS" for _, tflops, model in cards})
        if wanted.percent_limit:
            share = replace(share, tflops_limit=_part(whole, wanted.percent_limit))
        tflops = _part(whole, wanted.percent) if wanted.percent else tflops
    if wanted.like_memory and vram:
        tflops = max(
            _part(card, Quantity.whole(min(100, -(-100 * vram.nano // memory.nano))))
            for memory, card, _ in cards
        )
    return replace(
        wanted,
        tflops=tflops,
        vram=vram,
        share=share,
        percent=None,
        percent_limit=None,
        vram_percent=None,
        like_memory=False,
    )


def _only(found: Mapping[Quantity, str]) -> Quantity:
    """Return the amount that all cards have.

    Raises:
        InputError: They differ.
    """
    if len(found) > 1:
        shown = ", ".join(found[amount] for amount in sorted(found)[:5])
        raise InputError(
            f"found {shown}, expected one kind of GPU ({names.ANNOTATION_GPU_MODEL}), {_CURE}"
        )
    return next(iter(found))


def _cards(slices: Iterable[Mapping[str, Any]], *, pool: str) -> Iterator[Card]:
    """Yield the published devices of a GPUPool; "" for any pool."""
    for item in slices:
        for entry in map(as_map, as_list(as_map(item.get("spec")).get("devices"))):
            attributes, capacity = as_map(entry.get("attributes")), as_map(entry.get("capacity"))
            if pool and _text(attributes, names.ATTR_POOL_NAME) != device.shortened(pool):
                continue
            try:
                vram, tflops = (
                    quantity.parse(as_map(capacity.get(name)).get("value"))
                    for name in (names.CAPACITY_VRAM, names.CAPACITY_TFLOPS)
                )
            except QuantityError:
                continue  # a device of an older release, or of another driver
            yield vram, tflops, _text(attributes, names.ATTR_MODEL)


def _text(attributes: Mapping[str, object], name: str) -> str:
    return str(as_map(attributes.get(name)).get("string", ""))


def _part(card: Quantity, percent: Quantity) -> Quantity:
    """Return a percentage of a card's TFLOPS; at least a billionth, because 0 means unset."""
    return Quantity(max(1, card.nano * percent.nano // (100 * quantity.NANO)), card.family)
