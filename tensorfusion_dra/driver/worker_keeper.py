"""Follow-up on workers: annotations that follow limits or were changed, lost registrations.

The hypervisor obeys a worker's annotations, and a tenant may change them at any time. So the node's
workers are watched, and the driver's values are put back as soon as an event shows others.

A hypervisor that restarts finds the workers that run by itself. It does not find those whose
containers were not started yet: for such a pod it waits for an Allocate that the driver has made
already. So a worker without a live shared memory is registered anew. Only if two looks in a row
find it so, because a restart takes some seconds, and only while the hypervisor serves.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any, Final

import structlog

from tensorfusion_dra.core.claims import workers as worker_rules
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.workers import Worker
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver.ports import DevicePlugin
from tensorfusion_dra.driver.workers import Workers
from tensorfusion_dra.runtime.log_throttle import LogThrottle
from tensorfusion_dra.runtime.wakeup import Wakeup

log = structlog.get_logger()

_REPAIR_SECONDS: Final = 20.0
_CHECK_SECONDS: Final = 15.0


class WorkerKeeper:
    """Loop that keeps the hypervisor's workers as the ledger's claims want them."""

    def __init__(
        self,
        plugin: DevicePlugin,
        *,
        claims: Callable[[], Iterable[PreparedClaim]],
        check_seconds: float = _CHECK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Do nothing yet.

        Args:
            plugin: The hypervisor.
            claims: Returns all recorded claims of the node.
            check_seconds: Interval of the looks.
            clock: In seconds.
        """
        self._plugin = plugin
        self._claims = claims
        self._check_seconds = check_seconds
        self._clock = clock
        self._wakeup = Wakeup()
        self._guard = Lock()  # guards the next one
        # Pods to check, by UID; None if they have to be read.
        self._seen: dict[str, Mapping[str, Any] | None] = {}
        # Used by one thread alone:
        self._lost: set[str] = set()  # UIDs of pods that the last look found unkept
        self._ended: set[str] = set()  # UIDs of those of which nothing will run
        self._throttle = LogThrottle()

    def stop(self) -> None:
        """End run()."""
        self._wakeup.stop()

    def note_limits(self, pod: PodRef) -> None:
        """Have the annotations of a pod follow its limits now."""
        with self._guard:
            self._seen[pod.uid] = None
        self._wakeup.wake()

    def note_pods(self, pods: Iterable[Mapping[str, Any]]) -> None:
        """Have the annotations of these pods checked now."""
        with self._guard:
            self._seen |= {str(pod["metadata"].get("uid")): pod for pod in pods}
        self._wakeup.wake()

    def note_event(self, kind: str, pod: Mapping[str, Any]) -> None:
        """Have the annotations of a pod checked now, unless it is no worker any more."""
        if kind != "DELETED":
            self.note_pods([pod])

    def run(self, workers: Workers) -> None:
        """Follow changed limits and repair, until stopped.

        Raises:
            FatalError: A newer release has changed the ledger.
        """
        next_look = 0.0
        while self._wakeup.next_round():
            self.follow(workers)
            if self._clock() >= next_look:
                self._look(workers)
                next_look = self._clock() + self._check_seconds
            self._wakeup.wait(self._check_seconds)

    def follow(self, workers: Workers) -> None:
        """Write the annotations of workers whose limits or annotations changed."""
        with self._guard:
            seen, self._seen = self._seen, {}
        try:
            every = worker_rules.of_claims(self._claims()) if seen else ()
        except RetryableError as error:
            log.warning("workers_unchecked", error=str(error))
            self._see_later(seen)
            return
        for worker in every:
            if (uid := worker.pod.uid) not in seen:
                continue
            try:
                if workers.put_back(worker, seen[uid]) and seen[uid]:
                    log.info("worker_annotations_put_back", pod=str(worker.pod))
            except RetryableError as error:
                log.warning("worker_annotations_failed", pod=str(worker.pod), error=str(error))
                self._see_later({uid: None})

    def repair(self, workers: Workers) -> None:
        """Register again the workers that this look and the one before found unkept.

        Raises:
            RetryableError: The ledger cannot be read now.
            FatalError: A newer release has changed the ledger.
        """
        if not self._plugin.is_serving():
            return
        every = worker_rules.of_claims(self._claims())
        names = Counter(str(worker.pod) for worker in every)
        # Of two pods of one name, the first one's claims are unprepared soon; see workers.py.
        lost = [each for each in every if names[str(each.pod)] == 1 and not _is_kept(workers, each)]
        before, self._lost = self._lost, {worker.pod.uid for worker in lost}
        self._ended &= self._lost
        self._throttle.keep_only({*self._lost, ""})
        for worker in lost:
            if worker.pod.uid in before - self._ended:
                self._repair_one(workers, worker)

    def _see_later(self, seen: Mapping[str, Mapping[str, Any] | None]) -> None:
        with self._guard:
            self._seen = {**seen, **self._seen}

    def _repair_one(self, workers: Workers, worker: Worker) -> None:
        try:
            if workers.register_worker(worker, self._clock() + _REPAIR_SECONDS):
                log.info("worker_repaired", pod=str(worker.pod), devices=list(worker.gpu_ids))
            else:
                self._ended.add(worker.pod.uid)
        except (ClaimError, RetryableError) as error:
            if self._throttle.is_new(str(error), key=worker.pod.uid):
                log.warning("worker_repair_failed", pod=str(worker.pod), error=str(error))

    def _look(self, workers: Workers) -> None:
        try:
            workers.forget_gone()
            self.repair(workers)
        except RetryableError as error:
            if self._throttle.is_new(str(error)):
                log.warning("workers_unchecked", error=str(error))


def _is_kept(workers: Workers, worker: Worker) -> bool:
    try:
        return workers.is_kept(worker)
    except RetryableError:
        return False
