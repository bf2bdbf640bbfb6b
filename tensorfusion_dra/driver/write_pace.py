"""Pace of writes that nobody waits for, so that they do not compete with the kubelet's calls.

A write costs a few milliseconds of this process, whose threads share one interpreter lock, and as
much of the API server. A prepare that runs at the same time needs both. So a write waits for an
idle moment: no call is in flight, and the last one ended a tenth of a second ago. Calls that come
one after the other, as for the pods of a rollout, leave no such moment between them.

Calls may go on for long, so a write waits for two seconds at most. Then writes are made beside the
calls, at most 20 per second. In idle moments it is 50 per second, as many requests as the kubelet
itself sends by default (kubeAPIQPS).

Example: a pod starts on an idle node. Its status is written 0.1 s after the call. On a node where
100 pods start within five seconds, the first statuses are written after two seconds, the last ones
about a second after the last call.
"""

import math
import time
from collections.abc import Callable
from typing import Final

from tensorfusion_dra.runtime.calls_in_flight import CallsInFlight

IDLE_SECONDS: Final = 0.1
"""Time without a call after which the kubelet is taken to be idle."""
MOST_WAIT_SECONDS: Final = 2.0
_SPACING_SECONDS: Final = 1 / 50
_SPACING_BESIDE_CALLS_SECONDS: Final = 1 / 20


class WritePace:
    """Times at which writes may begin. For one thread, which makes them one after the other."""

    def __init__(
        self, calls: CallsInFlight, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._began = -math.inf  # time of the last write

    def seconds_left(self, due: float) -> float:
        """Return the time to wait before asking again; 0 or less if a write may begin now.

        Args:
            due: Time since when the write has been waiting for its moment; it may be to come.
        """
        now = self._clock()
        quiet_seconds = self._calls.quiet_seconds()
        if quiet_seconds >= IDLE_SECONDS:
            return max(due, self._began + _SPACING_SECONDS) - now
        idle = now + IDLE_SECONDS - quiet_seconds
        allowed = max(due + MOST_WAIT_SECONDS, self._began + _SPACING_BESIDE_CALLS_SECONDS)
        return max(due, min(idle, allowed)) - now

    def begin(self) -> None:
        """Note that a write begins."""
        self._began = self._clock()
