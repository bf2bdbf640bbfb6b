"""Devices, slices and pools as the allocator reads them, and their use by claims.

Claims use a device exclusively, or by shares of its consumable capacity (KEP-5075).
dynamic-resource-allocation/structured/internal/incubating/consumable_capacity.go, release 1.37.
What depends on the release is in releases.py.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, get_args

from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.errors import DriverError, InputError
from tensorfusion_dra.core.kubernetes import (
    device_rules,
    node_fit,
    quantity,
    releases,
    resource_claims,
)
from tensorfusion_dra.core.kubernetes.node_fit import NodeLabels
from tensorfusion_dra.core.kubernetes.quantity import MILLI, NANO, Quantity

Document = Mapping[str, Any]
Amounts = Mapping[str, Quantity]
_Single = Literal["string", "int", "bool", "version"]
_Listed = Literal["strings", "ints", "bools", "versions"]
AttributeKind = Literal[_Single, _Listed, "unsupported"]
_SINGLE: Final[tuple[_Single, ...]] = get_args(_Single)
_LISTED: Final[tuple[_Listed, ...]] = get_args(_Listed)

_MAX_INT: Final = 2**63 - 1
_UNREPRESENTABLE: Final = "capacity request cannot be represented in the device's range arithmetic"


class SchedulingError(DriverError):
    """An error that stops the scheduling of a pod, because no other node would help."""


class DeviceId(NamedTuple):
    """Identity of a device, unique in the cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(frozen=True, slots=True)
class Attribute:
    """Value of an attribute. Values of different kinds differ, although True == 1 in Python."""

    kind: AttributeKind
    value: str | int | bool | tuple[str | int | bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Rules for requests of a capacity (CapacityRequestPolicy).

    Attributes:
        least: validRange.min; None without a range.
        most: validRange.max.
        valid_values: None without such a list.
    """

    default: Quantity | None = None
    least: Quantity | None = None
    most: Quantity | None = None
    step: Quantity | None = None
    valid_values: tuple[Quantity, ...] | None = None


@dataclass(frozen=True, slots=True)
class PublishedCapacity:
    """One capacity of a device. Without a policy, a claim that does not name it consumes it all."""

    value: Quantity
    policy: Policy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTaint:
    """A taint; repels claims that do not tolerate it, unless its effect is ``None``."""

    key: str
    value: str = ""
    effect: str

    @property
    def repels(self) -> bool:
        """Return True if only claims that tolerate the taint get the device."""
        return self.effect in node_fit.REPELLING

    def __str__(self) -> str:
        return f"{self.key}={self.value}" if self.value else self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDevice:
    """One device of a slice.

    Attributes:
        attributes, capacity: Keyed by the published name, which may lack the driver's domain.
        is_shared: The device may be allocated several times (allowMultipleAllocations).
        uses_counters: The device consumes shared counters, which this allocator does not support.
            Such a device is never allocated, as by a scheduler with that feature off.
        conditions, failures: Conditions of the claim's status that the scheduler waits for before
            it binds a pod, and those for which it gives up (KEP-5007).
        binds_to_node: A claim with the device can be used on one node only.
        node_name, all_nodes, node_selector: Nodes that reach the device; those of its slice unless
            that has perDeviceNodeSelection.
    """

    id: DeviceId
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    capacity: Mapping[str, PublishedCapacity] = field(default_factory=dict)
    is_shared: bool = False
    taints: tuple[PublishedTaint, ...] = ()
    uses_counters: bool = False
    conditions: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    binds_to_node: bool = False
    node_name: str = ""
    all_nodes: bool = False
    node_selector: Document | None = None

    @property
    def is_tainted(self) -> bool:
        """Return True if a taint keeps new claims away."""
        return any(taint.repels for taint in self.taints)

    def attribute(self, name: str) -> Attribute | None:
        """Return the attribute with a fully qualified name, or None.

        The driver's own attributes may be published without its domain.
        """
        domain, _, short = name.partition("/")
        found = self.attributes.get(name)
        if found is None and domain == self.id.driver:
            found = self.attributes.get(short)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSlice:
    """One ResourceSlice.

    Attributes:
        expected_slices: Number of slices that the pool has in this generation.
        node_name: "" unless the slice belongs to one node.
        node_selector: Selects the nodes of the slice; None without a nodeSelector.
        is_per_device: Each device says which nodes reach it.
    """

    name: str
    driver: str
    pool: str
    generation: int
    expected_slices: int
    devices: tuple[PublishedDevice, ...]
    node_name: str = ""
    all_nodes: bool = False
    node_selector: Document | None = None
    is_per_device: bool = False


def slice_of(document: Document) -> PublishedSlice:
    """Parse a ResourceSlice that the API server accepted."""
    spec = document["spec"]
    pool = spec["pool"]
    driver, pool_name = spec["driver"], pool["name"]
    return PublishedSlice(
        name=document["metadata"]["name"],
        driver=driver,
        pool=pool_name,
        generation=pool.get("generation", 0),
        expected_slices=pool["resourceSliceCount"],
        devices=tuple(
            _device(
                DeviceId(driver, pool_name, device["name"]),
                device,
                device if spec.get("perDeviceNodeSelection") else spec,
            )
            for device in spec.get("devices") or ()
        ),
        node_name=spec.get("nodeName") or "",
        all_nodes=bool(spec.get("allNodes")),
        node_selector=spec.get("nodeSelector"),
        is_per_device=bool(spec.get("perDeviceNodeSelection")),
    )


def newest(slices: Iterable[PublishedSlice]) -> Iterator[PublishedDevice]:
    """Yield the devices of each pool's newest generation, sorted by pool and name."""
    of_pool: dict[str, list[PublishedSlice]] = {}
    for item in slices:
        of_pool.setdefault(item.pool, []).append(item)
    for pool in sorted(of_pool):
        generation = max(item.generation for item in of_pool[pool])
        current = (item.devices for item in of_pool[pool] if item.generation == generation)
        yield from sorted(chain.from_iterable(current), key=lambda device: device.id)


def _device(identity: DeviceId, device: Document, selection: Document) -> PublishedDevice:
    """Parse a device.

    Args:
        selection: The device or its slice, which has the fields that select nodes.
    """
    return PublishedDevice(
        id=identity,
        attributes={
            name: _attribute(value) for name, value in (device.get("attributes") or {}).items()
        },
        capacity={
            name: PublishedCapacity(
                quantity.parse(entry["value"]), _policy(entry.get("requestPolicy"))
            )
            for name, entry in (device.get("capacity") or {}).items()
        },
        is_shared=bool(device.get("allowMultipleAllocations")),
        taints=tuple(
            PublishedTaint(key=taint["key"], value=taint.get("value", ""), effect=taint["effect"])
            for taint in device.get("taints") or ()
        ),
        uses_counters=bool(device.get("consumesCounters")),
        conditions=tuple(device.get("bindingConditions") or ()),
        failures=tuple(device.get("bindingFailureConditions") or ()),
        binds_to_node=bool(device.get("bindsToNode")),
        node_name=selection.get("nodeName") or "",
        all_nodes=bool(selection.get("allNodes")),
        node_selector=selection.get("nodeSelector"),
    )


def _attribute(value: Document) -> Attribute:
    for kind in (*_SINGLE, *_LISTED):
        if (found := value.get(kind)) is not None:
            return Attribute(kind, tuple(found) if kind in _LISTED else found)
    return Attribute("unsupported", "")


def _policy(policy: Document | None) -> Policy | None:
    if policy is None:
        return None
    span = policy.get("validRange") or {}
    values = policy.get("validValues")
    return Policy(
        default=_quantity(policy.get("default")),
        least=_quantity(span.get("min")),
        most=_quantity(span.get("max")),
        step=_quantity(span.get("step")),
        valid_values=tuple(quantity.parse(value) for value in values) if values else None,
    )


def _quantity(text: str | None) -> Quantity | None:
    return None if text is None else quantity.parse(text)


def with_rules(rules: Sequence[Document], slices: Sequence[Document]) -> list[Document]:
    """Return the slices with the taints that DeviceTaintRules add, as the scheduler sees them."""
    tainted: list[Document] = []
    for item in slices:
        spec = item["spec"]
        driver, pool = spec["driver"], spec["pool"]["name"]
        devices = [
            {
                **device,
                "taints": [
                    *(device.get("taints") or ()),
                    *device_rules.rule_taints(
                        rules, driver=driver, pool=pool, device=device["name"]
                    ),
                ],
            }
            for device in spec.get("devices") or ()
        ]
        tainted.append({**item, "spec": {**spec, "devices": devices}})
    return tainted


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One pool in its newest generation.

    Attributes:
        devices: In the order in which the search tries them: by slice name, then as published.
        reason: Reason why no device of the pool is allocated; "" if there is none.
        is_incomplete: Slices of this generation are still missing.
    """

    driver: str
    name: str
    devices: tuple[PublishedDevice, ...] = ()
    reason: str = ""
    is_incomplete: bool = False

    @property
    def has_conditions(self) -> bool:
        """Return True if the scheduler waits for conditions of a device."""
        return any(device.conditions for device in self.devices)

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"


def gather(slices: Sequence[PublishedSlice], node: Document) -> list[Pool]:
    """Return the node's pools in the order in which the search tries them: by driver, then by name.

    Pools with devices that have binding conditions come last.

    dynamic-resource-allocation/structured/internal/incubating/pools_incubating.go, release 1.37.

    A pool that is incomplete on this node is left out if other nodes have a newer generation of it.

    Raises:
        SchedulingError: The nodeSelector of a slice is malformed.
    """
    newest: dict[tuple[str, str], list[PublishedSlice]] = {}
    for item in slices:
        near = tuple(device for device in item.devices if _reaches(node, device))
        if not (near if item.is_per_device else _reaches(node, item)):
            continue
        candidate = replace(item, devices=near)
        found = newest.setdefault((candidate.driver, candidate.pool), [])
        if found and candidate.generation < found[0].generation:
            continue
        if found and candidate.generation > found[0].generation:
            found.clear()
        found.append(candidate)
    pools = filter(None, (_pool(found, slices) for found in newest.values()))
    return sorted(pools, key=lambda pool: (pool.has_conditions, pool.driver, pool.name))


def _reaches(node: Document, item: PublishedSlice | PublishedDevice) -> bool:
    if item.node_name:
        return item.node_name == str(node["metadata"]["name"])
    return item.all_nodes or selects_node(item.node_selector, node)


def selects_node(selector: Document | None, node: Document) -> bool:
    """Return True if a NodeSelector of a slice or an allocation selects the node.

    Raises:
        SchedulingError: The selector is malformed: the API server accepts ``Gt`` and ``Lt`` with a
            value that is not a number.
    """
    try:
        return node_fit.selects(selector, NodeLabels.of(node))
    except InputError as error:
        raise SchedulingError(f"node selector: {error}") from error


def _pool(found: list[PublishedSlice], everywhere: Iterable[PublishedSlice]) -> Pool | None:
    first = found[0]
    if len(found) != first.expected_slices:
        same_pool = [
            other
            for other in everywhere
            if (other.driver, other.pool) == (first.driver, first.pool)
        ]
        if any(other.generation > first.generation for other in same_pool):
            return None
        present = sum(other.generation == first.generation for other in same_pool)
        if present != first.expected_slices:
            return Pool(
                driver=first.driver,
                name=first.pool,
                reason=f"{present} of {first.expected_slices} slices",
                is_incomplete=True,
            )
    ordered = sorted(found, key=lambda member: member.name)
    devices = tuple(chain.from_iterable(member.devices for member in ordered))
    for name, count in Counter(device.id.device for device in devices).items():
        if count > 1:
            return Pool(
                driver=first.driver, name=first.pool, reason=f"duplicate device name {name}"
            )
    return Pool(driver=first.driver, name=first.pool, devices=devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request, or one of its alternatives (subrequests).

    Attributes:
        name: ``main`` or ``main/sub``.
        main: The request's own name.
        count: Number of devices; None for all that match.
        amounts: Requested amount of each capacity that the request names.
        derives_attributes: It computes attributes for constraints, which needs a feature gate that
            is off by default, and which this allocator does not support.
    """

    name: str
    main: str
    device_class: str
    count: int | None = 1
    selectors: tuple[str, ...] = ()
    amounts: Mapping[str, Quantity] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    is_admin: bool = False
    derives_attributes: bool = False

    def repelling_taint(self, device: PublishedDevice) -> PublishedTaint | None:
        """Return the first taint that keeps the request from the device; None if there is none."""
        for taint in device.taints:
            if taint.repels and not node_fit.tolerated(asdict(taint), self.tolerations):
                return taint
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSpec:
    """Requests and constraints of one claim.

    Attributes:
        text: Namespace and name, for error texts.
        requests: Alternatives of each request; the search takes the first that fits.
    """

    text: str
    requests: tuple[tuple[Wanted, ...], ...]
    constraints: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """One DeviceClass."""

    name: str
    selectors: tuple[str, ...] = ()
    config: tuple[Mapping[str, Any], ...] = ()


def class_of(document: Mapping[str, Any]) -> DeviceClass:
    """Parse a DeviceClass."""
    spec = document.get("spec") or {}
    return DeviceClass(
        name=document["metadata"]["name"],
        selectors=_expressions(spec.get("selectors") or ()),
        config=tuple(spec.get("config") or ()),
    )


def claim_of(document: Mapping[str, Any]) -> ClaimSpec:
    """Parse the spec of a ResourceClaim.

    Raises:
        SchedulingError: A request is of a type that this allocator does not know.
    """
    metadata = document["metadata"]
    devices = (document.get("spec") or {}).get("devices") or {}
    text = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return ClaimSpec(
        text=text,
        requests=tuple(_alternatives(text, entry) for entry in devices.get("requests") or ()),
        constraints=tuple(devices.get("constraints") or ()),
    )


def _alternatives(claim: str, request: Mapping[str, Any]) -> tuple[Wanted, ...]:
    main = request["name"]
    if request.get("exactly"):
        return (_wanted(main, main, request["exactly"]),)
    if request.get("firstAvailable"):
        return tuple(
            _wanted(f"{main}/{sub['name']}", main, sub) for sub in request["firstAvailable"]
        )
    raise SchedulingError(f"resource claim {claim}, request {main}: unknown request type")


def _wanted(name: str, main: str, request: Mapping[str, Any]) -> Wanted:
    amounts = (request.get("capacity") or {}).get("requests") or {}
    return Wanted(
        name=name,
        main=main,
        device_class=request["deviceClassName"],
        count=None if request.get("allocationMode") == "All" else request.get("count") or 1,
        selectors=_expressions(request.get("selectors") or ()),
        amounts={key: quantity.parse(text, is_capped=False) for key, text in amounts.items()},
        tolerations=tuple(request.get("tolerations") or ()),
        is_admin=bool(request.get("adminAccess")),
        derives_attributes=bool(request.get("derivedAttributes")),
    )


def _expressions(selectors: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(selector["cel"]["expression"] for selector in selectors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One share of a device, or a device that a claim has exclusively.

    Attributes:
        claim: Name of the claim.
        request: Name of the request in the claim.
        consumers: Names of the pods that the claim is reserved for, and of others with their kind,
            such as podgroups/train; empty if nothing uses it.
        amounts: Consumed amount of each capacity; None if the claim has the device exclusively.
        used: What its processes use, as the claim's status has it; {} if it does not say it.
        change: What came of a change of its limits: the condition in the claim's status; {} if
            there was none.
        is_admin: The claim only observes the device (adminAccess), and takes nothing of it.
    """

    namespace: str
    claim: str
    request: str
    consumers: tuple[str, ...]
    amounts: Mapping[str, Quantity] | None
    is_admin: bool = False
    used: Mapping[str, Any] = field(default_factory=dict)
    change: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Names of its pods with their namespace, or of the claim if no pod uses it."""
        if self.consumers:
            return ", ".join(f"{self.namespace}/{name}" for name in self.consumers)
        return f"claim {self.namespace}/{self.claim} (used by no pod)"


class Usage:
    """Devices in use. A search adds the devices that it tries, and removes them to go back."""

    def __init__(self) -> None:
        self._exclusive: set[DeviceId] = set()
        self._taken: dict[DeviceId, dict[str, Quantity]] = {}

    def is_exclusive(self, device: DeviceId) -> bool:
        """Return True if a claim has the device exclusively."""
        return device in self._exclusive

    def is_shared(self, device: DeviceId) -> bool:
        """Return True if a claim has a share of the device."""
        return device in self._taken

    def taken(self, device: DeviceId) -> Amounts:
        """Return the sum of all shares of the device, by capacity."""
        return self._taken.get(device, {})

    def add(self, device: DeviceId, holder: Holder) -> None:
        """Add the holder of a share, or of the whole device."""
        if holder.amounts is not None and not holder.is_admin:
            self.take(device, holder.amounts)
        elif not holder.is_admin:
            self._exclusive.add(device)

    def take(self, device: DeviceId, amounts: Amounts) -> None:
        """Add a share of the device."""
        sums = self._taken.setdefault(device, {})
        for name, amount in amounts.items():
            sums[name] = sums[name] + amount if name in sums else amount

    def give_back(self, device: DeviceId, amounts: Amounts) -> None:
        """Remove a share that was added."""
        self.take(device, {name: Quantity(-amount.nano) for name, amount in amounts.items()})


def usage_of(claims: Iterable[Mapping[str, Any]]) -> Usage:
    """Return the usage of a cluster's claims; devices with admin access do not count.

    pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go.
    """
    usage = Usage()
    for device, tenants in holders(claims).items():
        for holder in tenants:
            usage.add(device, holder)
    return usage


def holders(claims: Iterable[Mapping[str, Any]]) -> dict[DeviceId, list[Holder]]:
    """Return the holders of each device, in the order of the claims."""
    found: dict[DeviceId, list[Holder]] = {}
    for claim in claims:
        metadata, status = claim["metadata"], claim.get("status") or {}
        consumers = tuple(
            entry["name"]
            if entry.get("resource") in {None, "pods"}
            else f"{entry['resource']}/{entry['name']}"
            for entry in status.get("reservedFor") or ()
        )
        entries = {device_status.key(each): each for each in status.get("devices") or ()}
        for result in resource_claims.results(claim):
            device = DeviceId(result["driver"], result["pool"], result["device"])
            amounts = result.get("consumedCapacity") or {}
            entry = entries.get(device_status.key(result)) or {}
            found.setdefault(device, []).append(
                Holder(
                    namespace=str(metadata.get("namespace", "")),
                    claim=str(metadata["name"]),
                    request=str(result.get("request", "")),
                    consumers=consumers,
                    amounts={name: quantity.parse(text) for name, text in amounts.items()}
                    if result.get("shareID")
                    else None,
                    is_admin=bool(result.get("adminAccess")),
                    used=(entry.get("data") or {}).get("used") or {},
                    change=device_status.condition(entry, device_status.CONDITION_CHANGED),
                )
            )
    return found


class Cause(StrEnum):
    """Check that a device did not pass."""

    SELECTOR = "selector"
    CAPACITY = "capacity"
    """Too little is free."""
    AMOUNT = "amount"
    """The device has no such capacity, or its requestPolicy excludes the amount."""
    EXCLUSIVE = "exclusive"
    TAINT = "taint"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """The first check of a request that a device did not pass.

    Attributes:
        subject: The same for all devices with this cause: a selector's term, the name of a
            capacity, a taint's key and value.
        text: With the values of this device.
        beside: Another reason, for which a free device would be rejected, too, such as `` (tainted
            sick)``; "" for none. It is also in the text.
    """

    cause: Cause
    subject: str
    text: str
    beside: str = ""


def consumed(requested: Amounts, device: PublishedDevice, release: int) -> dict[str, Quantity]:
    """Return the amount that a request consumes of every capacity of a device.

    It consumes the default of a capacity that it does not name, or all of it without a default.

    Args:
        release: Minor version of Kubernetes, as everywhere below.

    Raises:
        SchedulingError: An amount is negative, is requested by two names, or cannot be rounded to
            the step of its capacity.
    """
    found = {}
    for name, entry in device.capacity.items():
        names = _spellings(name, device, release)
        if name != names[-1] and names[-1] in device.capacity:
            continue  # published with the driver's domain, too, which wins
        asked = [requested[each] for each in names if each in requested]
        if len(asked) > 1:
            both = f'both as "{names[0]}" and as "{names[-1]}"'
            raise SchedulingError(f'capacity "{names[0]}" requested {both}')
        found[name] = _consumed(names[-1], asked[0] if asked else None, entry, release)
        is_refused = bool(asked) and asked[0].nano < 0 and release >= releases.NO_NEGATIVE_REQUEST
        if is_refused or (found[name].nano < 0 and release >= releases.NO_NEGATIVE_AMOUNT):
            request = f": request {asked[0]}" if is_refused else ""
            raise SchedulingError(f'capacity "{names[-1]}": capacity value is negative{request}')
    return found


def _spellings(name: str, device: PublishedDevice, release: int) -> tuple[str, ...]:
    """Return the names of a capacity: that without the driver's domain, and that with it."""
    short = name.removeprefix(f"{device.id.driver}/")
    is_own = release >= releases.QUALIFIED and "/" not in short
    return (short, f"{device.id.driver}/{short}") if is_own else (name,)


def shortage(
    requested: Amounts, device: PublishedDevice, taken: Amounts, release: int
) -> Rejection | None:
    """Return the first capacity for which a request does not fit next to the amounts taken.

    Its subject is the capacity's name; of several that the device lacks, the first.

    Raises:
        SchedulingError: An amount is negative, is requested by two names, or cannot be rounded to
            the step of its capacity.
    """
    known = {each for name in device.capacity for each in _spellings(name, device, release)}
    unknown = sorted(requested.keys() - known)
    if unknown:
        return Rejection(
            cause=Cause.AMOUNT, subject=unknown[0], text=f"has no capacity {', '.join(unknown)}"
        )
    for name, amount in consumed(requested, device, release).items():
        entry = device.capacity[name]
        if _violates(amount, entry.policy):
            return Rejection(
                cause=Cause.AMOUNT,
                subject=name,
                text=f"{name} {amount} is not allowed by its requestPolicy",
            )
        before = Quantity(0)
        for each in _spellings(name, device, release):
            before = taken.get(each, Quantity(0, entry.value.family)) + before
        if before + amount > entry.value:
            return Rejection(
                cause=Cause.CAPACITY,
                subject=name,
                text=f"{name} {before} of {entry.value} taken, {amount} more do not fit",
            )
    return None


def _consumed(
    name: str, requested: Quantity | None, capacity: PublishedCapacity, release: int
) -> Quantity:
    policy = capacity.policy
    if requested is None:
        default = None if policy is None else policy.default
        return capacity.value if default is None else default
    if policy is None:
        return requested
    if policy.least is None:
        return next((value for value in policy.valid_values or () if requested <= value), requested)
    if requested < policy.least or policy.step is None:
        return max(requested, policy.least)
    # A whole number of steps above the minimum.
    unit, error = _unit(policy, release), ""
    least, step, amount = (each.ceil(unit) for each in (policy.least, policy.step, requested))
    family = policy.step.family if release >= releases.REPRESENTABLE else "binary"
    rounded = Quantity((least + -(-(amount - least) // step) * step) * unit, family)
    if unit == MILLI and not requested.is_whole(unit):
        error = f"request {requested} is not a representable milli value"
    elif amount > _MAX_INT:
        error = f"request {requested} exceeds MaxInt64"
    elif not rounded.is_whole(unit):
        limit = "the milli-value range" if unit == MILLI else "MaxInt64"
        error = f"rounding request {requested} up to the next step passes {limit}"
    if error and release >= releases.REPRESENTABLE:
        raise SchedulingError(f'capacity "{name}": {_UNREPRESENTABLE}: {error}')
    return rounded


def _unit(policy: Policy, release: int) -> int:
    """Return the unit in which a range is computed, in billionths: 1, or a thousandth."""
    amounts = filter(None, (policy.least, policy.most, policy.step))
    is_milli = release >= releases.MILLI and all(each.is_whole(MILLI) for each in amounts)
    return MILLI if is_milli else NANO


def _violates(amount: Quantity, policy: Policy | None) -> bool:
    """Return True if a policy excludes an amount that is rounded to its steps."""
    if policy is None or amount == policy.default:
        return False
    if policy.least is not None:
        return policy.most is not None and amount > policy.most
    return policy.valid_values is not None and amount not in policy.valid_values
