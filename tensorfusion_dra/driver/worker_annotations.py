"""Annotations by which the hypervisor regulates registered workers: they follow the limits.

The values are those of core/claims/workers.py. They are written when limits change, and again when
somebody else changed them.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Final

from tensorfusion_dra.core.claims import workers
from tensorfusion_dra.core.claims.workers import Worker
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports.cluster import Pods, WorkerPods
from tensorfusion_dra.driver.ports.hypervisor import WorkerMemory

_PATCH_SECONDS: Final = 10.0
_SHOWN: Final = 200
"""Characters of an annotation that an error quotes."""


class WorkerAnnotations:
    """Writer of these annotations; safe for all threads."""

    def __init__(
        self,
        pods: Pods,
        worker_pods: WorkerPods,
        memory: WorkerMemory,
        *,
        on_change: Callable[[], None],
    ) -> None:
        """Write nothing yet.

        Args:
            pods: Reads a claim's pod.
            worker_pods: Writes annotations.
            memory: The workers' shared memory.
            on_change: Called when take_changed() has something new.
        """
        self._pods = pods
        self._worker_pods = worker_pods
        self._memory = memory
        self._on_change = on_change
        self._guard = Lock()  # guards the next one
        self._changed: dict[str, Worker] = {}  # by pod UID

    def note_changed(self, worker: Worker) -> None:
        """Have the annotations follow the limits of a worker."""
        with self._guard:
            self._changed[worker.pod.uid] = worker
        self._on_change()

    def take_changed(self) -> Sequence[Worker]:
        """Return the workers whose limits changed since the last call."""
        with self._guard:
            changed, self._changed = self._changed, {}
        return tuple(changed.values())

    def patch_limits(self, worker: Worker) -> None:
        """Have the pod's annotations follow its limits.

        Raises:
            RetryableError: They may not have been written. The worker counts as changed again.
        """
        try:
            stored = self._pods.find(worker.pod, wait_seconds=_PATCH_SECONDS)
        except RetryableError:
            self._change_later(worker)
            raise
        if stored is not None:
            self.put_back(worker, stored)

    def put_back(self, worker: Worker, stored: Mapping[str, Any]) -> bool:
        """Have the annotations that rule a registered pod be as granted; False if they were.

        A tenant may have changed them, or the limits changed. Until they are written, the memory's
        note says that the limits do not hold.

        Raises:
            RetryableError: They may not have been written. The worker counts as changed again.
        """
        wanted = workers.overruled(worker, stored) if self._memory.is_of(worker.pod) else {}
        if not wanted:
            return False
        try:
            self._worker_pods.mark(
                worker.pod, labels={}, annotations=wanted, wait_seconds=_PATCH_SECONDS
            )
        except RetryableError as error:
            self._change_later(worker)
            found = workers.annotations(stored)
            shown = ", ".join(f"{key}: found {str(found.get(key))[:_SHOWN]}" for key in wanted)
            self._memory.note_trouble(
                worker.pod, f"{shown}; the driver cannot put it back: {error}"
            )
            raise
        self._memory.note_trouble(worker.pod, "")
        return True

    def _change_later(self, worker: Worker) -> None:
        with self._guard:
            self._changed.setdefault(worker.pod.uid, worker)
