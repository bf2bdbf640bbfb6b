"""Events on pods with what the webhook warned of.

A controller creates most pods, and nobody reads the warnings that it gets.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

import structlog

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.objects import create_event, regarding_pod
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.runtime.loops import Wakeup

log = structlog.get_logger()

_MOST_A_SECOND: Final = 5
_MOST_WAITING: Final = 50
_REMEMBERED: Final = 1000


class PodEvents:
    """Writer of one Event for each pod, in a thread of its own.

    At most five a second, and one a second for each namespace; those beyond are dropped.
    """

    def __init__(self, api: Api, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Args:
        clock: In seconds; must not go back.
        """
        self._api = api
        self._clock = clock
        self._wakeup = Wakeup()
        self._lock = Lock()  # guards all below
        self._waiting: deque[tuple[PodRef, str]] = deque()
        self._taken: deque[tuple[float, str]] = deque(maxlen=_MOST_A_SECOND)
        self._known: deque[str] = deque(maxlen=_REMEMBERED)

    def say(self, pod: PodRef, warnings: Sequence[str]) -> None:
        """Have an Event written; from any thread, and without waiting."""
        now = self._clock()
        with self._lock:
            lately = [namespace for at, namespace in self._taken if now - at < 1]
            is_full = len(lately) == _MOST_A_SECOND or len(self._waiting) == _MOST_WAITING
            if is_full or pod.namespace in lately or pod.uid in self._known:
                return
            self._taken.append((now, pod.namespace))
            self._known.append(pod.uid)
            self._waiting.append((pod, "; ".join(warnings)))
        self._wakeup.wake()

    def run(self) -> None:
        """Write until stopped."""
        while self._wakeup.next_round():
            with self._lock:
                waiting = list(self._waiting)
                self._waiting.clear()
            for pod, text in waiting:
                try:
                    create_event(
                        self._api,
                        pod.namespace,
                        "Warning",
                        reason="GPURequest",
                        message=text,
                        regarding=regarding_pod(pod),
                        instance=f"{names.DRIVER}-webhook",
                    )
                except DriverError as error:  # such as a namespace that goes
                    log.debug("event_write_failed", pod=str(pod), error=str(error))
            self._wakeup.wait()

    def stop(self) -> None:
        """End run()."""
        self._wakeup.stop()
