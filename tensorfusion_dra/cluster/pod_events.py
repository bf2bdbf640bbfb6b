"""Events on pods, and on their controllers, with what the webhook warned of.

A controller creates most pods, and nobody reads the warnings that it gets. A pod has no UID yet
when the webhook reviews it. So an Event is about the pod only once its claim is created, and about
the controller if the pod gets no claim.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Final

import structlog

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.objects import create_event
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.runtime.loops import Wakeup

log = structlog.get_logger()

_MOST_A_SECOND: Final = 5
_MOST_WAITING: Final = 50
_REMEMBERED: Final = 1000


class PodEvents:
    """Writer of one Event for each pod and controller, in a thread of its own.

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
        self._waiting: deque[tuple[Mapping[str, str], str]] = deque()
        self._taken: deque[tuple[float, str]] = deque(maxlen=_MOST_A_SECOND)
        self._known: deque[str] = deque(maxlen=_REMEMBERED)

    def say(self, about: Mapping[str, str], warnings: Sequence[str]) -> None:
        """Queue an Event; from any thread, and without waiting.

        Args:
            about: The pod or controller, as an Event refers to it.
        """
        now, namespace, uid = self._clock(), about["namespace"], about["uid"]
        with self._lock:
            lately = [each for at, each in self._taken if now - at < 1]
            is_full = len(lately) == _MOST_A_SECOND or len(self._waiting) == _MOST_WAITING
            if is_full or namespace in lately or uid in self._known:
                return
            self._taken.append((now, namespace))
            self._known.append(uid)
            self._waiting.append((about, "; ".join(warnings)))
        self._wakeup.wake()

    def run(self) -> None:
        """Write until stopped."""
        while self._wakeup.next_round():
            with self._lock:
                waiting = list(self._waiting)
                self._waiting.clear()
            for about, text in waiting:
                # The same in all replicas of the webhook, of which one creates the Event.
                digest = hashlib.sha256(about["uid"].encode(errors="replace")).hexdigest()[:16]
                try:
                    create_event(
                        self._api,
                        about["namespace"],
                        "Warning",
                        reason="GPURequest",
                        message=text,
                        regarding=about,
                        instance=f"{names.DRIVER}-webhook",
                        name=f"{names.DRIVER}-{digest}",
                    )
                except DriverError as error:  # such as one of another replica, or no namespace
                    log.debug("event_write_failed", name=about["name"], error=str(error))
            self._wakeup.wait()

    def stop(self) -> None:
        """End run()."""
        self._wakeup.stop()
