"""Trial of a pod on every node: whether its claims get devices, and why each device is rejected.

Whether they do is decided by the allocation itself. Only for a node without a solution each of its
devices is checked again, in the order of the search, to name the first check that it fails, in more
detail than the search keeps: the part of a selector, the capacity, the taint.

Example: a pod requests vram 20Gi. node-01 has two cards: of gpu-0 30Gi of 40Gi are taken, gpu-1 is
tainted. The outcome of node-01 is "cannot allocate all claims", with the rejections "vram 30Gi of
40Gi taken, 20Gi more do not fit" and "tainted tensor-fusion.ai/unhealthy=xid".
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import syntax
from tensorfusion_dra.core.cel.syntax import CelError, Lookup, Term
from tensorfusion_dra.core.kubernetes import node_fit, resource_claims
from tensorfusion_dra.scheduling import allocation, cel_evaluation, devices
from tensorfusion_dra.scheduling.allocation import Cluster, NoFitError
from tensorfusion_dra.scheduling.cel_evaluation import CelCompileError, CelRunError
from tensorfusion_dra.scheduling.devices import (
    Cause,
    DeviceId,
    Holder,
    PublishedDevice,
    PublishedSlice,
    Rejection,
    SchedulingError,
    Usage,
    Wanted,
)

Document = Mapping[str, Any]
_PoolKey = tuple[str, str]

_MISSING: Final = "missing"


def rejection_of(
    wanted: Wanted, device: PublishedDevice, found: Cluster, used: Usage
) -> Rejection | None:
    """Return why a device cannot be allocated to a request; None if it can.

    An unhealthy device of this driver has a taint and another `phase`. A selector on the phase
    comes first, but the reason is the taint, so the other checks come before it here.

    Raises:
        CelCompileError: A selector of the class or the request does not compile.
        SchedulingError: An amount is negative, or cannot be rounded to the step of its capacity.
    """
    if device.uses_counters:
        return Rejection(
            cause=Cause.UNSUPPORTED,
            subject="consumesCounters",
            text="uses consumesCounters, which is not supported",
        )
    taint = wanted.repelling_taint(device)
    beside = f" (tainted {taint})" if taint else ""
    if used.is_exclusive(device.id) and not wanted.is_admin:
        text = f"in use exclusively{beside}"
        return Rejection(cause=Cause.EXCLUSIVE, subject="in use", text=text, beside=beside)
    phase: Rejection | None = None
    for expression in (*found.classes[wanted.device_class].selectors, *wanted.selectors):
        for failed in _failed(expression, device, found.release):
            if not (_is_unhealthy(device) and _reads_phase(failed)):
                return failed
            phase = phase or failed
    if short := devices.shortage(wanted.amounts, device, used.taken(device.id), found.release):
        if devices.shortage(wanted.amounts, device, {}, found.release):
            beside = ""  # too small even without its other shares and its taint
        return replace(short, text=short.text + beside, beside=beside)
    if taint:
        return Rejection(cause=Cause.TAINT, subject=str(taint), text=f"tainted {taint}")
    return phase


def is_of_class(wanted: Wanted, device: PublishedDevice, found: Cluster) -> bool:
    """Return True if the class of a request selects a device.

    A device that the class excludes, such as a network card for a request of GPUs, is no candidate
    and needs no reason. One that it excludes only by its phase is unhealthy, and counts.

    Raises:
        CelCompileError: A selector of the class does not compile.
    """
    return all(
        _is_unhealthy(device) and _reads_phase(failed)
        for expression in found.classes[wanted.device_class].selectors
        for failed in _failed(expression, device, found.release)
    )


def _failed(expression: str, device: PublishedDevice, release: int) -> Iterator[Rejection]:
    """Yield the smallest parts of a selector that exclude the device."""
    term = _term(expression)
    if term is not None:
        yield from failed_terms(term, device, release)
    elif not cel_evaluation.selector(expression).matches(device, release=release):
        yield Rejection(cause=Cause.SELECTOR, subject=expression, text=expression)


def _is_unhealthy(device: PublishedDevice) -> bool:
    return any(taint.key == names.TAINT_UNHEALTHY for taint in device.taints)


def _reads_phase(failed: Rejection) -> bool:
    """Return True if the failed part of a selector depends on the device's phase alone."""
    term = _term(failed.subject)
    return term is not None and {each.name for each in term.lookups} == {names.ATTR_PHASE}


@lru_cache(maxsize=256)
def _term(expression: str) -> Term | None:
    """Return the parts of an expression; None if only Kubernetes' own parser can read it."""
    try:
        return syntax.terms(expression)
    except CelError:
        return None


def result(term: Term, device: PublishedDevice, release: int) -> bool | CelRunError:
    """Return whether a part of a selector is true for a device, or its error.

    Args:
        release: Minor version of Kubernetes.
    """
    try:
        return cel_evaluation.selector(term.expression).matches(device, release=release)
    except CelRunError as error:
        return error


def failed_terms(term: Term, device: PublishedDevice, release: int) -> Iterator[Rejection]:
    """Yield the smallest parts that make a term not true."""
    outcome = result(term, device, release)
    if outcome is True:
        return
    failing = [found for part in term.parts for found in failed_terms(part, device, release)]
    if term.operator in ("&&", "||") and failing:
        yield from failing
        return
    why = f": {outcome}" if isinstance(outcome, CelRunError) else ""
    found = [f"{lookup.name} {_value(lookup, device)}" for lookup in term.lookups]
    yield Rejection(
        cause=Cause.SELECTOR,
        subject=term.text,
        text=term.text + why + (f" ({', '.join(found)})" if found else ""),
    )


def values(lookup: Lookup, devices: Sequence[PublishedDevice]) -> Counter[str]:
    """Return the number of devices by value of an attribute or capacity."""
    return Counter(_value(lookup, device) for device in devices)


def _value(lookup: Lookup, device: PublishedDevice) -> str:
    qualified = f"{lookup.domain}/{lookup.name}"
    if lookup.map == syntax.ATTRIBUTES:
        attribute = device.attribute(qualified)
        return _MISSING if attribute is None else _shown(attribute.value)
    capacity = device.capacity.get(qualified)
    if capacity is None and lookup.domain == device.id.driver:
        capacity = device.capacity.get(lookup.name)
    return _MISSING if capacity is None else str(capacity.value)


def _shown(value: str | int | bool | tuple[str | int | bool, ...]) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if value == "" else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCard:
    """A device of a node, for a pod that does not fit there.

    Attributes:
        rejections: By the name of each request whose class selects the device; None if the device
            passes every check of the request.
        note: Last reason of the allocation for rejecting the device; "" for none.
    """

    device: PublishedDevice
    rejections: Mapping[str, Rejection | None]
    holders: Sequence[Holder]
    note: str = ""

    @property
    def passes(self) -> bool:
        """Return True if the device passes every check of at least one request."""
        return any(found is None for found in self.rejections.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """Result of the trial on one node.

    Attributes:
        refusal: Reason apart from free devices for which the node is unfit; "" for none.
        error: Error that stops the scheduling of the pod on every node; "" for none.
        picked: The devices that the claims would get; None if they get none here.
        cards: Devices of the node that a request's class selects, if the claims get none here.
        reasons: Pools of the node that are not used at present, with the reason.
    """

    name: str
    refusal: str = ""
    error: str = ""
    picked: tuple[DeviceId, ...] | None = None
    cards: tuple[TriedCard, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Return True if the pod could be bound to the node now."""
        return self.picked is not None

    @property
    def picked_names(self) -> str:
        """Names of the devices that the claims would get, with commas; "" for none."""
        return ", ".join(dict.fromkeys(device.device for device in self.picked or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A pod and its claims.

    Attributes:
        claims: All of its claims; those with an allocation keep it.
    """

    pod: Document
    claims: Sequence[Document]

    @property
    def waiting(self) -> list[Document]:
        """The claims without an allocation."""
        return [claim for claim in self.claims if not _allocation(claim)]


class NodeClusters:
    """Parts of a cluster, each relevant to one node.

    An allocation reads every slice and every claim. For all nodes of a large cluster that takes the
    square of its size, so each node gets a cluster with only the pools it can reach and the claims
    on their devices.
    """

    def __init__(self, whole: Cluster) -> None:
        self.whole: Final = whole
        self._pools: Final[dict[str, set[_PoolKey]]] = {}
        self._slices: Final[dict[_PoolKey, list[PublishedSlice]]] = {}
        self._claims: Final[dict[_PoolKey, list[Document]]] = {}
        for item in whole.slices:
            key = item.driver, item.pool
            # Keyed by "" for slices of several nodes.
            self._pools.setdefault(item.node_name, set()).add(key)
            self._slices.setdefault(key, []).append(item)
        for claim in whole.claims:
            results = resource_claims.results(claim)
            for key in {(result["driver"], result["pool"]) for result in results}:
                self._claims.setdefault(key, []).append(claim)

    def at(self, node_name: str) -> Cluster:
        """Return the cluster with all slices of the node's pools and all claims on them."""
        keys = sorted(self._pools.get(node_name, set()) | self._pools.get("", set()))
        # A pool can have slices of other nodes: whether it is complete depends on these, too.
        slices = tuple(item for key in keys for item in self._slices[key])
        claims = {id(claim): claim for key in keys for claim in self._claims.get(key, ())}
        return replace(self.whole, slices=slices, claims=tuple(claims.values()))


def outcomes(trial: Trial, clusters: NodeClusters, nodes: Iterable[Document]) -> list[NodeOutcome]:
    """Return the outcome of each node, in the order of their names."""
    by_name = {str(node["metadata"]["name"]): node for node in nodes}
    return [outcome(trial, clusters.at(name), node) for name, node in sorted(by_name.items())]


def outcome(trial: Trial, near: Cluster, node: Document) -> NodeOutcome:
    """Return the outcome of one node.

    Args:
        near: Slices of the pools that this node reaches, and claims on their devices.
    """
    name = str(node["metadata"]["name"])
    try:
        refusal = _refusal(trial, node)
        if refusal:
            return NodeOutcome(name=name, refusal=refusal)
        found = allocation.allocate(trial.waiting, near, node)
    except NoFitError as error:
        return _unfit(name, trial, near, node, error)
    except SchedulingError as error:
        return NodeOutcome(name=name, error=str(error))
    return NodeOutcome(name=name, picked=tuple(pick.device.id for picks in found for pick in picks))


def wanted_devices(claims: Iterable[Document]) -> Iterator[tuple[str, Wanted]]:
    """Yield every request of the claims, with its name, and each alternative of it.

    Requests that ask for the same have one entry, by the name of the first.
    """
    seen: list[Wanted] = []
    for claim in claims:
        for alternatives in devices.claim_of(claim).requests:
            for wanted in alternatives:
                if not any(_is_alike(wanted, earlier) for earlier in seen):
                    seen.append(wanted)
                    yield f"{claim['metadata'].get('name', '')}/{wanted.name}", wanted


def alternatives(claims: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    """Yield, for every request of the claims, the names that its alternatives have above."""
    named = list(wanted_devices(claims))
    for claim in claims:
        for request in devices.claim_of(claim).requests:
            yield tuple(
                next(name for name, earlier in named if _is_alike(wanted, earlier))
                for wanted in request
            )


def _is_alike(one: Wanted, other: Wanted) -> bool:
    """Return True if two requests ask for the same, whatever their names and counts."""
    return replace(one, name=other.name, main=other.main, count=other.count) == other


def number_of_devices(claims: Iterable[Document]) -> int | None:
    """Return how many devices the claims request; None if a request takes all that match.

    Of alternatives, the first one counts.
    """
    counts = [
        alternatives[0].count
        for claim in claims
        for alternatives in devices.claim_of(claim).requests
    ]
    return None if None in counts else sum(count or 0 for count in counts)


def number_of_cards(claims: Iterable[Document]) -> int:
    """Return the number of different devices that the claims need on a node.

    That is the largest count of a request, or the sum over requests that a distinctAttribute names.
    """
    most = 0
    for spec in map(devices.claim_of, claims):
        counts = {each[0].main: each[0].count or 1 for each in spec.requests}
        apart = [
            sum(counts.get(name, 0) for name in each.get("requests") or counts)
            for each in spec.constraints
            if each.get("distinctAttribute")
        ]
        most = max([most, *counts.values(), *apart])
    return most


def _refusal(trial: Trial, node: Document) -> str:
    """Return why the node is unfit apart from its free devices; "" if it is fit.

    Raises:
        SchedulingError: The nodeSelector of a claim's allocation is malformed.
    """
    refusal = node_fit.refusal(trial.pod, node)
    if refusal:
        return refusal
    for claim in trial.claims:
        selector = _allocation(claim).get("nodeSelector")
        if selector is not None and not devices.selects_node(selector, node):
            return f"claim {claim['metadata']['name']} is allocated on another node"
        if pending := ", ".join(resource_claims.pending_conditions(claim)):
            return f"claim {claim['metadata']['name']} waits for the condition {pending}"
    return ""


def _allocation(claim: Document) -> Document:
    return (claim.get("status") or {}).get("allocation") or {}


def _unfit(
    name: str, trial: Trial, near: Cluster, node: Document, error: NoFitError
) -> NodeOutcome:
    used, held = devices.usage_of(near.claims), devices.holders(near.claims)
    wanted = list(wanted_devices(trial.waiting))
    reachable = devices.gather(near.slices, node)
    try:
        cards = tuple(
            TriedCard(
                device=device,
                rejections={
                    request: rejection_of(asked, device, near, used) for request, asked in of_class
                },
                holders=tuple(held.get(device.id, ())),
                note=error.devices.get(str(device.id), ""),
            )
            for pool in reachable
            for device in pool.devices
            if (
                of_class := [
                    (request, asked)
                    for request, asked in wanted
                    if is_of_class(asked, device, near)
                ]
            )
        )
    except (CelCompileError, SchedulingError) as broken:
        return NodeOutcome(name=name, error=str(broken))
    return NodeOutcome(
        name=name,
        cards=cards,
        reasons=tuple(f"pool {pool.name}: {pool.reason}" for pool in reachable if pool.reason),
    )
