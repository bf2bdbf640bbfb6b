"""A scheduler: puts pods on nodes, with devices for their claims.

pkg/scheduler/framework/plugins/dynamicresources, release 1.36; of everything else that
kube-scheduler weighs, the node's name, readiness for pods and labels.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.simulator import allocation, podclaims
from tensorfusion_dra.simulator.allocation import NoFitError, SchedulingError
from tensorfusion_dra.simulator.allocator import node_selectors
from tensorfusion_dra.simulator.answers import RestError
from tensorfusion_dra.simulator.events import Recorder, SeriesStyle
from tensorfusion_dra.simulator.loop import Loop, Watched
from tensorfusion_dra.simulator.podclaims import FINALIZER, ClaimNotCreatedError
from tensorfusion_dra.simulator.rest import CLAIMS, CLASSES, NODES, PODS, SLICES, Client, Json

Document = Mapping[str, Any]

_MAX_CONSUMERS: Final = 256
_SHOWN_DEVICES: Final = 4


class _UnschedulableError(DriverError):
    """A pod has to wait for something; the text is for its status."""


@dataclass(slots=True)
class _Seen:
    """The cluster as it was listed, with what was written since."""

    nodes: list[Json]
    slices: list[Json]
    classes: list[Json]
    claims: dict[tuple[str, str], Json] = field(default_factory=dict)

    def put(self, claim: Json) -> None:
        """A claim was read or written."""
        self.claims[claim["metadata"]["namespace"], claim["metadata"]["name"]] = claim


class Scheduler:
    """Schedules every pending pod, whatever its schedulerName, in the order of their creation."""

    def __init__(self, url: str) -> None:
        self._client: Final = Client(url)
        self._recorder: Final = Recorder(self._client, SeriesStyle("default-scheduler"))
        self._numbers: Final = itertools.count()
        self._arrivals: Final[dict[str, int]] = {}
        watched = [
            Watched(PODS, seen=self._arrived),
            *(Watched(resource) for resource in (CLAIMS, SLICES, CLASSES, NODES)),
        ]
        self._loop: Final = Loop("scheduler", self._client, watched=watched, sync=self._sync)

    def start(self) -> None:
        """Pods are scheduled from now on."""
        self._loop.start()

    def stop(self) -> None:
        """Returns once nothing runs here any more."""
        self._loop.stop()

    def catch_up(self, *, seconds: float) -> bool:
        """Return once every pending pod has been tried against what there is now; False if not."""
        return self._loop.catch_up(seconds=seconds)

    def __enter__(self) -> "Scheduler":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _arrived(self, event: Json) -> None:
        """Numbers new pods: their creationTimestamp has no more than seconds."""
        if event["type"] == "ADDED":
            self._arrivals.setdefault(podclaims.uid(event["object"]), next(self._numbers))
        elif event["type"] == "DELETED":
            self._arrivals.pop(podclaims.uid(event["object"]), None)
            self._recorder.forget(podclaims.uid(event["object"]))

    def _order(self, pod: Document) -> tuple[float, str, int]:
        number = self._arrivals.get(podclaims.uid(pod), float("inf"))
        metadata = pod["metadata"]
        return number, metadata["creationTimestamp"], int(metadata["resourceVersion"])

    def _sync(self) -> None:
        pods = self._client.list(PODS).items
        pending = sorted(filter(_is_pending, pods), key=self._order)
        if not pending:
            return
        seen = _Seen(
            nodes=self._client.list(NODES).items,
            slices=self._client.list(SLICES).items,
            classes=self._client.list(CLASSES).items,
        )
        for claim in self._client.list(CLAIMS).items:
            seen.put(claim)
        failure: RestError | None = None
        for pod in pending:
            try:
                self._schedule(pod, seen)
            except RestError as error:
                failure = error
        if failure is not None:
            raise failure

    def _schedule(self, pod: Document, seen: _Seen) -> None:
        try:
            names = podclaims.claim_names(pod)
        except ClaimNotCreatedError:
            # Not in the queue yet: whoever makes the claims tells of trouble with them.
            return
        try:
            claims = _claims(pod, names, seen)
            node, allocations = _placement(pod, claims, seen)
        except _UnschedulableError as error:
            self._refuse(pod, "Unschedulable", str(error))
            return
        except SchedulingError as error:
            text = f'running "DynamicResources" filter plugin: {error}'
            self._refuse(pod, "SchedulerError", text)
            return
        for claim in claims:
            found = allocations.get(podclaims.uid(claim))
            self._reserve(claim, pod, allocated=found, seen=seen)
        self._client.bind(pod, node)
        message = f"Successfully assigned {podclaims.text(pod)} to {node}"
        self._recorder.record(pod, "Scheduled", message, warning=False)

    def _reserve(self, claim: Json, pod: Document, *, allocated: Json | None, seen: _Seen) -> None:
        """The claim has the allocation and the pod may use it, in the API."""
        if allocated is not None and FINALIZER not in claim["metadata"].get("finalizers", ()):
            finalizers = [*claim["metadata"].get("finalizers", ()), FINALIZER]
            metadata = {**claim["metadata"], "finalizers": finalizers}
            claim = self._client.replace(CLAIMS, {**claim, "metadata": metadata})
            seen.put(claim)
        if allocated is None and podclaims.is_reserved(claim, pod):
            return
        status = dict(claim.get("status") or {})
        if allocated is not None:
            status["allocation"] = {**allocated, "allocationTimestamp": podclaims.now()}
        names = {name: pod["metadata"][name] for name in ("name", "uid")}
        status["reservedFor"] = [*status.get("reservedFor", ()), {"resource": "pods", **names}]
        seen.put(self._client.replace_status(CLAIMS, {**claim, "status": status}))

    def _refuse(self, pod: Document, reason: str, message: str) -> None:
        """The pod's status says why it waits; nothing is written if it says so already."""
        new = podclaims.condition("PodScheduled", status=False, reason=reason, message=message)
        conditions = (pod.get("status") or {}).get("conditions") or ()
        for old in conditions:
            if all(old.get(name) == new[name] for name in ("type", "status", "reason", "message")):
                return
        status = {"conditions": podclaims.with_condition(conditions, new)}
        self._client.patch(PODS, pod, {"status": status}, subresource="status")
        self._recorder.record(pod, "FailedScheduling", message)


def _is_pending(pod: Document) -> bool:
    spec = pod.get("spec") or {}
    if spec.get("nodeName") or spec.get("schedulingGates") or podclaims.is_done(pod):
        return False
    return "deletionTimestamp" not in pod["metadata"]


def _claims(pod: Document, names: Sequence[str], seen: _Seen) -> list[Json]:
    """The pod's claims of these names.

    Raises:
        _UnschedulableError: One of them is missing, going or full.
    """
    claims: list[Json] = []
    for name in names:
        claim = seen.claims.get((pod["metadata"]["namespace"], name))
        if claim is None:
            raise _UnschedulableError(f'resourceclaim "{name}" not found')
        if "deletionTimestamp" in claim["metadata"]:
            raise _UnschedulableError(f'resourceclaim "{name}" is being deleted')
        consumers = (claim.get("status") or {}).get("reservedFor") or ()
        if len(consumers) >= _MAX_CONSUMERS and not podclaims.is_reserved(claim, pod):
            raise _UnschedulableError("resourceclaim in use")
        claims.append(claim)
    return claims


def _placement(pod: Document, claims: Sequence[Json], seen: _Seen) -> tuple[str, dict[str, Json]]:
    """The first node that has everything, and the new allocations by the claims' UID.

    Raises:
        _UnschedulableError: There is no such node.
        SchedulingError: There cannot be one.
    """
    waiting = [claim for claim in claims if not (claim.get("status") or {}).get("allocation")]
    cluster = allocation.cluster(
        slices=seen.slices, classes=seen.classes, claims=seen.claims.values()
    )
    reasons: dict[str, int] = {}
    passed_over: dict[str, str] = {}
    for node in sorted(seen.nodes, key=lambda node: str(node["metadata"]["name"])):
        reason = _unfit(pod, claims, node)
        if reason is None:
            try:
                found = allocation.allocate(waiting, cluster, node)
            except NoFitError as error:
                reason = str(error)
                passed_over |= error.devices
            else:
                uids = (podclaims.uid(claim) for claim in waiting)
                return node["metadata"]["name"], dict(zip(uids, found, strict=True))
        reasons[reason] = reasons.get(reason, 0) + 1
    counted = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    text = f"0/{len(seen.nodes)} nodes are available: {counted or 'there are none'}."
    shown = [
        f"{device}: {why}" for device, why in itertools.islice(passed_over.items(), _SHOWN_DEVICES)
    ]
    if len(passed_over) > _SHOWN_DEVICES:
        shown.append(f"and {len(passed_over) - _SHOWN_DEVICES} more")
    raise _UnschedulableError(text + (f" ({'; '.join(shown)})" if shown else ""))


def _unfit(pod: Document, claims: Sequence[Json], node: Document) -> str | None:
    """Why a pod cannot go to a node whatever devices it has; None if it can."""
    if (node.get("spec") or {}).get("unschedulable"):
        return "node(s) were unschedulable"
    labels = node["metadata"].get("labels") or {}
    wanted = (pod.get("spec") or {}).get("nodeSelector") or {}
    if any(labels.get(name) != value for name, value in wanted.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    for claim in claims:
        allocated = (claim.get("status") or {}).get("allocation") or {}
        selector = allocated.get("nodeSelector")
        if selector is not None and not node_selectors.matches(selector, node):
            return "resourceclaim not available on the node"
    return None
