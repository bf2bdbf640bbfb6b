"""Scheduler that binds pods to nodes and allocates devices to their claims.

Source: pkg/scheduler/framework/plugins/dynamicresources, release 1.37. Of everything else that
kube-scheduler considers, this one has only spec.nodeName, spec.unschedulable and nodeSelector. It
waits for binding conditions, but neither for some time only nor for the failure conditions.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dra_simulator import allocation_results, podclaims
from dra_simulator.loop import Loop, LoopComponent, Recorder, Watched
from dra_simulator.podclaims import FINALIZER, ClaimNotCreatedError
from dra_simulator.rest import (
    CLAIMS,
    CLASSES,
    NODES,
    PODS,
    SLICES,
    TAINT_RULES,
    Client,
    Json,
    RestError,
)
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes import releases, resource_claims
from tensorfusion_dra.scheduling import allocation, devices
from tensorfusion_dra.scheduling.allocation import NoFitError

Document = Mapping[str, Any]

_MAX_CONSUMERS: Final = 256
_SHOWN_DEVICES: Final = 4


class _UnschedulableError(DriverError):
    """A pod cannot be scheduled yet; the text goes into its status."""


@dataclass(slots=True)
class _Snapshot:
    """Listed objects of the cluster, with the claims that were written since."""

    nodes: list[Json]
    slices: Sequence[Document]
    classes: list[Json]
    claims: dict[tuple[str, str], Json] = field(default_factory=dict)

    def put(self, claim: Json) -> None:
        """Store a claim that was read or written."""
        self.claims[claim["metadata"]["namespace"], claim["metadata"]["name"]] = claim


class Scheduler(LoopComponent):
    """Scheduler of every pending pod, whatever its schedulerName, in the order of creation."""

    def __init__(self, url: str, *, release: int = releases.SIMULATED) -> None:
        """Args:
        release: Minor version of Kubernetes by whose rules devices are allocated.
        """
        self._client: Final = Client(url)
        self._release: Final = release
        self._recorder: Final = Recorder(self._client, "default-scheduler")
        self._arrivals: Final[dict[str, int]] = {}
        watched = [
            Watched(PODS, on_event=self._on_pod_event),
            *(Watched(resource) for resource in (CLAIMS, SLICES, TAINT_RULES, CLASSES, NODES)),
        ]
        self._loop = Loop("scheduler", self._client, watched=watched, sync=self._sync)

    def _on_pod_event(self, event: Json) -> None:
        """Number new pods, as creationTimestamp has only whole seconds."""
        if event["type"] == "ADDED":  # a bookmark has no UID
            self._arrivals.setdefault(podclaims.uid(event["object"]), len(self._arrivals))

    def _order(self, pod: Document) -> tuple[float, str, int]:
        number = self._arrivals.get(podclaims.uid(pod), float("inf"))
        metadata = pod["metadata"]
        return number, metadata["creationTimestamp"], int(metadata["resourceVersion"])

    def _sync(self) -> None:
        pods = self._client.list(PODS).items
        pending = sorted(filter(_is_pending, pods), key=self._order)
        if not pending:
            return
        snapshot = _Snapshot(
            nodes=self._client.list(NODES).items,
            slices=devices.with_rules(
                self._client.list(TAINT_RULES).items, self._client.list(SLICES).items
            ),
            classes=self._client.list(CLASSES).items,
        )
        for claim in self._client.list(CLAIMS).items:
            snapshot.put(claim)
        failure: RestError | None = None
        for pod in pending:
            try:
                self._schedule(pod, snapshot)
            except RestError as error:
                failure = error
        if failure is not None:
            raise failure

    def _schedule(self, pod: Document, snapshot: _Snapshot) -> None:
        try:
            names = podclaims.claim_names(pod)
        except ClaimNotCreatedError:
            # Not in the queue yet: the claim controller creates the claim or reports why it cannot.
            return
        try:
            claims = _claims(pod, names, snapshot)
            node, allocations = _placement(pod, claims, snapshot, self._release)
        except _UnschedulableError as error:
            self._mark_unschedulable(pod, "Unschedulable", str(error))
            return
        except devices.SchedulingError as error:
            text = f'running "DynamicResources" filter plugin: {error}'
            self._mark_unschedulable(pod, "SchedulerError", text)
            return
        for claim in claims:
            found = allocations.get(podclaims.uid(claim))
            self._reserve(claim, pod, allocated=found, snapshot=snapshot)
        written = (snapshot.claims[pod["metadata"]["namespace"], name] for name in names)
        if any([*resource_claims.pending_conditions(claim)] for claim in written):
            if allocations:
                text = f"waiting for binding conditions for device on node {node}"
                self._recorder.record(pod, "BindingConditionsPending", text, warning=False)
            return
        self._client.bind(pod, node)
        message = f"Successfully assigned {podclaims.text(pod)} to {node}"
        self._recorder.record(pod, "Scheduled", message, warning=False)

    def _reserve(
        self, claim: Json, pod: Document, *, allocated: Json | None, snapshot: _Snapshot
    ) -> None:
        """Write the allocation, if there is a new one, and the pod's reservation into the claim."""
        if allocated is not None and FINALIZER not in claim["metadata"].get("finalizers", ()):
            finalizers = [*claim["metadata"].get("finalizers", ()), FINALIZER]
            metadata = {**claim["metadata"], "finalizers": finalizers}
            claim = self._client.replace(CLAIMS, {**claim, "metadata": metadata})
            snapshot.put(claim)
        if allocated is None and podclaims.is_reserved(claim, pod):
            return
        status = dict(claim.get("status") or {})
        if allocated is not None:
            status["allocation"] = {**allocated, "allocationTimestamp": podclaims.now()}
        names = {name: pod["metadata"][name] for name in ("name", "uid")}
        status["reservedFor"] = [*status.get("reservedFor", ()), {"resource": "pods", **names}]
        snapshot.put(self._client.replace_status(CLAIMS, {**claim, "status": status}))

    def _mark_unschedulable(self, pod: Document, reason: str, message: str) -> None:
        """Write the reason why a pod waits into its status, unless it is already there."""
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


def _claims(pod: Document, names: Sequence[str], snapshot: _Snapshot) -> list[Json]:
    """Return the pod's claims of these names.

    Raises:
        _UnschedulableError: One of them is missing, is being deleted, or has the maximum number of
            consumers.
    """
    claims: list[Json] = []
    for name in names:
        claim = snapshot.claims.get((pod["metadata"]["namespace"], name))
        if claim is None:
            raise _UnschedulableError(f'resourceclaim "{name}" not found')
        if "deletionTimestamp" in claim["metadata"]:
            raise _UnschedulableError(f'resourceclaim "{name}" is being deleted')
        consumers = (claim.get("status") or {}).get("reservedFor") or ()
        if len(consumers) >= _MAX_CONSUMERS and not podclaims.is_reserved(claim, pod):
            raise _UnschedulableError("resourceclaim in use")
        claims.append(claim)
    return claims


def _placement(
    pod: Document, claims: Sequence[Json], snapshot: _Snapshot, release: int
) -> tuple[str, dict[str, Json]]:
    """Return the first node that fits, and the new allocations by the claims' UID.

    Raises:
        _UnschedulableError: No node fits.
        devices.SchedulingError: An error in the claims, classes or slices stops the scheduling.
    """
    waiting = [claim for claim in claims if not (claim.get("status") or {}).get("allocation")]
    cluster = allocation.cluster(
        slices=snapshot.slices,
        classes=snapshot.classes,
        claims=snapshot.claims.values(),
        release=release,
    )
    reasons: dict[str, int] = {}
    rejected: dict[str, str] = {}
    for node in sorted(snapshot.nodes, key=lambda node: str(node["metadata"]["name"])):
        reason = _unfit_reason(pod, claims, node)
        if reason is None:
            try:
                found = allocation_results.allocate(waiting, cluster, node)
            except NoFitError as error:
                reason = str(error)
                rejected |= error.devices
            else:
                uids = (podclaims.uid(claim) for claim in waiting)
                return node["metadata"]["name"], dict(zip(uids, found, strict=True))
        reasons[reason] = reasons.get(reason, 0) + 1
    counted = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    text = f"0/{len(snapshot.nodes)} nodes are available: {counted or 'there are none'}."
    shown = [
        f"{device}: {why}" for device, why in itertools.islice(rejected.items(), _SHOWN_DEVICES)
    ]
    if len(rejected) > _SHOWN_DEVICES:
        shown.append(f"and {len(rejected) - _SHOWN_DEVICES} more")
    raise _UnschedulableError(text + (f" ({'; '.join(shown)})" if shown else ""))


def _unfit_reason(pod: Document, claims: Sequence[Json], node: Document) -> str | None:
    """Return the reason why a node is unfit apart from its free devices; None if it is fit.

    Raises:
        devices.SchedulingError: The nodeSelector of a claim's allocation is malformed.
    """
    if (node.get("spec") or {}).get("unschedulable"):
        return "node(s) were unschedulable"
    labels = node["metadata"].get("labels") or {}
    wanted = (pod.get("spec") or {}).get("nodeSelector") or {}
    if any(labels.get(name) != value for name, value in wanted.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    for claim in claims:
        allocated = (claim.get("status") or {}).get("allocation") or {}
        selector = allocated.get("nodeSelector")
        if selector is not None and not devices.selects_node(selector, node):
            return "resourceclaim not available on the node"
    return None
