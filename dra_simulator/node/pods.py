"""Pods of a node: their lifecycle, and the claims that are prepared for them.

Source of the preparation: pkg/kubelet/cm/dra: manager.go, claiminfo.go and state, release 1.37.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from enum import Enum, auto
from pathlib import Path
from threading import Lock
from typing import Any, Final

from dra_simulator import podclaims
from dra_simulator.loop import Loop, Recorder, Watched
from dra_simulator.node.plugin import ClaimRef, KubeletContext, PluginError, Plugins, PreparedDevice
from dra_simulator.rest import CLAIMS, PODS, Client, Json, RestError
from dra_simulator.runtime import ContainerError, Runtime
from tensorfusion_dra.core.errors import DriverError

Document = Mapping[str, Any]

_PREPARE: Final = "prepare dynamic resources"
_UNPREPARE: Final = "unprepare dynamic resources"


class PreparationError(DriverError):
    """A pod's claims cannot be prepared or unprepared now; the kubelet retries."""


@dataclass(slots=True)
class _TrackedClaim:
    """Claim that is prepared or that a plugin was called to prepare.

    Attributes:
        pods: UIDs of the pods that use the claim.
        devices: Devices by driver, as returned by the plugins.
        is_prepared: False after a restart, so that claims are then prepared again.
    """

    ref: ClaimRef
    drivers: tuple[str, ...]
    pods: set[str] = field(default_factory=set)
    devices: dict[str, tuple[PreparedDevice, ...]] = field(default_factory=dict)
    is_prepared: bool = False


class Preparation:
    """Claims of one node; calls for different pods run concurrently."""

    def __init__(self, client: Client, plugins: Plugins, *, checkpoint: Path) -> None:
        self._client: Final = client
        self._plugins: Final = plugins
        self._checkpoint: Final = checkpoint
        self._lock: Final = Lock()  # guards _tracked and the checkpoint
        self._tracked: Final[dict[tuple[str, str], _TrackedClaim]] = {}
        for tracked in _loaded(checkpoint):
            self._tracked[tracked.ref.namespace, tracked.ref.name] = tracked

    @property
    def pods(self) -> set[str]:
        """UIDs of all pods that use the claims."""
        with self._lock:
            return {pod for tracked in self._tracked.values() for pod in tracked.pods}

    def prepare(self, pod: Document) -> None:
        """Prepare those of the pod's claims that are not prepared yet.

        Raises:
            PreparationError: One of them could not be prepared.
        """
        try:
            claims = self._checked_claims(pod)
            for driver, wanted in self._track(pod, claims).items():
                answers = self._plugins.plugin(driver).prepare([tracked.ref for tracked in wanted])
                with self._lock:
                    for tracked in wanted:
                        tracked.devices[driver] = answers[tracked.ref.uid]
        except (PluginError, RestError, podclaims.ClaimNotCreatedError, PreparationError) as error:
            raise PreparationError(f"{_PREPARE}: {error}") from error
        with self._lock:
            for claim in claims:
                if _key(claim) in self._tracked:
                    self._tracked[_key(claim)].is_prepared = True
            self._save()

    def _checked_claims(self, pod: Document) -> list[Document]:
        """Return the pod's claims after the checks that need no call to a plugin.

        No claim is tracked before all checks pass. Otherwise a pod whose driver was never
        registered could not be deleted, because the kubelet would have to unprepare its claims.

        Raises:
            PreparationError: A claim cannot be fetched, belongs to another pod, is not reserved for
                the pod, or is not allocated.
            ClaimNotCreatedError: A claim has not been created from its template yet.
            PluginError: The driver of a claim is not registered.
        """
        namespace = pod["metadata"]["namespace"]
        claims: list[Document] = []
        for entry in podclaims.claim_entries(pod):
            name = podclaims.claim_name(pod, entry)
            if name is None:
                continue
            try:
                claim = self._client.get(CLAIMS, name, namespace)
            except RestError as error:
                raise PreparationError(f"fetch ResourceClaim {name}: {error}") from error
            if not entry.get("resourceClaimName") and not podclaims.is_owner(pod, claim):
                raise PreparationError(
                    f"ResourceClaim {podclaims.text(claim)} was not created for Pod"
                    f" {podclaims.text(pod)} (Pod is not owner)"
                )
            if not podclaims.is_reserved(claim, pod):
                raise PreparationError(
                    f"pod {pod['metadata']['name']} ({podclaims.uid(pod)}) is not allowed to use"
                    f" ResourceClaim {name} ({podclaims.uid(claim)})"
                )
            for driver in _drivers(claim):
                self._plugins.plugin(driver)
            claims.append(claim)
        return claims

    def _track(self, pod: Document, claims: Sequence[Document]) -> dict[str, list[_TrackedClaim]]:
        """Track the pod's claims and return the unprepared ones by driver.

        From here on `unprepare` calls the plugins for these claims.
        """
        batches: dict[str, list[_TrackedClaim]] = {}
        with self._lock:
            for claim in claims:
                tracked = self._tracked.get(_key(claim))
                if tracked is None:
                    ref = ClaimRef(*_key(claim), podclaims.uid(claim))
                    tracked = self._tracked[_key(claim)] = _TrackedClaim(ref, _drivers(claim))
                elif tracked.ref.uid != podclaims.uid(claim):
                    raise PreparationError(
                        f"old ResourceClaim with same name {tracked.ref.name} and different UID"
                        f" {tracked.ref.uid} still exists (previous pod force-deleted?!)"
                    )
                tracked.pods.add(podclaims.uid(pod))
                if not tracked.is_prepared:
                    for driver in tracked.drivers:
                        batches.setdefault(driver, []).append(tracked)
            self._save()
        return batches

    def unprepare(self, pod_uid: str) -> None:
        """Unprepare those of the pod's claims that no other pod uses, and forget the pod.

        Raises:
            PreparationError: One of them could not be unprepared.
        """
        batches: dict[str, list[ClaimRef]] = {}
        with self._lock:
            mine = [tracked for tracked in self._tracked.values() if pod_uid in tracked.pods]
            last = [tracked for tracked in mine if tracked.pods == {pod_uid}]
            for tracked in mine:
                if tracked not in last:
                    tracked.pods.discard(pod_uid)
            for tracked in last:
                # A pod that starts to use the claim during the call has to prepare it again.
                tracked.is_prepared = False
                for driver in tracked.drivers:
                    batches.setdefault(driver, []).append(tracked.ref)
        try:
            for driver, refs in batches.items():
                self._plugins.plugin(driver).unprepare(refs)
        except PluginError as error:
            raise PreparationError(f"{_UNPREPARE}: {error}") from error
        with self._lock:
            for tracked in last:
                tracked.pods.discard(pod_uid)
                if not tracked.pods:
                    self._tracked.pop((tracked.ref.namespace, tracked.ref.name), None)
            self._save()

    def cdi_ids(self, pod: Document, container: Document) -> list[str]:
        """Return the CDI devices of a container, in the order of the claims in its resources."""
        entries = {entry["name"]: entry for entry in podclaims.claim_entries(pod)}
        namespace = pod["metadata"]["namespace"]
        found: list[str] = []
        with self._lock:
            for use in (container.get("resources") or {}).get("claims") or ():
                name = podclaims.claim_name(pod, entries[use["name"]])
                if name is not None:
                    tracked = self._tracked[namespace, name]
                    found += _cdi_ids(tracked, use.get("request") or "")
        return found

    def _save(self) -> None:
        """Write the checkpoint; the caller has the lock."""
        documents = [
            {
                "ref": asdict(tracked.ref),
                "drivers": tracked.drivers,
                "pods": sorted(tracked.pods),
                "devices": {
                    driver: [asdict(device) for device in devices]
                    for driver, devices in tracked.devices.items()
                },
            }
            for tracked in self._tracked.values()
        ]
        fresh = self._checkpoint.with_suffix(".new")
        fresh.write_text(json.dumps(documents, indent=1))
        fresh.replace(self._checkpoint)


def _loaded(checkpoint: Path) -> Iterable[_TrackedClaim]:
    if not checkpoint.exists():
        return
    for document in json.loads(checkpoint.read_text()):
        devices = {
            driver: tuple(_device(device) for device in found)
            for driver, found in document["devices"].items()
        }
        ref, drivers = ClaimRef(**document["ref"]), tuple(document["drivers"])
        yield _TrackedClaim(ref, drivers, set(document["pods"]), devices)


def _device(document: Json) -> PreparedDevice:
    lists = {name: tuple(document[name]) for name in ("requests", "cdi_ids")}
    return PreparedDevice(**{**document, **lists})


def _key(claim: Document) -> tuple[str, str]:
    return claim["metadata"]["namespace"], claim["metadata"]["name"]


def _drivers(claim: Document) -> tuple[str, ...]:
    """Return the drivers of a claim's devices.

    Raises:
        PreparationError: The claim is not allocated.
    """
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        raise PreparationError(f"ResourceClaim {claim['metadata']['name']}: not allocated")
    results = (allocation.get("devices") or {}).get("results") or ()
    return tuple(dict.fromkeys(result["driver"] for result in results))


def _cdi_ids(tracked: _TrackedClaim, request: str) -> Iterable[str]:
    for devices in tracked.devices.values():
        for device in devices:
            if not request or not device.requests or request in device.requests:
                yield from device.cdi_ids


ADDRESS: Final = "127.0.0.1"
"""Address of the node, on which everything listens on loopback."""

_MAX_JOBS: Final = 16
_READY: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
_REST_RETRY_SECONDS: Final = 0.2
_STARTED: Final = (("Created", "Container created"), ("Started", "Container started"))
"""Reasons and messages of the Events on a container that starts."""


class Stage(Enum):
    """Stage in the lifecycle of a pod."""

    WAITING = auto()
    PREPARED = auto()
    RUNNING = auto()
    ENDED = auto()


@dataclass(slots=True)
class _Pod:
    """Pod of this node.

    Attributes:
        document: Latest state in the API; None once the pod is gone from there.
        job: Current or last job of a worker for the pod.
        next_try: Earliest time of the next job, on the monotonic clock.
        tried_version: resourceVersion at the last job. A pod with another one does not wait for
            next_try.
    """

    uid: str
    document: Document | None
    stage: Stage = Stage.WAITING
    job: "Future[None] | None" = None
    next_try: float = 0.0
    tried_version: str = ""

    @property
    def is_busy(self) -> bool:
        """True while a worker has a job for the pod."""
        return self.job is not None and not self.job.done()

    @property
    def must_end(self) -> bool:
        """True if the pod may not run any more."""
        if self.document is None or "deletionTimestamp" in self.document["metadata"]:
            return True
        return podclaims.is_done(self.document)

    @property
    def has_work(self) -> bool:
        """True if a worker has to bring the pod to its next stage or delete it."""
        if self.must_end:
            return self.stage is not Stage.ENDED or _is_deleted(self.document)
        return self.stage in {Stage.WAITING, Stage.PREPARED}


class Pods:
    """Pods of one node; at most one worker at a time has a job for a pod."""

    def __init__(
        self, setting: KubeletContext, *, preparation: Preparation, runtime: Runtime
    ) -> None:
        client = setting.client
        self._setting: Final = setting
        self._client: Final = client
        self._selector: Final = f"spec.nodeName={setting.node_name}"
        self._preparation: Final = preparation
        self._runtime: Final = runtime
        self._recorder: Final = Recorder(client, "kubelet", setting.node_name)
        self._workers: Final = ThreadPoolExecutor(_MAX_JOBS, thread_name_prefix="pod")
        # Guards _pods. The fields of a busy pod belong to its worker, except its document.
        self._lock: Final = Lock()
        self._pods: Final[dict[str, _Pod]] = {}
        watched = [Watched(PODS, self._selector)]
        self._loop: Final = Loop("kubelet-pods", client, watched=watched, sync=self._sync)

    def start(self) -> None:
        """Start running the present and future pods of the node."""
        self._loop.start()

    def stop(self) -> None:
        """Stop once all jobs have ended; the caller ends calls to plugins before."""
        self._loop.stop()
        self._workers.shutdown(cancel_futures=True)

    def uid(self, namespace: str, name: str) -> str | None:
        """Return the UID of a pod of this node; None if there is no pod of that name."""
        with self._lock:
            for pod in self._pods.values():
                if pod.document and podclaims.text(pod.document) == f"{namespace}/{name}":
                    return pod.uid
            return None

    def _sync(self) -> float | None:
        """Submit jobs for pods; return the seconds until the next pod is due, or None."""
        found = self._client.list(PODS, field_selector=self._selector).items
        present = {podclaims.uid(document): document for document in found}
        with self._lock:
            # Claims may be prepared for pods that were force-deleted while no kubelet ran.
            for uid in present.keys() | self._preparation.pods:
                if uid not in self._pods:
                    is_running = bool(self._runtime.containers(uid))
                    stage = Stage.RUNNING if is_running else Stage.WAITING
                    self._pods[uid] = _Pod(uid, present.get(uid), stage)
            for uid, pod in list(self._pods.items()):
                pod.document = present.get(uid)
                if pod.document is None and pod.stage is Stage.ENDED and not pod.is_busy:
                    del self._pods[uid]
            return self._submit_jobs()

    def _submit_jobs(self) -> float | None:
        now = time.monotonic()
        soonest: float | None = None
        for pod in self._pods.values():
            if pod.is_busy:
                continue
            if pod.job is not None:
                pod.job.result()  # raises an unexpected error of the worker
            if not pod.has_work:
                continue
            if pod.next_try <= now or _version(pod.document) != pod.tried_version:
                pod.job = self._workers.submit(self._work, pod, pod.document)
                pod.job.add_done_callback(lambda _: self._loop.wake())
            else:
                wait = pod.next_try - now
                soonest = wait if soonest is None else min(soonest, wait)
        return soonest

    def _work(self, pod: _Pod, document: Document | None) -> None:
        pod.tried_version = _version(document)
        try:
            if pod.must_end or document is None:
                wait_seconds = self._end(pod, document)
            else:
                wait_seconds = self._begin(pod, document)
        except RestError:
            wait_seconds = _REST_RETRY_SECONDS
        pod.next_try = time.monotonic() + wait_seconds

    def _begin(self, pod: _Pod, document: Document) -> float:
        """Prepare and start a pod as far as possible; return the seconds until a retry, or 0."""
        name = podclaims.text(document)
        if pod.stage is Stage.WAITING:
            try:
                self._preparation.prepare(document)
            except PreparationError as error:
                message = f"Failed to prepare dynamic resources: {error}"
                self._recorder.record(document, "FailedPrepareDynamicResources", message)
                self._setting.note("pod_not_prepared", pod=name, error=str(error))
                return self._setting.timings.prepare_retry_seconds
            pod.stage = Stage.PREPARED
            self._setting.note("pod_prepared", pod=name)
        try:
            self._create_containers(pod.uid, document)
        except ContainerError as error:
            self._setting.note("container_failed", pod=name, error=str(error))
            waits = {"reason": "CreateContainerError", "message": str(error)}
            status = _status(document, "Pending", {"waiting": waits})
            written = self._write_status(document, status)
            pod.tried_version = _version(written)
            return self._setting.timings.container_retry_seconds
        began = podclaims.now()
        addresses = {"hostIP": ADDRESS, "hostIPs": [{"ip": ADDRESS}], "startTime": began}
        status = _status(document, "Running", {"running": {"startedAt": began}})
        self._write_status(document, status | addresses)
        pod.stage = Stage.RUNNING
        self._setting.note("pod_started", pod=name)
        return 0.0

    def _create_containers(self, pod_uid: str, document: Document) -> None:
        for path, container in _containers(document):
            try:
                self._runtime.create(
                    pod_uid,
                    container["name"],
                    cdi_ids=self._preparation.cdi_ids(document, container),
                    env={
                        entry["name"]: entry.get("value", "")
                        for entry in container.get("env") or ()
                        if "valueFrom" not in entry
                    },
                )
            except ContainerError as error:
                self._recorder.record(document, "Failed", f"Error: {error}", field_path=path)
                raise
            for reason, message in _STARTED:
                self._recorder.record(document, reason, message, warning=False, field_path=path)

    def _end(self, pod: _Pod, document: Document | None) -> float:
        """Stop and unprepare a pod as far as possible; return the seconds until a retry, or 0."""
        name = pod.uid if document is None else podclaims.text(document)
        if pod.stage is not Stage.ENDED:
            self._stop_containers(pod, document)
            try:
                self._preparation.unprepare(pod.uid)
            except PreparationError as error:
                self._setting.note("pod_not_unprepared", pod=name, error=str(error))
                return self._setting.timings.unprepare_retry_seconds
            self._setting.note("pod_ended", pod=name)
        if document is not None and _is_deleted(document):
            # The API server keeps a deleted pod until its kubelet removes it.
            metadata = document["metadata"]
            name, namespace = metadata["name"], metadata["namespace"]
            self._client.delete(PODS, name, namespace, uid=pod.uid, grace_seconds=0)
        pod.stage = Stage.ENDED
        return 0.0

    def _stop_containers(self, pod: _Pod, document: Document | None) -> None:
        if document is not None and self._runtime.containers(pod.uid):
            for path, container in _containers(document):
                message = f"Stopping container {container['name']}"
                self._recorder.record(document, "Killing", message, warning=False, field_path=path)
        self._runtime.stop(pod.uid)

    def _write_status(self, document: Document, status: Json) -> Json:
        return self._client.patch(PODS, document, {"status": status}, subresource="status")


def _containers(pod: Document) -> Iterator[tuple[str, Document]]:
    """Yield the containers in the order of their start, each with its path for Events."""
    for part in ("initContainers", "containers"):
        for container in pod["spec"].get(part) or ():
            yield f"spec.{part}{{{container['name']}}}", container


def _is_deleted(document: Document | None) -> bool:
    return document is not None and "deletionTimestamp" in document["metadata"]


def _version(document: Document | None) -> str:
    return "" if document is None else str(document["metadata"]["resourceVersion"])


def _status(pod: Document, phase: str, state: Json) -> Json:
    """Return the status of a pod whose containers are all in one state."""
    ready = "running" in state
    conditions: list[Json] = list((pod.get("status") or {}).get("conditions") or ())
    for kind in _READY:
        conditions = podclaims.with_condition(conditions, podclaims.condition(kind, status=ready))
    common = {"imageID": "", "ready": ready, "started": ready, "restartCount": 0, "state": state}
    return {
        "phase": phase,
        "conditions": conditions,
        "containerStatuses": [
            {"name": container["name"], "image": container.get("image", ""), **common}
            for container in pod["spec"]["containers"]
        ],
    }
