"""Allocation of devices to claims, as in kube-scheduler 1.35 to 1.38.

The search for the devices of all claims of a pod is exhaustive, and the first solution wins.
It fills one place after the other. A place is one device of one request of one claim. It is
filled by the first candidate that fits: the device is available, matches the selectors of the
class and of the request, has enough capacity left, its taints are tolerated and the claim's
constraints hold. If no candidate fits, the search goes back to the previous place, undoes that pick
and tries the next candidate there. A request with alternatives (firstAvailable) tries them in
order. The devices of a request for all devices (allocationMode All) are known before the search;
every one of them has to fit.

Example: claim a accepts any device, claim b only model A. The node has gpu-0 (model A) and gpu-1
(model B). The search picks gpu-0 for a, finds nothing for b, goes back, picks gpu-1 for a and then
gpu-0 for b.

dynamic-resource-allocation/structured/internal/incubating/allocator_incubating.go, release 1.37,
without counters and derived attributes. What depends on the release is in releases.py.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes import releases, resource_claims
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling import cel_evaluation, devices
from tensorfusion_dra.scheduling.cel_evaluation import CelCompileError, CelRunError
from tensorfusion_dra.scheduling.devices import (
    Attribute,
    ClaimSpec,
    DeviceClass,
    DeviceId,
    Pool,
    PublishedDevice,
    PublishedSlice,
    SchedulingError,
    Usage,
    Wanted,
)

Document = Mapping[str, Any]

_MAX_STEPS: Final = 100_000
UNSATISFIED: Final = "does not satisfy"
"""Beginning of the reason for which a device that fits alone does not fit beside the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """One device for one request.

    Attributes:
        consumed: Consumed amount of every capacity; None if the device is not shared.
    """

    wanted: Wanted
    device: PublishedDevice
    consumed: Mapping[str, Quantity] | None = None


class NoFitError(DriverError):
    """A node lacks devices for a pod's claims; another node may have them.

    Attributes:
        devices: The reason why each device or pool was rejected, by its name.
    """

    def __init__(self, text: str, rejected: Mapping[str, str]) -> None:
        super().__init__(text)
        self.devices = rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices and DeviceClasses of a cluster, and the claims that use them.

    Attributes:
        claims: All ResourceClaims, including those without an allocation.
        release: Minor version of the Kubernetes release whose scheduler allocates.
        broken: Error for which it allocates nothing to any claim; "" if there is none.
    """

    slices: tuple[PublishedSlice, ...]
    classes: Mapping[str, DeviceClass]
    claims: tuple[Document, ...]
    release: int = releases.NEWEST
    broken: str = ""


def cluster(
    *,
    slices: Iterable[Document],
    classes: Iterable[Document],
    claims: Iterable[Document],
    release: int = releases.NEWEST,
) -> Cluster:
    """Return the cluster with these ResourceSlices, DeviceClasses and ResourceClaims."""
    listed = tuple(claims)
    negative = [next(resource_claims.negative_amounts(claim), "") for claim in listed]
    errors = sorted(filter(None, negative)) if release >= releases.NO_NEGATIVE_CLAIM else []
    more = len(errors) - 1
    others = f" (and {more} more claims with invalid consumed capacity)" if more > 0 else ""
    return Cluster(
        slices=tuple(map(devices.slice_of, slices)),
        classes={each.name: each for each in map(devices.class_of, classes)},
        claims=listed,
        release=release,
        broken=f"{errors[0]}{others}" if errors else "",
    )


def allocate(claims: Sequence[Document], found: Cluster, node: Document) -> list[list[Pick]]:
    """Choose devices of one node for a pod's claims.

    Args:
        claims: Those of the pod's claims that have no allocation yet.

    Returns:
        The devices of each claim, in the order of the claims.

    Raises:
        NoFitError: The devices of this node do not satisfy all the claims.
        SchedulingError: The claims, classes or slices have an error that stops the scheduling on
            every node.
    """
    if claims and found.broken:
        raise SchedulingError(found.broken)
    reachable = devices.gather(found.slices, node)
    search = _Search(
        [devices.claim_of(claim) for claim in claims],
        reachable,
        classes=found.classes,
        usage=devices.usage_of(found.claims),
        release=found.release,
    )
    picks = search.run()
    if picks is None:
        rejected = {str(device): reason for device, reason in search.reasons.items()}
        rejected |= {str(pool): pool.reason for pool in reachable if pool.reason}
        raise NoFitError("cannot allocate all claims", rejected)
    return picks


class _Place(NamedTuple):
    """The next device to find, for a request of a claim.

    Attributes:
        claim, request: Index of the claim, and of the request in it.
        alternative: Index of the chosen alternative of the request; None until one is chosen.
        number: Number of devices that the request has already.
        start: Index of the first candidate, so that no set of devices is tried in two orders.
        unfit: Indexes of candidates that the request cannot get, whatever its other devices are;
            None if it is for all devices, or may get a device again.
    """

    claim: int = 0
    request: int = 0
    alternative: int | None = None
    number: int = 0
    start: int = 0
    unfit: set[int] | None = None


class _Constraint:
    """All devices have the same value of an attribute, or no two have (constraint.go).

    Attributes:
        text: Name of the constraint in the reason why a device was rejected.
    """

    def __init__(self, entry: Mapping[str, Any], claim: str, release: int) -> None:
        self._claim: Final = claim
        self._is_match: Final = entry.get("matchAttribute") is not None
        kind = "matchAttribute" if self._is_match else "distinctAttribute"
        self._attribute: Final[str] = entry[kind]
        self.text: Final = f"{kind} {self._attribute}"
        self._requests: Final = frozenset(entry.get("requests") or ())
        self._release: Final = release
        self._keeps_latest: Final = not self._is_match and release < releases.DISTINCT_FROM_ALL
        self._values: Final[dict[str | int, Attribute]] = {}

    def add(self, wanted: Wanted, device: PublishedDevice) -> bool:
        """Add the device and return True, or return False if it violates the constraint.

        Raises:
            SchedulingError: Its value is a list.
        """
        if not self._concerns(wanted):
            return True
        value = device.attribute(self._attribute)
        is_list = value is not None and isinstance(value.value, tuple)
        if is_list and self._release >= releases.ODD_ATTRIBUTES:
            raise SchedulingError(
                f"claim {self._claim}, request {wanted.name}: device {device.id}: unsupported "
                f"attribute value for {self._attribute}"
            )
        if value is None or value.kind == "unsupported" or (is_list and self._values):
            return False
        if value.kind == "version" and self._release >= releases.SAME_BUILD:
            value = Attribute("version", str(value.value).partition("+")[0])
        if any((value == other) != self._is_match for other in self._values.values()):
            return False
        self._values[wanted.main if self._keeps_latest else len(self._values)] = value
        return True

    def remove(self, wanted: Wanted) -> None:
        """Remove the device that was added last for a request."""
        if self._concerns(wanted):
            self._values.pop(wanted.main if self._keeps_latest else len(self._values) - 1, None)

    def _concerns(self, wanted: Wanted) -> bool:
        return not self._requests or bool(self._requests & {wanted.name, wanted.main})


class _TooManyResults(Exception):  # noqa: N818
    """The claim would exceed MAX_RESULTS; an alternative with fewer devices may fit."""


class _Search:
    """One search. Afterwards, `reasons` has the reason of each device's last rejection."""

    def __init__(
        self,
        claims: Sequence[ClaimSpec],
        pools: Sequence[Pool],
        *,
        classes: Mapping[str, DeviceClass],
        usage: Usage,
        release: int,
    ) -> None:
        """Args:
        claims: The claims of one pod.
        pools: The pools that the node can reach.
        classes: Device classes by name.
        usage: Devices and shares of other claims.
        release: Minor version of the Kubernetes release.
        """
        self.reasons: Final[dict[DeviceId, str]] = {}
        self._claims: Final = claims
        self._pools: Final = pools
        self._classes: Final = classes
        self._usage: Final = usage
        self._release: Final = release
        self._candidates: Final = [device for pool in pools for device in pool.devices]
        self._selectable: Final[dict[tuple[int, str, DeviceId], bool]] = {}
        self._all: Final[dict[tuple[int, str], list[PublishedDevice]]] = {}
        self._tried: Final[dict[DeviceId, set[int]]] = {}
        self._picks: Final[list[list[Pick]]] = [[] for _ in claims]
        self._constraints: Final[list[list[_Constraint]]] = [
            [_Constraint(each, claim.text, release) for each in claim.constraints]
            for claim in claims
        ]
        self._steps = 0

    def run(self) -> list[list[Pick]] | None:
        """Return the devices of each claim; None if there is no solution.

        Raises:
            SchedulingError: A class is missing, a selector fails, a claim requests too many
                devices, or the search takes too many steps. For a request of all devices also: a
                pool is incomplete or invalid, or a device violates a constraint.
        """
        for index, claim in enumerate(self._claims):
            least = sum(
                min(self._size(index, wanted) for wanted in alternatives)
                for alternatives in claim.requests
            )
            if least > resource_claims.MAX_RESULTS:
                raise SchedulingError(
                    f"claim {claim.text}: number of requested devices {least} exceeds the claim"
                    f" limit of {resource_claims.MAX_RESULTS}"
                )
        return self._picks if self._fill(_Place()) else None

    def _size(self, claim: int, wanted: Wanted) -> int:
        """Return the number of devices of a request; find them first if it requests all."""
        if wanted.derives_attributes and self._release >= releases.DERIVED:
            raise SchedulingError(
                f"claim {self._claims[claim].text}, request {wanted.name}: cannot handle request "
                "with derived attributes, the feature is disabled"
            )
        if wanted.device_class not in self._classes:
            raise SchedulingError(
                f"request {wanted.name}: device class {wanted.device_class} does not exist"
            )
        if wanted.count is not None:
            return wanted.count
        for pool in self._pools:
            if pool.reason:
                state = "being updated" if pool.is_incomplete else "invalid"
                text = (
                    f"claim {self._claims[claim].text}, request {wanted.name}: asks for all"
                    f" devices, but resource pool {pool} is currently {state}"
                )
                if self._release >= releases.ALL_ON_NODE:
                    raise NoFitError(text, {str(pool): pool.reason})
                raise SchedulingError(text)
        usage = self._usage if self._release < releases.ALL_NEED_ROOM else Usage()
        found = [
            device
            for device in self._candidates
            if self._is_selectable(claim, wanted, device)
            and self._short(claim, wanted, device, usage) is None
        ]
        self._all[claim, wanted.name] = found
        return len(found)

    def _fill(self, place: _Place) -> bool:
        """Fill this place and all after it; if that works, keep the picks and return True."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise SchedulingError(f"over {_MAX_STEPS} steps trying to allocate devices")
        if place.claim == len(self._claims):
            return True
        claim = self._claims[place.claim]
        if place.request == len(claim.requests):
            try:
                return self._fill(_Place(claim=place.claim + 1))
            except _TooManyResults:
                return False
        alternatives = claim.requests[place.request]
        if place.alternative is None:
            return self._fill_one_of(alternatives, place)
        return self._fill_request(alternatives[place.alternative], place)

    def _fill_request(self, wanted: Wanted, place: _Place) -> bool:
        everything = self._all.get((place.claim, wanted.name))
        size = wanted.count if everything is None else len(everything)
        if not size:
            return False
        if place.number == size:
            return self._fill(_Place(claim=place.claim, request=place.request + 1))
        if len(self._picks[place.claim]) + size - place.number > resource_claims.MAX_RESULTS:
            raise _TooManyResults
        if everything is not None:
            return self._fill_with(place, wanted, everything[place.number])
        unfit = place.unfit
        if not place.number and self._release >= releases.DEVICES_ONCE:
            unfit = set()
        for start in range(place.start, len(self._candidates)):
            rest = range(start, len(self._candidates))
            # No set of the devices that are left is large enough, so none is tried.
            if (
                unfit is not None
                and place.number
                and len(rest) - len(unfit & {*rest}) < size - place.number
            ):
                return False
            here = place._replace(start=start, unfit=unfit)
            if self._fill_with(here, wanted, self._candidates[start]):
                return True
        return False

    def _fill_one_of(self, alternatives: Sequence[Wanted], place: _Place) -> bool:
        exceeded = 0
        for alternative in range(len(alternatives)):
            try:
                if self._fill(place._replace(alternative=alternative)):
                    return True
            except _TooManyResults:
                exceeded += 1
        if exceeded == len(alternatives):
            raise _TooManyResults
        return False

    def _fill_with(self, place: _Place, wanted: Wanted, device: PublishedDevice) -> bool:
        """Return True if this device fits and all places after it can be filled."""
        undo = self._take(place, wanted, device)
        if undo is None:
            return False
        done = False
        try:
            start = 0 if self._release < releases.DEVICES_ONCE else place.start + 1
            done = self._fill(place._replace(number=place.number + 1, start=start))
        finally:
            if not done:
                undo()
        return done

    def _take(
        self, place: _Place, wanted: Wanted, device: PublishedDevice
    ) -> Callable[[], None] | None:
        """Pick the device; return the function that undoes it, or None if it does not fit."""
        reason = self._unavailable(place.claim, wanted, device)
        if reason is None and not self._is_selectable(place.claim, wanted, device):
            reason = "does not match the selectors"
        if wanted.count is not None:
            reason = reason or self._short(place.claim, wanted, device, self._usage)
        if reason is None and (taint := wanted.repelling_taint(device)):
            reason = f"taint {taint.key} is not tolerated"
        if reason is None and not self._join(place.claim, wanted, device):
            return None
        if reason is None and wanted.count is None:
            # A request of all devices checks constraints before capacity. Up to 1.36 a device that
            # then lacks capacity stays in the constraints.
            reason = self._short(place.claim, wanted, device, self._usage)
            if reason is not None and self._release >= releases.DISTINCT_FROM_ALL:
                self._leave(place.claim, wanted)
        if reason is not None:
            self.reasons[device.id] = reason
            if place.unfit is not None:
                place.unfit.add(place.start)
            return None

        amounts = (
            devices.consumed(wanted.amounts, device, self._release) if device.is_shared else None
        )
        self._picks[place.claim].append(Pick(wanted=wanted, device=device, consumed=amounts))
        if amounts is None:
            self._tried.setdefault(device.id, set()).add(place.claim)
        else:
            self._usage.take(device.id, amounts)

        def undo() -> None:
            self._leave(place.claim, wanted)
            if amounts is None:
                self._tried[device.id].discard(place.claim)
            else:
                self._usage.give_back(device.id, amounts)
            self._picks[place.claim].pop()

        return undo

    def _unavailable(self, claim: int, wanted: Wanted, device: PublishedDevice) -> str | None:
        if device.uses_counters:
            return "uses consumesCounters, which this scheduler does not support"
        tried = self._tried.get(device.id, set())
        if wanted.is_admin:
            return "in use by the same claim" if claim in tried else None
        has_share = (
            self._release >= releases.EXCLUSIVE
            and not device.is_shared
            and self._usage.is_shared(device.id)
        )
        return "in use" if tried or has_share or self._usage.is_exclusive(device.id) else None

    def _short(
        self, claim: int, wanted: Wanted, device: PublishedDevice, usage: Usage
    ) -> str | None:
        """Return why the device lacks capacity beside this usage; None if it does not."""
        try:
            short = devices.shortage(wanted.amounts, device, usage.taken(device.id), self._release)
        except SchedulingError as error:
            raise SchedulingError(
                f"claim {self._claims[claim].text}, request {wanted.name}: checking capacity for "
                f"device {device.id}: {error}"
            ) from error
        return None if short is None else short.text

    def _leave(self, claim: int, wanted: Wanted) -> None:
        """Remove the device that was added last for a request from all constraints."""
        for constraint in self._constraints[claim]:
            constraint.remove(wanted)

    def _join(self, claim: int, wanted: Wanted, device: PublishedDevice) -> bool:
        """Add the device to all constraints and return True if every one allows it."""
        for index, constraint in enumerate(self._constraints[claim]):
            if constraint.add(wanted, device):
                continue
            for earlier in self._constraints[claim][:index]:
                earlier.remove(wanted)
            self.reasons[device.id] = f"{UNSATISFIED} {constraint.text}"
            if wanted.count is None:
                raise SchedulingError(
                    f"claim {self._claims[claim].text}, request {wanted.name}: cannot add device"
                    f" {device.id} because a claim constraint would not be satisfied"
                )
            return False
        return True

    def _is_selectable(self, claim: int, wanted: Wanted, device: PublishedDevice) -> bool:
        key = (claim, wanted.name, device.id)
        if key not in self._selectable:
            device_class = self._classes[wanted.device_class]
            of_class, of_claim = f"class {device_class.name}", f"claim {self._claims[claim].text}"
            self._selectable[key] = self._matches(
                of_class, device_class.selectors, device
            ) and self._matches(of_claim, wanted.selectors, device)
        return self._selectable[key]

    def _matches(self, whose: str, expressions: Sequence[str], device: PublishedDevice) -> bool:
        for index, expression in enumerate(expressions):
            try:
                if not cel_evaluation.selector(expression).matches(device, release=self._release):
                    return False
            except (CelCompileError, CelRunError) as error:
                when, where = "runtime", f" on device {device.id}"
                if isinstance(error, CelCompileError):
                    when, where = "compile", ""
                raise SchedulingError(
                    f"{whose}: selector #{index}{where}: CEL {when} error: {error}"
                ) from error
        return True
