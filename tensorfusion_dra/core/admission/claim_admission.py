"""Filling of a claim that was made from Tensor Fusion's template with its pod's request.

A pod's ``gpu-count: 4`` becomes four requests of one card each, and a constraint that keeps them on
different cards:

    requests: [gpu-request, gpu-request-2, gpu-request-3, gpu-request-4]
    constraints:
    - requests: [gpu-request, gpu-request-2, gpu-request-3, gpu-request-4]
      distinctAttribute: tensor-fusion.ai.dra-driver/uuid

One request of ``count: 4`` is not enough: the scheduler of Kubernetes 1.35 may give it the
same card several times. It begins each search at the first device, and its ``distinctAttribute``
compares a device only with the latest one of each request
(kubernetes/kubernetes#140438; docs/adr/0019).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tensorfusion_dra.core.cel import user_guide
from tensorfusion_dra.core.cel.syntax import quoted
from tensorfusion_dra.core.claims import isolation, share_policy
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.share_policy import ParameterError, ShareParameters
from tensorfusion_dra.core.devices import device
from tensorfusion_dra.core.devices.capacity import VIRTUAL_OF
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import (
    name_rules,
    quantity,
    resource_claims,
    review,
    untyped_json,
)
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.core.kubernetes.untyped_json import (
    as_list,
    as_map,
    map_at,
    name_of,
    objects_at,
)

Json = dict[str, Any]

_UNIQUE: Final = f"{names.DRIVER}/{names.ATTR_UUID}"
_ATTRIBUTES: Final = f"device.attributes[{quoted(names.DRIVER)}]"


def is_labelled(claim: Mapping[str, Any]) -> bool:
    """Return True if its label marks the claim as one to fill."""
    labels = map_at(claim, "metadata", "labels")
    return labels.get(names.LABEL_CLAIM_TEMPLATE) == "true"


def owner(claim: Mapping[str, Any], namespace: str) -> PodRef:
    """Return the pod for which the claim was made.

    Raises:
        InputError: The claim has no pod as owner.
    """
    for found in objects_at(claim, "metadata", "ownerReferences"):
        if (found.get("apiVersion"), found.get("kind")) == ("v1", "Pod"):
            return PodRef(
                namespace=namespace, name=str(found.get("name")), uid=str(found.get("uid"))
            )
    raise InputError("found no owner of kind Pod, expected the pod that the claim is for")


def filled(claim: Mapping[str, Any], alternatives: Sequence[PodRequest], *, pool: str) -> Json:
    """Return the claim with the cards, selector, amounts and limits that its pod requests.

    A claim that is already filled is returned unchanged. Several models and kinds of amounts become
    alternatives of each request, of which the scheduler takes the first that it can. All cards are
    of one model if several are named:

        firstAvailable: [{name: choice-1, ... H100}, {name: choice-2, ... A100}]

    Args:
        alternatives: The request of the claim's pod, for each of its models and kinds of amounts.
        pool: The GPUPool for the generated selector; "" for any.

    Raises:
        InputError: The claim has no request that can be filled, or no room for a request per card.
    """
    result = untyped_json.copied(dict(claim))
    devices = map_at(result, "spec", "devices")
    request = _to_fill(devices)
    _fill(request, alternatives, pool=pool)
    wanted = alternatives[0]
    if wanted.count > 1:
        assert isinstance(devices, dict)
        cards = keep_apart(devices, request, wanted.count)
        if len({each.models for each in alternatives}) > 1:
            devices["constraints"].append(
                {"requests": cards, "matchAttribute": f"{names.DRIVER}/{names.ATTR_MODEL}"}
            )
        if wanted.match:
            devices["constraints"].append({"requests": cards, "matchAttribute": wanted.match})
    return _annotated(result, wanted.share)


def filled_by_container(
    claim: Mapping[str, Any],
    of_containers: Sequence[Sequence[PodRequest]],
    *,
    pool: str,
    equal_only: Sequence[str] = (),
) -> Json:
    """Return the claim with a request for each container, named after it.

    Limits of its own are in the claim's configuration, where each request can have others.

    Args:
        of_containers: The request of each container, with its alternatives.
        pool: As of filled().
        equal_only: Enforcers that cannot keep different limits of the requests of a claim, which
            core/claims/index_limits.py explains: different shares get no device of their nodes.

    Raises:
        InputError: The claim has no request that can be filled, or a name is taken.
    """
    known = ", ".join(map(quoted, equal_only))
    by_request = f'!({_ATTRIBUTES}.?{names.ATTR_ENFORCER}.orValue("") in [{known}])'
    result = untyped_json.copied(dict(claim))
    devices = map_at(result, "spec", "devices")
    template = _to_fill(devices)
    assert isinstance(devices, dict)
    every, old = as_list(devices["requests"]), name_of(template)
    place, config, found = every.index(template), as_list(devices.get("config")), []
    are_equal = len({(*each[0].amounts().items(), each[0].share) for each in of_containers}) == 1
    for each in of_containers:
        name, share = each[0].containers[0], each[0].share
        if any(name_of(other) == name for other in every if other is not template):
            raise InputError(f"found another request {name!r}, expected the name to be unused")
        request = {**untyped_json.copied(template), "name": name}
        _fill(request, each, pool=pool)
        if not are_equal:
            for _, exactly in resource_claims.alternatives(request):
                exactly["selectors"] = _selectors(exactly["selectors"], by_request)
        found.append(request)
        if share.tflops_limit or share.vram_limit:
            limits = share_policy.as_config(name, tflops=share.tflops_limit, vram=share.vram_limit)
            config = [*config, limits]
    devices["requests"] = [*every[:place], *found, *every[place + 1 :]]
    if config:
        devices["config"] = config
    # Shares of containers may be of one card; the template keeps the cards of a whole pod apart.
    apart = {"requests": [old], "distinctAttribute": _UNIQUE}
    if "constraints" in devices:
        devices["constraints"] = [each for each in devices["constraints"] if each != apart]
    cards = list(map(name_of, found))
    for field in ("constraints", "config"):
        if field in devices:
            devices[field] = [_concerning(entry, [old, *cards]) for entry in devices[field]]
            for entry in devices[field] if old not in cards else ():
                if old in (entry.get("requests") or ()):
                    entry["requests"].remove(old)
    share = of_containers[0][0].share
    return _annotated(result, ShareParameters(qos=share.qos, isolation=share.isolation))


def _to_fill(devices: Mapping[str, Any]) -> Json:
    """Return the first request of this driver's class, else the first of an administrator's own."""
    every = objects_at(devices, "requests")
    exact = [each for each in every if isinstance(each.get("exactly"), dict)]
    ours = [each for each in exact if each["exactly"].get("deviceClassName") in names.OWN_CLASSES]
    if not exact:
        raise InputError("found no request with `exactly`, expected one to fill")
    return (ours or exact)[0]


def _fill(request: Json, alternatives: Sequence[PodRequest], *, pool: str) -> None:
    """Replace the content of a template's request by that of each alternative."""
    template = request.pop("exactly")
    each = [_exactly(template, one, pool=pool) for one in alternatives]
    if len(each) == 1:
        request["exactly"] = each[0]
    else:
        request["firstAvailable"] = [
            {"name": f"choice-{place}", **one} for place, one in enumerate(each, start=1)
        ]


def _annotated(claim: Json, share: ShareParameters) -> Json:
    """Return the claim with the annotations of its pod that concern its share.

    With the pod's limits, qos and isolation in the claim, the node need not read the pod. A limit
    of 0 is no limit. Its presence shows the node that the pod's annotations are included.
    """
    found = {
        names.ANNOTATION_TFLOPS_LIMIT: share.tflops_limit,
        names.ANNOTATION_VRAM_LIMIT: share.vram_limit,
        names.ANNOTATION_QOS: share.qos,
        names.ANNOTATION_ISOLATION: share.isolation,
    }
    metadata = claim.setdefault("metadata", {})
    metadata["annotations"] = {
        names.ANNOTATION_TFLOPS_LIMIT: "0",
        **(metadata.get("annotations") or {}),
        **{name: str(value) for name, value in found.items() if value is not None},
    }
    return claim


def keep_apart(devices: Json, request: Json, count: int) -> list[str]:
    """Make a request for each of several cards, with one constraint; return the requests' names.

    Constraints and configurations of the request apply to all of them.

    Args:
        devices: The requests, constraints and configurations of a claim, which are changed.
        request: One of the requests; the others follow it.
        count: How many requests it becomes.

    Raises:
        InputError: A name is taken or too long, or the claim would have too many requests.
    """
    first = name_of(request)
    cards = [first, *(f"{first}-{card}" for card in range(2, count + 1))]
    devices["requests"] = _one_for_each(as_list(devices.get("requests")), request, cards)
    for field in ("constraints", "config"):
        if field in devices:
            devices[field] = [_concerning(entry, cards) for entry in as_list(devices[field])]
    devices["constraints"] = _keeping_apart(as_list(devices.get("constraints")), cards)
    return cards


def _exactly(template: Json, wanted: PodRequest, *, pool: str) -> Json:
    """Return a template's device request with the selector and amounts of a pod's request."""
    exactly = {**template, "allocationMode": "ExactCount", "count": 1}
    if wanted.is_partitioned and exactly.get("deviceClassName") == names.DEVICE_CLASS:
        exactly["deviceClassName"] = names.PARTITION_CLASS
    qos = wanted.share.qos
    if wanted.expression:
        expression = user_guide.translate(wanted.expression).strip()
    else:
        expression = selector(
            model=wanted.models[0] if wanted.models else "",
            pool=pool,
            qos=qos.value if qos else "",
        )
    exactly["selectors"] = _selectors(as_list(exactly.get("selectors")), expression)
    if wanted.selector:
        own = user_guide.translate(wanted.selector).strip()
        exactly["selectors"] = _selectors(exactly["selectors"], own)
    if wanted.must_be_enforced and (demand := enforcing(wanted)):
        exactly["selectors"] = _selectors(exactly["selectors"], demand)
    given = map_at(exactly.pop("capacity", {}), "requests")
    amounts = {
        name: amount
        for name, amount in given.items()
        # Without the template's amounts either, a claim takes whole cards.
        if not (wanted.whole and name.removeprefix(f"{names.DRIVER}/") in names.CAPACITIES)
    } | {
        VIRTUAL_OF[name] if wanted.is_virtual else name: text
        for name, text in quantity.texts(wanted.amounts()).items()
    }
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    return exactly


def selector(*, model: str = "", pool: str = "", qos: str = "") -> str:
    """Return the selector of devices in phase Running which satisfy the terms (user guide, 5.6).

    A term that is "" is no condition. Amounts are not part of a selector, because an expression
    sees a device's total capacity and not what is left of it. They go into the claim's
    ``capacity.requests``, which the scheduler counts.

    A device without one of the attributes does not match; looked up without ``.?``, it would stop
    the scheduling of the pod. The guide's ``used_by == ""`` is left out: a shared card is meant to
    have several users, and the scheduler counts what they leave of its capacity.

    Args:
        model: The annotation ``gpu-model``: a short name such as A100, or the product name that
            Tensor Fusion compares, such as NVIDIA A100-SXM4-80GB.
        pool: The annotation ``gpupool``.
        qos: The annotation ``qos``.
    """
    wanted = {
        (names.ATTR_MODEL, names.ATTR_PRODUCT_NAME): model,
        (names.ATTR_POOL_NAME,): pool,
        (names.ATTR_QOS,): qos,
        (names.ATTR_PHASE,): names.PHASE_RUNNING,
    }
    terms = [
        " || ".join(
            f'{_ATTRIBUTES}.?{name}.orValue("") == {quoted(device.shortened(text))}'
            for name in either
        )
        for either, text in wanted.items()
        if text
    ]
    return " && ".join(f"({term})" if " || " in term else term for term in terms)


def enforcing(wanted: PodRequest) -> str:
    """Return the selector of devices whose node enforces what the pod limits; "" for whole cards.

    A part of a capacity is a limit on it, and a whole card has none.
    """
    enforced = {
        names.CAPACITY_TFLOPS: names.ATTR_ENFORCES_COMPUTE,
        names.CAPACITY_VRAM: names.ATTR_ENFORCES_MEMORY,
    }
    return " && ".join(
        f"{_ATTRIBUTES}.?{enforced[name]}.orValue(false)" for name in wanted.amounts()
    )


def _selectors(existing: list[object], expression: str) -> list[object]:
    """Return the template's own selectors and the generated one.

    The guide's template has the placeholder ``true`` for the generated one.
    """
    kept = [
        entry
        for entry in existing
        if map_at(entry, "cel").get("expression") not in (expression, "true")
    ]
    return [*kept, {"cel": {"expression": expression}}]


def _one_for_each(requests: list[object], first: Json, cards: Sequence[str]) -> list[object]:
    """Return the requests with one for each card; the additional ones follow the first.

    Raises:
        InputError: A name is taken or too long, or the claim would have too many requests.
    """
    others = [{**untyped_json.copied(first), "name": name} for name in cards[1:]]
    taken = {name_of(request): request for request in map(as_map, requests)}
    for other in others:
        name = str(other["name"])
        if taken.get(name, other) != other:
            raise InputError(f"found another request {name!r}, expected the name to be unused")
        for error in name_rules.label("", name):
            raise InputError(f"found {name!r} for a request of one GPU: {error.text}")
    added = [other for other in others if other["name"] not in taken]
    if len(requests) + len(added) > resource_claims.MAX_RESULTS:
        raise InputError(
            f"found {len(requests) + len(added)} requests in the claim, {len(cards)} of them for "
            f"one GPU each, expected at most {resource_claims.MAX_RESULTS}"
        )
    after = requests.index(first) + 1
    return [*requests[:after], *added, *requests[after:]]


def _concerning(entry: object, cards: Sequence[str]) -> object:
    """Extend a constraint or configuration of the first card's request to those of all cards."""
    if not isinstance(entry, dict) or cards[0] not in as_list(entry.get("requests")):
        return entry
    listed = as_list(entry["requests"])
    missing = [name for name in cards if name not in listed]
    after = listed.index(cards[0]) + 1
    return {**entry, "requests": [*listed[:after], *missing, *listed[after:]]}


def _keeping_apart(constraints: list[object], cards: Sequence[str]) -> list[object]:
    """Return the constraints, with one that gives each request a different card.

    Several requests may be allocated shares of one device, so without the constraint they could all
    get the same card.
    """
    for constraint in map(as_map, constraints):
        scope = as_list(constraint.get("requests"))
        if constraint.get("distinctAttribute") == _UNIQUE and (not scope or {*cards} <= {*scope}):
            return [*constraints]
    return [*constraints, {"requests": list(cards), "distinctAttribute": _UNIQUE}]


CLASS: Final = "DeviceClass"
CONFIG_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    CLASS: ("spec", "config"),
    "ResourceClaim": ("spec", "devices", "config"),
    "ResourceClaimTemplate": ("spec", "spec", "devices", "config"),
}
"""Path of the configurations in each kind."""


def errors(
    kind: str, found: Mapping[str, Any], old: Mapping[str, Any], *, hard_needs: str
) -> Iterator[FieldError]:
    """Yield the errors in the parameters of an object.

    Args:
        kind: One of CONFIG_PATHS.
        old: The object that is replaced; empty for a new one. Parameters that it already has pass;
            otherwise nobody could change anything else in the object.
        hard_needs: What isolation hard needs; "" if the nodes' enforcer brings a limiter for it.
    """
    path = CONFIG_PATHS[kind]
    existing = [map_at(config, "opaque").get("parameters") for config in objects_at(old, *path)]
    for index, config in enumerate(objects_at(found, *path)):
        opaque = map_at(config, "opaque")
        if opaque.get("driver") != names.DRIVER or opaque.get("parameters") in existing:
            continue
        where = f"{'.'.join(path)}[{index}].opaque.parameters"
        try:
            parsed = share_policy.parse(opaque.get("parameters"), trusted=kind == CLASS, path=where)
        except ParameterError as error:
            yield from error.errors
            continue
        if kind == CLASS:
            continue
        chosen = f"{where}.isolation"
        if parsed.isolation is Isolation.HARD and hard_needs:
            yield FieldError(chosen, Reason.FORBIDDEN, f"found hard, expected {hard_needs}")
        is_shared = parsed.isolation is Isolation.SHARED
        if is_shared and (named := [*_with_amounts(map_at(found, *path[:-1]), config)]):
            yield FieldError(
                chosen,
                Reason.FORBIDDEN,
                f"found shared and amounts in request {printable.first(named)}, expected "
                f"{isolation.SHARED_NEEDS}",
            )


Classes = Mapping[str, ShareParameters | None]
"""What each DeviceClass says to this driver, by the class's name."""
NO_CLASSES: Final[Classes] = MappingProxyType({})


def below_request(
    claim: Mapping[str, Any], path: str, classes: Classes = NO_CLASSES
) -> Iterator[FieldError]:
    """Yield each limit of a claim, its annotations or its classes that is below its request.

    No node would prepare the claim. Admin access has no limits. Of an allocated claim what it
    consumes is compared, and no alternative that the scheduler did not choose. Before that, an
    amount that a request does not name is not compared: the size of the card is not known here.

    Args:
        path: Of the requests, in the object that has them.
        classes: The DeviceClasses.

    Raises:
        ParameterError, QuantityError: A limit or an amount is malformed.
    """
    requests = resource_claims.every_request(claim)
    every = with_annotations(claim, requests, classes)
    consumed = {
        str(result.get("request")): map_at(result, "consumedCapacity")
        for result in resource_claims.results(claim)
    }
    for name, each in requests:
        limits = merged(every, name)
        is_chosen = not consumed or name in consumed
        has_limits = limits.tflops_limit or limits.vram_limit
        if is_chosen and has_limits and not each.get("adminAccess"):
            asked = parsed_amounts(consumed.get(name) or map_at(each, "capacity", "requests"))
            for capacity, text in share_policy.below_request(limits, asked):
                found = f"request {name}: {capacity} limit: {text}"
                yield FieldError(path, Reason.INVALID, found)


ParametersFor = tuple[frozenset[str], ShareParameters]
"""Parameters, and the requests that they are for; none for all."""


def with_annotations(
    claim: Mapping[str, Any], requests: Iterable[tuple[str, Json]], classes: Classes
) -> list[ParametersFor]:
    """Return the parameters of a claim and its classes, after those that its annotations set.

    Raises:
        ParameterError: They are malformed.
    """
    annotations = review.annotations_of(claim)
    lowest, limits = (
        (frozenset[str](), read(annotations))
        for read in (share_policy.of_annotations, share_policy.limits_of_annotations)
    )
    return [lowest, *parameters(claim, requests, classes, (limits,))]


def parameters(
    claim: Mapping[str, Any],
    requests: Iterable[tuple[str, Json]],
    classes: Classes,
    over: Sequence[ParametersFor] = (),
) -> list[ParametersFor]:
    """Return the parameters of a claim and its classes; those that a later one replaces first.

    Args:
        requests: The claim's, with their alternatives.
        over: What replaces all but those of classes that claims do not override.

    Raises:
        ParameterError: The claim's own are malformed.
    """
    lower: list[ParametersFor] = []
    upper: list[ParametersFor] = []
    for name, each in requests:
        if of_class := classes.get(str(each.get("deviceClassName"))):
            found = upper if of_class.overridable is False else lower
            found.append((frozenset({name}), of_class))
    for config in objects_at(claim, "spec", "devices", "config"):
        opaque = map_at(config, "opaque")
        if opaque.get("driver") == names.DRIVER:
            chosen = frozenset(map(str, as_list(config.get("requests"))))
            lower.append((chosen, share_policy.parse(opaque.get("parameters"), trusted=False)))
    return [*lower, *over, *upper]


def merged(every: Iterable[ParametersFor], request: str) -> ShareParameters:
    """Return the parameters of a request, `request` or `request/subrequest`; later ones win."""
    result, either = ShareParameters(), {request, request.partition("/")[0]}
    for chosen, found in every:
        if not chosen or either & chosen:
            result = found.over(result)
    return result


def parsed_amounts(found: Mapping[str, object]) -> dict[str, Quantity]:
    """Return requested or consumed amounts, by capacity without this driver's name."""
    return {
        name.removeprefix(f"{names.DRIVER}/"): quantity.parse(text) for name, text in found.items()
    }


def _with_amounts(devices: Mapping[str, Any], config: Mapping[str, object]) -> Iterator[str]:
    """Yield the requests of a configuration that name amounts of this driver's cards.

    A request without amounts takes whole cards. The size of a whole card is not known here, so any
    amount counts as a part; a claim for whole cards needs none.
    """
    chosen = set(map(str, as_list(config.get("requests"))))
    for request in map(as_map, as_list(devices.get("requests"))):
        for full_name, wanted in resource_claims.alternatives(request):
            if chosen and not {name_of(request), full_name} & chosen:
                continue
            given = map_at(wanted, "capacity", "requests")
            short = {key.removeprefix(f"{names.DRIVER}/") for key in given}
            if short & names.CAPACITIES and wanted.get("adminAccess") is not True:
                yield full_name
