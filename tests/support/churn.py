"""Pods that are created and deleted on a simulated cluster without a pause."""

import time
from collections.abc import Mapping
from threading import Event, Thread
from typing import Final

from dra_simulator.rest import PODS
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tests.support.waiting import eventually

_POLL_SECONDS: Final = 0.05
_END_SECONDS: Final = 120.0
"""A kubelet repeats a failed call after up to a minute."""
_TROUBLE: Final = frozenset({"pod_not_prepared", "container_failed", "pod_not_unprepared"})


class Churn:
    """A constant number of pods: each is deleted as soon as it runs, and another one is created.

    Attributes:
        ended: Number of pods that have run and are gone.
    """

    def __init__(self, cluster: SimulatedCluster, *, pods: int, asks: Mapping[str, str]) -> None:
        """Start at once."""
        self.ended = 0
        self._cluster: Final = cluster
        self._pods: Final = pods
        self._asks: Final = dict(asks)
        self._stop: Final = Event()
        self._error: Exception | None = None
        self._created: Final[set[str]] = set()
        self._running: Final[set[str]] = set()
        self._thread: Final = Thread(target=self._run, name="churn", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Create no more pods; return once all are gone.

        Raises:
            TimeoutError: Some pods do not end.
        """
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def reason(self) -> list[str]:
        """Return the kubelet's failures with these pods."""
        return [str(e) for e in self._cluster.kubelet.journal if e.event in _TROUBLE]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._step()
                while len(self._created) < self._pods:
                    self._create()
                self._stop.wait(_POLL_SECONDS)
            if not eventually(self._ended, _END_SECONDS):
                raise TimeoutError(f"{sorted(self._created)} did not end: {self.reason()[-3:]}")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001 - raised again by stop()
            self._error = error

    def _ended(self) -> bool:
        self._step()
        return not self._created

    def _create(self) -> None:
        name = f"churn-{self.ended + len(self._created)}-{time.monotonic_ns()}"
        self._created.add(name)
        self._cluster.submit(name, self._asks)

    def _step(self) -> None:
        found = {pod["metadata"]["name"] for pod in self._cluster.client.list(PODS).items}
        for name in [*self._created]:
            if name not in found:
                self._created.discard(name)
                self.ended += name in self._running
                self._running.discard(name)
            elif name not in self._running and self._cluster.container_of(name) is not None:
                self._running.add(name)
                self._cluster.delete(name)
