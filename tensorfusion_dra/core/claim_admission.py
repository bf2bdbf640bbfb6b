"""What becomes of a claim made from Tensor Fusion's template: what its pod asks for goes in."""

import copy
from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.asks import Asks
from tensorfusion_dra.core.cel import selector, translate
from tensorfusion_dra.core.cel.selector import SelectorTerms
from tensorfusion_dra.core.claim import PodRef
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.shapes import as_list, as_map

Json = dict[str, Any]

_VIRTUAL: Final = {
    names.CAPACITY_TFLOPS: names.CAPACITY_VIRTUAL_TFLOPS,
    names.CAPACITY_VRAM: names.CAPACITY_VIRTUAL_VRAM,
}
_PLACEHOLDER: Final = "true"
"""The selector of the guide's template, which stands for the one to come."""
_UNIQUE: Final = f"{names.DRIVER}/{names.ATTR_UUID}"
_UNLIMITED: Final = "0"


def is_labelled(claim: Mapping[str, Any]) -> bool:
    """Whether the claim is one to fill."""
    labels = as_map(as_map(claim.get("metadata")).get("labels"))
    return labels.get(names.LABEL_CLAIM_TEMPLATE) == "true"


def owner(claim: Mapping[str, Any], namespace: str) -> PodRef:
    """The pod for which the claim is made.

    Raises:
        InputError: It is made for no pod.
    """
    for found in as_list(as_map(claim.get("metadata")).get("ownerReferences")):
        reference = as_map(found)
        if (reference.get("apiVersion"), reference.get("kind")) == ("v1", "Pod"):
            name, uid = str(reference.get("name")), str(reference.get("uid"))
            return PodRef(namespace=namespace, name=name, uid=uid)
    raise InputError("found no owner of kind Pod, expected the pod that the claim is for")


def filled(claim: Mapping[str, Any], wanted: Asks, *, pool: str, virtual: bool) -> Json:
    """The claim with the count, the selector, the amounts and the limits that its pod asks for.

    Args:
        wanted: Of the claim's pod.
        pool: The GPUPool for the generated selector; "" for any.
        virtual: The pool's cards are divided by their virtual amounts.

    Raises:
        InputError: The claim has no request that can be filled.
    """
    result = copy.deepcopy(dict(claim))
    devices = as_map(as_map(result.get("spec")).get("devices"))
    request = _own_request(as_list(devices.get("requests")))
    exactly = request["exactly"]
    exactly["allocationMode"] = "ExactCount"
    exactly["count"] = wanted.count
    exactly["selectors"] = _selectors(as_list(exactly.get("selectors")), _expression(wanted, pool))
    amounts = {
        _VIRTUAL[name] if virtual else name: str(amount)
        for name, amount in wanted.amounts().items()
    }
    if amounts:
        capacity = exactly["capacity"] = dict(as_map(exactly.get("capacity")))
        capacity["requests"] = {**as_map(capacity.get("requests")), **amounts}
    if wanted.whole:
        _drop_amounts(exactly)
    if wanted.count > 1:
        _keep_apart(devices, str(request.get("name")))
    metadata = result.setdefault("metadata", {})
    metadata["annotations"] = _annotations(as_map(metadata.get("annotations")), wanted)
    return result


def _own_request(requests: list[object]) -> Json:
    """The first request of our class, else the first one of any class of an administrator's."""
    exact = [r for r in requests if isinstance(r, dict) and isinstance(r.get("exactly"), dict)]
    ours = [r for r in exact if r["exactly"].get("deviceClassName") == names.DEVICE_CLASS]
    for request in (*ours, *exact):
        return request
    raise InputError("found no request with `exactly`, expected one to fill")


def _expression(wanted: Asks, pool: str) -> str:
    if wanted.expression:
        return translate.translate(wanted.expression).strip()
    qos = wanted.share.qos
    terms = SelectorTerms(model=wanted.model, pool=pool, qos=qos.value if qos else None)
    return selector.selector(terms)


def _drop_amounts(exactly: Json) -> None:
    """Leave out the template's amounts: a claim that names none takes whole cards."""
    capacity = as_map(exactly.get("capacity"))
    kept = {
        name: amount
        for name, amount in as_map(capacity.get("requests")).items()
        if name.removeprefix(f"{names.DRIVER}/") not in names.CAPACITIES
    }
    exactly["capacity"] = {**capacity, "requests": kept}
    if not kept:
        del exactly["capacity"]


def _selectors(held: list[object], expression: str) -> list[object]:
    """The template's own selectors hold as well."""
    ours = {"cel": {"expression": expression}}
    kept = [
        entry
        for entry in held
        if entry != ours and as_map(as_map(entry).get("cel")).get("expression") != _PLACEHOLDER
    ]
    return [*kept, ours]


def _keep_apart(devices: Mapping[str, object], request: str) -> None:
    """Shares of one card are devices too, and several GPUs are meant to be several cards."""
    assert isinstance(devices, dict)
    constraints = as_list(devices.get("constraints"))
    for constraint in map(as_map, constraints):
        scope = as_list(constraint.get("requests"))
        if constraint.get("distinctAttribute") == _UNIQUE and (not scope or request in scope):
            return
    devices["constraints"] = [*constraints, {"requests": [request], "distinctAttribute": _UNIQUE}]


def _annotations(held: Mapping[str, object], wanted: Asks) -> Json:
    """The pod's terms over those of the template, so that the node need not read the pod."""
    share = wanted.share
    said = {
        names.ANNOTATION_TFLOPS_LIMIT: share.tflops_limit,
        names.ANNOTATION_VRAM_LIMIT: share.vram_limit,
        names.ANNOTATION_QOS: share.qos,
        names.ANNOTATION_ISOLATION: share.isolation,
    }
    result: Json = {name: str(value) for name, value in said.items() if value is not None}
    # A limit of 0 says nothing, but that it is there says that the pod was asked.
    return {names.ANNOTATION_TFLOPS_LIMIT: _UNLIMITED, **held, **result}
