"""Workers: the pods for which Tensor Fusion's hypervisor keeps the limits of their claims.

The hypervisor knows no claims. It keeps the limits of pods that are marked as its workers and whose
cards it was told to allocate, as the kubelet tells it for its own extended resource. So this module
does what Tensor Fusion's scheduler and the kubelet do for such a pod:

1. Read the pod and the node's other workers: a card that Tensor Fusion's scheduler gave to one of
   them is refused, and an index is chosen that none of them uses.
2. Mark the pod (marks.py).
3. Call Allocate with the pod's index.
4. Wait until the hypervisor has created the shared memory of the pod, and write the limits of each
   card there: the pod's annotations have room for one limit only.

If a step fails, the marks are removed again and the claim is not prepared, so no container starts
without its limits.

Two claims of one pod are one worker. The second one repeats the steps with the cards of both: no
container of the pod runs before all of its claims are prepared. The hypervisor allocates only once,
so the marks are removed first, by which it forgets the pod.

Whether a pod is registered can be seen in its shared memory, which then has the cards and a fresh
heartbeat, and in a note beside it. So a repeated prepare costs two reads of files.

The memory has the pod's name, and so has that of a pod that is created again after a deletion by
force. As long as a claim of the one is recorded, the other is not registered: the kubelet
unprepares the claims of the first, which removes its memory, and repeats the prepare of the second.

What was lent stays lent until it is free, without the lock of the store: limits are written under
a lock of this enforcer, which all instances on the node share, and under it the records are read
first. Records that are newer belong to a call that waits for this lock, so the last call to write
has read the newest ones. Nobody waits for the hypervisor while holding it.

A limit that changes is written into the shared memory at once. Its annotation, from which the
hypervisor regulates the rate of kernels, follows in run(), which also repairs what others change:

- The hypervisor obeys a worker's annotations, and a tenant may change them at any time. So the
  node's workers are watched, and the driver's values are put back as soon as an event shows others.
  A few pods at a time: of a burst of changes the hypervisor loses some, and nothing shows which.
- A hypervisor that restarts finds the workers that run by itself. It does not find those whose
  containers were not started yet: for such a pod it waits for an Allocate that the driver has made
  already. So a worker without a live shared memory is registered again. Only if two checks in a row
  find it so, because a restart takes some seconds, and only while the hypervisor serves.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.enforcer import NodeAccess, SilentEnforcerError
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.enforcers.patience import Patience, node_lock
from tensorfusion_dra.enforcers.tensor_fusion import marks
from tensorfusion_dra.enforcers.tensor_fusion.marks import Worker
from tensorfusion_dra.enforcers.tensor_fusion.shared_memory import WorkerMemory
from tensorfusion_dra.runtime.loops import LogThrottle, Wakeup

if TYPE_CHECKING:
    from tensorfusion_dra.enforcers.tensor_fusion.device_plugin import DevicePlugin

log = structlog.get_logger()

_ALLOCATE_SECONDS: Final = 8.0
"""The hypervisor would wait ten minutes for a pod that it does not see; the kubelet 45 s for us."""
_MEMORY_SECONDS: Final = 5.0
"""The hypervisor looks once a second for what it has allocated."""
_PATCH_SECONDS: Final = 10.0
MAX_PATCHES: Final = 8
"""Pods of which the annotations change in a round. The hypervisor loses changes of pods for good
while 16 wait for it; the kubelet's changes of statuses are among them."""
_PAUSE_SECONDS: Final = 1.0
"""Between rounds that changed some."""
_LOCK_SECONDS: Final = 5.0
_REPAIR_SECONDS: Final = 20.0
_CHECK_SECONDS: Final = 15.0
_SHOWN: Final = 200  # characters of an answer or an annotation in an error


class Workers:
    """Registers pods with the hypervisor; safe for all threads, but run() is for one."""

    def __init__(
        self,
        node: NodeAccess,
        plugin: "DevicePlugin",
        memory: WorkerMemory,
        *,
        check_seconds: float = _CHECK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods, self._worker_pods, self._records = node.pods, node.worker_pods, node.records
        self._plugin = plugin
        self._memory = memory
        self._patience = Patience("Tensor Fusion's hypervisor")
        self._check_seconds = check_seconds
        self.allocate_seconds = _ALLOCATE_SECONDS
        self._clock = clock
        self._wakeup = Wakeup()
        self._guard = Lock()  # guards the next three
        # Indices given, by pod UID, and when the pod had the mark: no earlier list shows it.
        self._chosen: dict[str, tuple[int, float]] = {}
        self._busy: set[str] = set()  # UIDs of pods that are being registered
        # Pods whose annotations are to be compared, by UID; None if they have to be read.
        self._changed: dict[str, Mapping[str, Any] | None] = {}
        # Used by run() alone:
        self._lost: set[str] = set()  # UIDs of pods that the last check found unkept
        self._throttle = LogThrottle()

    def apply(self, claim: PreparedClaim, deadline: float) -> None:
        """Return once the hypervisor keeps the limits of the claim's pod; see Enforcer.apply().

        Raises:
            ClaimError: The hypervisor cannot keep the limits of this claim.
            RetryableError: It does not do it now.
        """
        if not marks.soft_shares(claim):
            return
        if deadline <= self._clock():
            for pod in claim.pods:
                self.is_kept(pod)  # if it is not, its registration will write the limits of then
            return
        pod = marks.the_pod(claim)
        recorded = self._records()
        worker = marks.of_pod(pod, [*recorded, claim])
        if worker is None or self.is_kept(pod):
            return
        for other in marks.of_other_pods(pod, recorded):
            raise RetryableError(
                f"pod {pod}: UID {pod.uid}: found claim {other.ref} of an earlier pod of this name "
                f"still prepared, UID {other.pods[0].uid}, expected the kubelet to unprepare it"
            )
        if self._register_worker(worker, deadline):
            log.debug("worker_registered", pod=str(pod), devices=list(worker.gpu_ids))

    def release(self, claim: PreparedClaim) -> None:
        """Remove the shared memory of the claim's pod with the last of its claims, and no other's.

        Two claims of a pod that are released at the same time may each take the other for one that
        still needs it. Then the pod's folder goes with the claims' other folders.

        Raises:
            RetryableError: It cannot be removed.
        """
        if not marks.soft_shares(claim):
            return
        with self._alone():
            others = (each for each in self._records() if each.ref.uid != claim.ref.uid)
            soft = [other for other in others if marks.soft_shares(other)]
            used = {pod for other in soft for pod in other.pods}
            for pod in {*claim.pods} - used:
                if self._memory.is_of(pod) or not marks.of_other_pods(pod, soft):
                    self._memory.remove(pod)
                else:
                    self._memory.forget(pod)

    def is_kept(self, pod: PodRef) -> bool:
        """Return True if the hypervisor keeps the pod; write the limits that are not as recorded.

        Raises:
            RetryableError: They cannot be written.
        """
        with self._alone():
            current = marks.of_pod(pod, self._records())
            if current is None or not self._memory.is_kept(pod, current.gpu_ids):
                return False
            if self._memory.set_limits(pod, current.limits):
                self._annotate_later(pod)
            return True

    def stop(self) -> None:
        """End run()."""
        self._wakeup.stop()

    def on_pods(self, pods: Iterable[Mapping[str, Any]]) -> None:
        """Compare the annotations of these pods now."""
        with self._guard:
            self._changed |= {str(pod["metadata"].get("uid")): pod for pod in pods}
        self._wakeup.wake()

    def on_event(self, kind: str, pod: Mapping[str, Any]) -> None:
        """Compare the annotations of a pod now, unless it is no longer a worker."""
        if kind != "DELETED":
            self.on_pods([pod])

    def run(self) -> None:
        """Update annotations after limits, and repair workers, until stopped.

        Raises:
            FatalError: A newer release has changed the store.
        """
        next_check = 0.0
        while self._wakeup.next_round():
            written = self.follow_annotations()
            if self._clock() >= next_check:
                with self._throttle.warning("workers_unchecked"):
                    self.repair()
                next_check = self._clock() + self._check_seconds
            if written:
                self._wakeup.pause(_PAUSE_SECONDS)
            else:
                self._wakeup.wait(self._check_seconds)

    def follow_annotations(self) -> int:
        """Write the annotations of workers whose limits or annotations changed.

        Those that changed first come first. Returns how many were written; what is more than
        MAX_PATCHES waits for the next call.
        """
        with self._guard:
            changed, self._changed = self._changed, {}
        if not changed:
            return 0
        try:
            workers = {worker.pod.uid: worker for worker in marks.of_claims(self._records())}
        except RetryableError as error:
            log.warning("workers_unchecked", error=str(error))
            with self._guard:
                self._changed = {**changed, **self._changed}
            return 0
        written = 0
        later: dict[str, Mapping[str, Any] | None] = {}
        for uid, stored in changed.items():
            if written == MAX_PATCHES:
                later[uid] = stored
            elif uid in workers:
                try:
                    if self._put_back(workers[uid], stored):
                        written += 1
                        if stored:
                            log.info("worker_annotations_put_back", pod=str(workers[uid].pod))
                except RetryableError as error:
                    log.warning(
                        "worker_annotations_failed", pod=str(workers[uid].pod), error=str(error)
                    )
                    later[uid] = None
        with self._guard:
            self._changed = {**later, **self._changed}
        return written

    def repair(self) -> None:
        """Register again the workers that this check and the one before found unkept.

        What was noted of pods without a claim is removed.

        Raises:
            RetryableError: The store cannot be read now.
            FatalError: A newer release has changed the store.
        """
        claims = self._records()
        uids = _pod_uids(claims)
        self._memory.forget_others(uids)
        with self._guard:
            self._chosen = {uid: each for uid, each in self._chosen.items() if uid in uids}
        if not self._plugin.is_serving():
            return
        every = marks.of_claims(claims)
        pods = Counter(str(worker.pod) for worker in every)
        lost = [
            worker
            for worker in every
            # Of two pods of one name, the first one's claims are unprepared soon.
            if pods[str(worker.pod)] == 1 and not self._is_surely_kept(worker)
        ]
        before, self._lost = self._lost, {worker.pod.uid for worker in lost}
        self._throttle.keep_only({*self._lost, ""})
        for worker in lost:
            uid = worker.pod.uid
            if uid not in before:
                continue
            with self._throttle.warning("worker_repair_failed", key=uid, pod=str(worker.pod)):
                if self._register_worker(worker, self._clock() + _REPAIR_SECONDS):
                    log.info("worker_repaired", pod=str(worker.pod), devices=list(worker.gpu_ids))

    def _is_surely_kept(self, worker: Worker) -> bool:
        try:
            return self.is_kept(worker.pod)
        except RetryableError:
            return False

    def _annotate_later(self, pod: PodRef) -> None:
        with self._guard:
            self._changed[pod.uid] = None
        self._wakeup.wake()

    def _put_back(self, worker: Worker, stored: Mapping[str, Any] | None) -> bool:
        """Restore the annotations that rule a registered pod; return False if they are as granted.

        A tenant may have changed them, or the limits changed. While they cannot be written, the
        memory's note says that the limits do not hold.

        Args:
            worker: As its claims are recorded now.
            stored: Its pod; None to read it.

        Raises:
            RetryableError: They may not have been written.
        """
        if not self._memory.is_of(worker.pod):
            return False
        stored = stored or self._pods.find(worker.pod, wait_seconds=_PATCH_SECONDS)
        wanted = marks.overruled(worker, stored) if stored else {}
        try:
            if wanted:
                self._worker_pods.mark(
                    worker.pod, labels={}, annotations=wanted, wait_seconds=_PATCH_SECONDS
                )
        except RetryableError as error:
            found = share_policy.pod_annotations(stored or {})
            shown = ", ".join(f"{key}: found {str(found.get(key))[:_SHOWN]}" for key in wanted)
            self._memory.record_reason(
                worker.pod, f"{shown}; the driver cannot put it back: {error}"
            )
            raise
        self._memory.record_reason(worker.pod, "")
        return bool(wanted)

    def _register_worker(self, worker: Worker, deadline: float) -> bool:
        """Register a worker; return False if nothing of its pod will run.

        Raises:
            ClaimError: See apply().
            RetryableError: See apply(), or another call registers the pod.
        """
        with self._registering(worker.pod):
            if self.is_kept(worker.pod):  # by another call, meanwhile
                return True
            stored = self._pods.find(worker.pod, wait_seconds=deadline - self._clock())
            if stored is None or marks.is_finished(stored):
                return False
            try:
                self._register_pod(worker, stored, deadline)
            except SilentEnforcerError:
                # A claim for whole cards goes on without limits, if nobody else has its cards.
                self._others(worker, stored, deadline)
                raise
        return True

    def _register_pod(self, worker: Worker, stored: Mapping[str, Any], deadline: float) -> None:
        if not self._plugin.is_serving():
            raise SilentEnforcerError(
                f"pod {worker.pod}: found no device plugin sockets of Tensor Fusion's "
                f"hypervisor, expected it to serve on this node; start it"
            )
        runs = marks.is_running(stored)
        if not runs:
            self._memory.clear(worker.pod)
        elif self._memory.is_replaced(worker.pod):
            raise RetryableError(
                f"pod {worker.pod}: shared memory: found another folder than the one that its "
                f"containers have mounted, expected the same; delete the pod"
            )
        with self._patience.waiting():
            given = self._mark(worker, stored, deadline)
            try:
                if not runs:
                    self._allocate(worker, int(str(given[names.MARK_INDEX])), deadline)
                seconds = min(_MEMORY_SECONDS, deadline - self._clock())
                self._memory.await_kept(worker.pod, worker.gpu_ids, wait_seconds=seconds)
                self._write_limits(worker)
            except RetryableError as error:
                log.warning("worker_withdrawn", pod=str(worker.pod), error=str(error))
                self._unmark(worker.pod, given)
                raise

    def _write_limits(self, worker: Worker) -> None:
        """Write the limits as they are recorded now; from then on is_kept() finds the worker.

        Raises:
            RetryableError: They cannot be written, or claims of the pod came or went.
        """
        with self._alone():
            current = marks.of_pod(worker.pod, self._records())
            if current is None or current.gpu_ids != worker.gpu_ids:
                raise RetryableError(
                    f"pod {worker.pod}: found other claims than at the start of its registration, "
                    f"expected the same; it is registered again"
                )
            self._memory.set_limits(current.pod, current.limits)
            self._memory.record_registered(current.pod)
        if current.limits != worker.limits:
            self._annotate_later(current.pod)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Write limits inside the block; no other thread or instance writes any meanwhile."""
        with node_lock(self._memory.lock_file(), wait_seconds=_LOCK_SECONDS):
            yield

    @contextmanager
    def _registering(self, pod: PodRef) -> Iterator[None]:
        with self._guard:
            if pod.uid in self._busy:
                raise RetryableError(
                    f"pod {pod}: found another call that registers it, expected one at a time"
                )
            self._busy.add(pod.uid)
        try:
            yield
        finally:
            with self._guard:
                self._busy.remove(pod.uid)

    def _mark(
        self, worker: Worker, stored: Mapping[str, Any], deadline: float
    ) -> Mapping[str, str | None]:
        """Mark the pod; return its new annotations.

        Raises:
            ClaimError: See marks.check_holders().
            RetryableError: One of its cards is in use, or the pod may not be marked.
        """
        pod = worker.pod
        began = self._clock()
        others = self._others(worker, stored, deadline)
        with self._guard:
            self._chosen.pop(pod.uid, None)
            new = [index for index, marked in self._chosen.values() if marked >= began]
            index = marks.free_index(others, new)
            self._chosen[pod.uid] = index, math.inf
        given = marks.marks(worker, stored, index)
        try:
            found = share_policy.pod_annotations(stored)
            if names.MARK_DRA_MARKS in found:  # by an earlier registration
                self._unmark(pod, found)
            self._worker_pods.mark(
                pod,
                labels={names.LABEL_COMPONENT: names.COMPONENT_WORKER},
                annotations=given,
                wait_seconds=min(_PATCH_SECONDS, deadline - self._clock()),
            )
        finally:  # it may have the mark in spite of an error
            with self._guard:
                self._chosen[pod.uid] = index, self._clock()
        return given

    def _others(
        self, worker: Worker, stored: Mapping[str, Any], deadline: float
    ) -> Sequence[Mapping[str, Any]]:
        """Return the node's other workers, none of which has one of this worker's cards.

        Raises:
            ClaimError: See marks.check_holders().
            RetryableError: One has, or they cannot be read now.
        """
        every = self._worker_pods.of_node(
            marks.unfinished_pod, wait_seconds=deadline - self._clock()
        )
        others = [each for each in every if each["metadata"]["uid"] != worker.pod.uid]
        # Read after the list: a claim is recorded before its pod is marked.
        own = _pod_uids(filter(marks.soft_shares, self._records()))
        marks.check_holders(worker, stored, others, own)
        return others

    def _unmark(self, pod: PodRef, marked: Mapping[str, object]) -> None:
        """Remove the marks from these annotations; the hypervisor forgets the pod.

        Raises:
            RetryableError: They may still be there. The next registration removes them.
        """
        self._worker_pods.mark(
            pod,
            labels={names.LABEL_COMPONENT: None},
            annotations=marks.unmarks(marked),
            wait_seconds=_PATCH_SECONDS,
        )

    def _allocate(self, worker: Worker, index: int, deadline: float) -> None:
        seconds = min(self.allocate_seconds, deadline - self._clock())
        found = self._plugin.allocate(index, wait_seconds=seconds)
        if found != {*worker.gpu_ids}:
            shown = ", ".join(sorted(found))[:_SHOWN] or "none"
            raise RetryableError(
                f"pod {worker.pod}: cards: found {shown} allocated by the hypervisor, expected "
                f"{', '.join(worker.gpu_ids)}"
            )


def _pod_uids(claims: Iterable[PreparedClaim]) -> Set[str]:
    """Return the UIDs of the pods that use these claims."""
    return {pod.uid for claim in claims for pod in claim.pods}
