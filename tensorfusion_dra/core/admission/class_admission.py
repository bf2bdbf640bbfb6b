"""Amounts, and limits, that a DeviceClass names for claims that name none.

Charts and controllers write a class, a count and selectors into claims, but no amounts. So an
administrator writes them into a class:

    metadata: {name: gpu-quarter}
    spec: {config: [{opaque: {driver: ..., parameters: {kind: GpuShare,
           requests: {tflops: "78", vram: 20Gi}}}}]}

Of a new claim's `exactly: {deviceClassName: gpu-quarter, count: 2}` the webhook then makes

    exactly: {deviceClassName: gpu-quarter, count: 2,
              capacity: {requests: {tflops: "78", vram: 20Gi}}}

and a constraint that keeps the cards of the request apart. Amounts that the claim names stay; with
`overridable: false` in the class they are refused. The node reads the class's limits itself
(docs/adr/0063).
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import claim_admission
from tensorfusion_dra.core.admission.claim_admission import Classes
from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.share_policy import ShareParameters
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.device import NO_SCHEDULE
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import (
    quantity,
    releases,
    resource_claims,
    review,
    untyped_json,
)
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.core.kubernetes.untyped_json import (
    as_list,
    as_map,
    is_whole_number,
    map_at,
    name_of,
    objects_at,
)

Item = Mapping[str, Any]
Json = dict[str, Any]

_TOLERATION: Final = {
    "key": names.TAINT_PARTITION,
    "operator": "Exists",
    "effect": NO_SCHEDULE,
}


def keeps_cards_apart(minor: int | None) -> bool:
    """Return True if the scheduler gives each card of a request only once.

    Args:
        minor: The cluster's minor version; None if it is unknown.
    """
    return minor is not None and minor >= releases.DEVICES_ONCE


def of_class(device_class: Item) -> ShareParameters | None:
    """Return the parameters of a DeviceClass for this driver; None if it has none.

    Raises:
        ParameterError: They are malformed.
    """
    found = [
        share_policy.parse(opaque.get("parameters"), trusted=True)
        for config in objects_at(device_class, "spec", "config")
        for opaque in [map_at(config, "opaque")]
        if opaque.get("driver") == names.DRIVER
    ]
    merged = ShareParameters()
    for each in found:
        merged = each.over(merged)
    return merged if found else None


def tolerating(claim: Item, classes: Classes) -> Json:
    """Return the claim with a toleration of the partitions' taint in each request for partitions.

    A request is for partitions if its class sets isolation `partitioned`. A class itself cannot
    tolerate a taint.

    Raises:
        InputError: A request is for several partitions, or the claim for partitions and for other
            GPUs. No container could use them together.
    """
    result: Json = untyped_json.copied(dict(claim))
    kinds: dict[bool, str] = {}
    mains = set()  # a claim gets only one alternative of a request
    for name, each in resource_claims.every_request(result):
        of_class = classes.get(str(each.get("deviceClassName")))
        is_partition = of_class is not None and of_class.isolation is Isolation.PARTITIONED
        is_ours = of_class is not None or each.get("deviceClassName") == names.DEVICE_CLASS
        if is_ours and not each.get("adminAccess"):
            kinds[is_partition] = name
            mains.add(name.partition("/")[0])
            if is_partition and (_count(each) > 1 or each.get("allocationMode") == "All"):
                raise InputError(
                    f"request {name}: found several partitions, expected one: CUDA shows a process "
                    "no more"
                )
        found = as_list(each.get("tolerations"))
        if is_partition and _TOLERATION not in found:
            each["tolerations"] = [*found, _TOLERATION]
    if len(mains) > 1 and len(kinds) > 1:
        raise InputError(
            f"request {kinds[True]}: found a partition beside a GPU in request {kinds[False]}, "
            "expected one kind in a claim: CUDA shows a process a single partition and no other GPU"
        )
    return result


def several(claim: Item, classes: Classes) -> list[str]:
    """Return the requests that ask for several cards of a class with amounts."""
    return [
        name_of(request)
        for request in resource_claims.main_requests(claim)
        if any(_count(each) > 1 for _, each, _ in _shares(request, classes))
    ]


def filled(claim: Item, classes: Classes, apart: Collection[str], *, splits: bool) -> Json:
    """Return the claim with the amounts of its classes in each request that names none.

    Args:
        apart: The requests whose cards have to differ.
        splits: True to make one request for each of their cards, which a scheduler before
            Kubernetes 1.36 needs.

    Raises:
        InputError: A request names an amount that its class forbids, or cannot be split.
    """
    result: Json = untyped_json.copied(dict(claim))
    devices = map_at(result, "spec", "devices")
    for request in [*resource_claims.main_requests(result)]:
        for name, each, of_class in _shares(request, classes):
            _fill(name, each, of_class)
        if (name := name_of(request)) not in apart:
            continue
        assert isinstance(devices, dict)
        cards = 1
        if splits:
            exactly = as_map(request.get("exactly"))
            cards = _count(exactly)
            if not 1 < cards <= resource_claims.MAX_RESULTS:
                raise InputError(
                    f"request {name}: found several GPUs, expected `exactly` with a count of at "
                    f"most {resource_claims.MAX_RESULTS}: before Kubernetes "
                    f"1.{releases.DEVICES_ONCE} each GPU needs a request of its own"
                )
            request["exactly"] = {**exactly, "count": 1}
        claim_admission.keep_apart(devices, request, cards)
    return result


def of_template(template: Item, classes: Classes, old: Item | None = None) -> Item:
    """Return a claim template with the amounts of its classes, for queues such as Kueue.

    An annotation names the added amounts. No constraint keeps several cards of a request apart:
    the template's claims get it when they are filled.

    A stored template's spec cannot change. Whoever applies it again without the added amounts, as
    kubectl and Helm do, gets them again as long as the classes have them.

    Args:
        old: The stored template that this one replaces; empty for a new one.

    Raises:
        InputError: A request names an amount that its class forbids.
    """
    claim = {"spec": map_at(template, "spec", "spec")}
    found = filled(claim, classes, (), splits=False)
    if found == claim or (
        old and _amounts(found) != _amounts({"spec": map_at(old, "spec", "spec")})
    ):
        return template
    annotations = review.annotations_of(template)
    # Of a template that is a copy, or applied again.
    earlier = annotations.get(names.ANNOTATION_FILLED, "").split(",")
    every = (*earlier, *sorted(_amounts(found).keys() - _amounts(claim).keys()))
    text = ",".join(filter(None, dict.fromkeys(every)))
    annotated = {**annotations, names.ANNOTATION_FILLED: text}
    return {
        **template,
        "metadata": {**as_map(template.get("metadata")), "annotations": annotated},
        "spec": {**as_map(template.get("spec")), "spec": found["spec"]},
    }


def outdated(template: Item, classes: Classes) -> Iterator[tuple[str, str]]:
    """Yield each amount of a template that differs from what its class sets now, and the latter.

    Raises:
        InputError: A request names an amount that its class forbids now.
    """
    added = review.annotations_of(template).get(names.ANNOTATION_FILLED, "").split(",")
    claim: Json = untyped_json.copied({"spec": map_at(template, "spec", "spec")})
    before = _amounts(claim)
    for name, each in resource_claims.every_request(claim):
        each["capacity"] = {
            "requests": {
                key: text
                for key, text in map_at(each, "capacity", "requests").items()
                if f"{name}:{key}" not in added
            }
        }
    now = _amounts(filled(claim, classes, (), splits=False))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            yield (
                f"request {key.replace(':', ': ')} {before.get(key, 'none')}",
                f"{now.get(key, 'none')}, which its class has now",
            )


def _amounts(claim: Item) -> dict[str, Quantity]:
    """Return the amounts of a claim by request and capacity: `gpu:vram`, `gpu/first:vram`."""
    return {
        f"{name}:{key}": amount
        for name, each in resource_claims.every_request(claim)
        for key, amount in claim_admission.parsed_amounts(
            map_at(each, "capacity", "requests")
        ).items()
    }


def _fill(name: str, request: Json, of_class: ShareParameters) -> None:
    amounts = of_class.requests or {}
    given = map_at(request, "capacity", "requests")
    own = {key.removeprefix(f"{names.DRIVER}/"): text for key, text in given.items()}
    for key in sorted(own.keys() & names.CAPACITIES) if of_class.overridable is False else ():
        if (allowed := amounts.get(key)) != capacity.rounded_up(key, quantity.parse(own[key])):
            raise InputError(
                f"request {name}: found {key}: {own[key]}, expected {allowed or 'none'}: "
                f"DeviceClass {request.get('deviceClassName')} sets the amounts (overridable: "
                "false)"
            )
    named = {key.removeprefix("virtual_") for key in own}
    missing = {
        key: str(each) for key, each in amounts.items() if key.removeprefix("virtual_") not in named
    }
    request["capacity"] = {**as_map(request.get("capacity")), "requests": {**given, **missing}}


def _count(request: Item) -> int:
    found = request.get("count")
    return found if is_whole_number(found) else 1


def _shares(request: Item, classes: Classes) -> Iterator[tuple[str, Json, ShareParameters]]:
    """Yield name and content of a request, or of its alternatives, whose class has amounts."""
    for name, each in resource_claims.alternatives(request):
        of_class = classes.get(str(each.get("deviceClassName")))
        if of_class and of_class.requests and not each.get("adminAccess"):
            yield name, each, of_class


def named_by_containers(pod: Item, claim: Item, requests: Collection[str]) -> Iterator[FieldError]:
    """Yield the containers of a claim's pod that name one of its requests."""
    entry = review.annotations_of(claim).get(resource_claims.POD_CLAIM_ANNOTATION)
    for path, container in resource_claims.containers_with_paths(pod):
        uses = as_list(as_map(container.get("resources")).get("claims"))
        for index, use in enumerate(map(as_map, uses)):
            if name_of(use) == entry and use.get("request") in requests:
                yield FieldError(
                    f"pod {path}.resources.claims[{index}].request",
                    Reason.INVALID,
                    f"found {use['request']}, which asks for several GPUs, expected none: before "
                    f"Kubernetes 1.{releases.DEVICES_ONCE} each GPU needs a request of its own, "
                    "and a container gets all of them only by the claim's name",
                )
