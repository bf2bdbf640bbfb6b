"""GPUResourceQuota (tensor-fusion.ai/v1): what claims of a namespace may have, each and together.

Each claim is charged these amounts, which have the names of the quota's fields:

- requests.tflops, requests.vram: the sum over its cards; of an oversubscribed card the virtual
  amounts. Once allocated, the claim is charged what it consumes, and a partition as a whole.
- limits.tflops, limits.vram: the limits that the claim sets, else what it requests.
- workers: 1.

A new claim has to name each amount that the quota limits, as in Kubernetes' own ResourceQuota. A
claim for a whole card does not: how much it takes is known only when the scheduler has chosen one.
Where limits are limited, the claim has to set its own: for a claim that sets none, the node takes
the limits that its pods' annotations set, which no quota sees (core/claims/share_policy.py).

`spec.single` limits the requests and limits of each card of a claim, and the number of its cards,
and has amounts for pods that name none. As in Tensor Fusion, an amount of 0 in it is unset.

Example: of `total.requests.tflops: 100`, claim a has 50 and claim b has 30. Claim c, which requests
10 for each of two cards, is admitted. Then a claim of 5 is refused: 100 of 100 are taken by a (50),
b (30), c (20).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.admission import claim_admission
from tensorfusion_dra.core.admission.claim_admission import NO_CLASSES, Classes, ParametersFor
from tensorfusion_dra.core.claims import device_status, share_policy
from tensorfusion_dra.core.claims.share_policy import ParameterError
from tensorfusion_dra.core.devices.capacity import NONE, VIRTUAL_OF
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes import quantity, resource_claims, review
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.core.kubernetes.untyped_json import as_map, is_whole_number, map_at

WORKERS: Final = "workers"

# Default amounts: the pod's annotation, and the one that names a percentage instead.
_DEFAULTS: Final = (
    (
        *("defaultRequests", names.CAPACITY_TFLOPS, names.ANNOTATION_TFLOPS_REQUEST),
        names.ANNOTATION_COMPUTE_PERCENT_REQUEST,
    ),
    (
        *("defaultRequests", names.CAPACITY_VRAM, names.ANNOTATION_VRAM_REQUEST),
        names.ANNOTATION_VRAM_PERCENT_REQUEST,
    ),
    (
        *("defaultLimits", names.CAPACITY_TFLOPS, names.ANNOTATION_TFLOPS_LIMIT),
        names.ANNOTATION_COMPUTE_PERCENT_LIMIT,
    ),
    ("defaultLimits", names.CAPACITY_VRAM, names.ANNOTATION_VRAM_LIMIT, ""),
)
_UNSET: Final = ("", "0")

Item = Mapping[str, Any]
Amounts = dict[str, Quantity]


def _shares(every: Iterable[list[tuple[Amounts, int]]]) -> list[Amounts]:
    """Return the amounts of each request; one that is not known in advance is missing."""
    found = []
    for options in every:
        known = [name for name in options[0][0] if all(name in each for each, _ in options)]
        # The scheduler may take any of them, so the largest amounts count.
        found.append(
            {
                name: max(
                    Quantity(each[name].nano * count, each[name].family) for each, count in options
                )
                for name in known
            }
        )
    return found


def _options(claim: Item, classes: Classes) -> Iterator[list[tuple[Amounts, int]]]:
    """Yield the alternatives of each request: what one card is charged, and the number of cards."""
    try:
        every = claim_admission.with_annotations(
            claim, resource_claims.every_request(claim), classes
        )
    except ParameterError:
        every = []  # no node prepares this claim
    for alternatives in _cards(claim, classes):
        yield [
            (_charged(amounts, {**amounts, **_limits(every, request, amounts)}), count)
            for request, amounts, count in alternatives
        ]


def _charged(requests: Amounts, limits: Amounts) -> Amounts:
    return {
        **{f"requests.{name}": amount for name, amount in requests.items()},
        **{f"limits.{name}": amount for name, amount in limits.items()},
    }


def sums(found: Iterable[Amounts]) -> Amounts:
    """Return the sum of each amount."""
    result: Amounts = {}
    for amounts in found:
        for name, amount in amounts.items():
            result[name] = result[name] + amount if name in result else amount
    return result


def counted(claim: Item, classes: Classes = NO_CLASSES) -> Amounts:
    """Return what the claim is charged; empty if it has none of this driver's cards.

    Args:
        classes: The DeviceClasses; one with parameters for this driver counts as its own.
    """
    return _counted(_shares(_options(claim, classes)))


def _counted(found: list[Amounts]) -> Amounts:
    return {**sums(found), WORKERS: Quantity.whole(1)} if found else {}


def totals(quota: Item) -> Amounts:
    """Return the most that all claims may have, by amount; one that is not set has no limit."""
    found = _limited(quota, "total", requests="requests", limits="limits")
    workers = map_at(quota, "spec", "total").get("maxWorkers")
    return found if workers is None else {**found, WORKERS: quantity.parse(workers)}


def _limited(quota: Item, scope: str, **fields: str) -> Amounts:
    found = map_at(quota, "spec", scope)
    return {
        f"{field}.{name}": quantity.parse(as_map(found.get(key))[name])
        for field, key in fields.items()
        for name in VIRTUAL_OF
        if name in as_map(found.get(key))
    }


def defaults(quotas: Iterable[Item], annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that quotas add to a pod, for the amounts that it does not name."""
    return {
        annotation: str(amounts[name])
        for quota in quotas
        for field, name, annotation, percent in _DEFAULTS
        for amounts in [map_at(quota, "spec", "single", field)]
        if str(amounts.get(name, "")) not in _UNSET
        and annotations.get(annotation, "") in _UNSET
        and annotations.get(percent, "") in _UNSET
    }


def refusals(
    quota: Item,
    claim: Item,
    others: Mapping[str, Amounts],
    old: Item | None = None,
    *,
    classes: Classes = NO_CLASSES,
    names_others: bool = True,
) -> Iterator[str]:
    """Yield why the quota does not admit a new claim, or a change of one.

    Args:
        others: What the namespace's other claims are charged, by the claim's name.
        old: The claim before the change. What it had already is not refused, as the claims may
            have more than a newer quota.
        classes: As of counted().
        names_others: Whether the reader may learn what they have.

    Raises:
        ParameterError: An annotation of the claim is malformed. A node would not follow it, so that
            a running share keeps what it has.
    """
    share_policy.of_annotations(review.annotations_of(claim))
    options = list(_options(claim, classes))
    requested, before = _shares(options), counted(old or {}, classes)
    asked = _counted(requested)
    subject = f"GPUResourceQuota {quota['metadata']['name']}"
    try:
        limited = totals(quota)
        singles = _limited(quota, "single", requests="maxRequests", limits="maxLimits")
    except DriverError as error:
        yield f"{subject}: spec: {error}"
        return
    singles = {name: amount for name, amount in singles.items() if amount.nano}
    cards = sum(max(count for _, count in each) for each in options)
    most_cards = map_at(quota, "spec", "single").get("maxGPUCount")
    if not old and is_whole_number(most_cards) and cards > most_cards:
        yield f"{subject}: maxGPUCount: found {cards} GPUs, expected at most {most_cards}"
    for amount in limited | singles:
        if amount != WORKERS and any(amount not in each for each in requested):
            name = amount.partition(".")[2]
            yield f"{subject}: {amount}: found a request without {name}, expected its amount"
            continue
        field, _, name = amount.partition(".")
        if field == "limits" and not _sets_limit(claim, name, classes):
            yield (
                f"{subject}: {amount}: found no limit in the claim, expected one in its parameters "
                f"or its annotation {names.ANNOTATION_PREFIX}{name}-limit"
            )
            continue
        if amount in before and asked[amount] <= before[amount]:
            continue
        if amount in singles:
            one, most = max(each[amount] for of in options for each, _ in of), singles[amount]
            if one > most:
                yield f"{subject}: {amount}: found {one} of one GPU, expected at most {most}"
        if amount not in limited:
            continue
        most = limited[amount]
        having = {name: each[amount] for name, each in others.items() if each.get(amount)}
        used = sum(having.values(), Quantity(0, most.family))
        if used + asked[amount] > most:
            rest = "what the namespace's other claims leave"
            if names_others:
                left = max(most - used, Quantity(0))
                rest = f"{left}: {used} of {most} are taken{_names(having)}"
            yield f"{subject}: {amount}: found {asked[amount]}, expected at most {rest}"


def _names(having: Amounts) -> str:
    """Return the claims that have most, with their amounts; "" if there are none."""
    ordered = sorted(having, key=lambda name: (-having[name].nano, name))
    shown = printable.first([f"{name} ({having[name]})" for name in ordered])
    return f" by {shown}" if shown else ""


def _cards(claim: Item, classes: Classes) -> Iterator[list[tuple[str, Amounts, int]]]:
    """Yield the alternatives of each request: its name, a card's amounts, the number of cards.

    What is allocated has one.
    """
    allocated = resource_claims.results(claim)
    for result in allocated:
        if result.get("driver") == names.DRIVER and not result.get("adminAccess"):
            yield [(str(result.get("request")), _allocated(claim, result), 1)]
    if allocated:
        return
    for request in resource_claims.main_requests(claim):
        options = []
        for full_name, each in resource_claims.alternatives(request):
            of_class = str(each.get("deviceClassName"))
            is_ours = of_class in names.OWN_CLASSES or classes.get(of_class) is not None
            if is_ours and not each.get("adminAccess"):
                found = (
                    resource_claims.MAX_RESULTS
                    if each.get("allocationMode") == "All"
                    else each.get("count")
                )
                count = found if is_whole_number(found) else 1
                options.append((full_name, _amounts(map_at(each, "capacity", "requests")), count))
        if options:
            yield options


def _allocated(claim: Item, result: Item) -> Amounts:
    """Return what a claim is charged for an allocated device.

    An exclusive device is charged whole once the node has written its amounts into the claim's
    status, until then as the claim requests it.
    """
    every, request = dict(resource_claims.every_request(claim)), str(result.get("request"))
    asked = map_at(every, request, "capacity", "requests")
    return _amounts(device_status.consumed(claim, result) or asked)


def _amounts(found: Item) -> Amounts:
    """Return TFLOPS and memory of a card; of a virtual and a physical amount the larger one."""
    given = claim_admission.parsed_amounts(found)
    return {
        # A negative amount gets the least share, and must not offset what other claims have.
        name: max(NONE, *(given[each] for each in (name, virtual) if each in given))
        for name, virtual in VIRTUAL_OF.items()
        if name in given or virtual in given
    }


def _limits(
    every: Iterable[ParametersFor], request: str, requests: Mapping[str, Quantity] = {}
) -> Amounts:
    """Return the limits that parameters set for each card of a request, at least what it requests.

    A node refuses a lower one, and the limit of a running share stays.
    """
    found = claim_admission.merged(every, request)
    limits = {names.CAPACITY_TFLOPS: found.tflops_limit, names.CAPACITY_VRAM: found.vram_limit}
    return {
        name: max(limit, requests.get(name, limit))
        for name, limit in limits.items()
        if limit is not None
    }


def _sets_limit(claim: Item, name: str, classes: Classes) -> bool:
    """Return True if no annotation of a pod can set this limit of any of the claim's requests.

    Raises:
        ParameterError: The claim's parameters are malformed.
    """
    every = claim_admission.parameters(claim, resource_claims.every_request(claim), classes)
    requests = (request for options in _cards(claim, classes) for request, _, _ in options)
    return bool(names.SHARE_ANNOTATIONS & review.annotations_of(claim).keys()) or all(
        name in _limits(every, request) for request in requests
    )
