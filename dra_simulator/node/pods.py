"""Lifecycle of the pods on a node: prepared, running, ended."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from threading import Lock
from typing import Any, Final

from dra_simulator import podclaims
from dra_simulator.events import Recorder
from dra_simulator.loop import Loop, Watched
from dra_simulator.node.context import KubeletContext
from dra_simulator.node.preparation import Preparation, PreparationError
from dra_simulator.rest import PODS, ApiError, Conditions, Json, RestError
from dra_simulator.runtime import ContainerError, Runtime

Document = Mapping[str, Any]

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
        outcome: Phase in which the pod has to end; "" as long as it may run.
        next_try: Earliest time of the next job, on the monotonic clock.
        tried_version: resourceVersion at the last job. A pod with another one does not wait for
            next_try.
    """

    uid: str
    document: Document | None
    stage: Stage = Stage.WAITING
    job: "Future[None] | None" = None
    outcome: str = ""
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
        return bool(self.outcome) or podclaims.is_done(self.document)

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
        self._client: Final = client
        self._selector: Final = f"spec.nodeName={setting.node_name}"
        self._preparation: Final = preparation
        self._runtime: Final = runtime
        self._timings: Final = setting.timings
        self._note: Final = setting.note
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

    def finish(self, namespace: str, name: str, *, succeeded: bool = True) -> None:
        """End the processes of a running pod, as if they had exited by themselves."""
        with self._lock:
            pod = self._find(namespace, name)
            if pod is not None:
                pod.outcome = "Succeeded" if succeeded else "Failed"
        self._loop.wake()

    def uid(self, namespace: str, name: str) -> str | None:
        """Return the UID of a pod of this node; None if there is no pod of that name."""
        with self._lock:
            pod = self._find(namespace, name)
            return pod.uid if pod else None

    def _find(self, namespace: str, name: str) -> _Pod | None:
        for pod in self._pods.values():
            if pod.document and podclaims.text(pod.document) == f"{namespace}/{name}":
                return pod
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
                    self._recorder.forget(uid)
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
                self._note("pod_not_prepared", pod=name, error=str(error))
                return self._timings.prepare_retry_seconds
            pod.stage = Stage.PREPARED
            self._note("pod_prepared", pod=name)
        try:
            self._create_containers(pod.uid, document)
        except ContainerError as error:
            self._note("container_failed", pod=name, error=str(error))
            waits = {"reason": "CreateContainerError", "message": str(error)}
            status = _status(document, "Pending", {"waiting": waits})
            written = self._write_status(document, status)
            pod.tried_version = _version(written)
            return self._timings.container_retry_seconds
        began = podclaims.now()
        addresses = {"hostIP": ADDRESS, "hostIPs": [{"ip": ADDRESS}], "startTime": began}
        status = _status(document, "Running", {"running": {"startedAt": began}})
        self._write_status(document, status | addresses)
        pod.stage = Stage.RUNNING
        self._note("pod_started", pod=name)
        return 0.0

    def _create_containers(self, pod_uid: str, document: Document) -> None:
        for path, container in _containers(document):
            try:
                self._runtime.create(
                    pod_uid,
                    container["name"],
                    cdi_ids=self._preparation.cdi_ids(document, container),
                    env=_env(document, container),
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
                self._note("pod_not_unprepared", pod=name, error=str(error))
                return self._timings.unprepare_retry_seconds
            self._note("pod_ended", pod=name)
        if document is not None and _is_deleted(document):
            self._delete(document)
        elif document is not None and pod.outcome:
            code, reason = (0, "Completed") if pod.outcome == "Succeeded" else (1, "Error")
            ended = {"exitCode": code, "reason": reason, "finishedAt": podclaims.now()}
            self._write_status(document, _status(document, pod.outcome, {"terminated": ended}))
        pod.stage = Stage.ENDED
        return 0.0

    def _stop_containers(self, pod: _Pod, document: Document | None) -> None:
        if document is not None and not pod.outcome and self._runtime.containers(pod.uid):
            for path, container in _containers(document):
                message = f"Stopping container {container['name']}"
                self._recorder.record(document, "Killing", message, warning=False, field_path=path)
        self._runtime.stop(pod.uid)

    def _delete(self, document: Document) -> None:
        """Remove a deleted pod from the API, which keeps it until the kubelet does so."""
        metadata = document["metadata"]
        conditions = Conditions(uid=metadata["uid"], grace_seconds=0)
        try:
            self._client.delete(
                PODS, metadata["name"], metadata["namespace"], conditions=conditions
            )
        except ApiError as error:
            if error.status not in {404, 409}:
                raise

    def _write_status(self, document: Document, status: Json) -> Json:
        return self._client.patch(PODS, document, {"status": status}, subresource="status")


def _containers(pod: Document) -> Iterator[tuple[str, Document]]:
    """Yield the containers in the order of their start, each with its path for Events."""
    for field in ("initContainers", "containers"):
        for container in pod["spec"].get(field) or ():
            yield f"spec.{field}{{{container['name']}}}", container


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


def _env(pod: Document, container: Document) -> dict[str, str]:
    """Return the variables that a pod sets for a container, except those from other objects."""
    metadata = pod["metadata"]
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
    }
    found: dict[str, str] = {}
    for entry in container.get("env") or ():
        source = entry.get("valueFrom")
        if source is None:
            found[entry["name"]] = entry.get("value", "")
            continue
        path = (source.get("fieldRef") or {}).get("fieldPath")
        if path in fields:
            found[entry["name"]] = fields[path]
    return found
