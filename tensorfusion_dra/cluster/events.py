"""Events on the Node object, in the form of events.k8s.io/v1."""

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.nodes import Nodes
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.errors import DriverError, RetryableError
from tensorfusion_dra.driver.log_throttle import LogThrottle

log = structlog.get_logger()

_PATH: Final = "/apis/events.k8s.io/v1/namespaces/default/events"
"""Events about cluster-scoped objects are in the namespace `default`."""

_ACTION: Final = "ServeGPUs"
"""The event's action: what this driver does with the Node. The reason gives the outcome."""

_QUIET_SECONDS: Final = 600.0
_WAIT_SECONDS: Final = 5.0
_MAX_NOTE_BYTES: Final = 1024
_MAX_INSTANCE_BYTES: Final = 128


class Events:
    """Writer of Events; implements ports.cluster.Events. Use it from one thread."""

    def __init__(
        self,
        api: Api,
        nodes: Nodes,
        *,
        node_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the arguments; nothing is written yet.

        Args:
            clock: In seconds. It measures the time in which an event is not repeated.
        """
        self._api = api
        self._nodes = nodes
        self._node_name = node_name
        self._clock = clock
        self._written: dict[tuple[str, str], float] = {}
        self._paused_until = -math.inf
        self._throttle = LogThrottle(clock=clock)

    def warn(self, reason: str, message: str) -> bool:
        return self._write("Warning", reason, message)

    def note(self, reason: str, message: str) -> bool:
        return self._write("Normal", reason, message)

    def _write(self, kind: str, reason: str, message: str) -> bool:
        now = self._clock()
        self._written = {
            event: at for event, at in self._written.items() if now - at < _QUIET_SECONDS
        }
        if (reason, message) in self._written:
            return True
        if now < self._paused_until:
            return False
        try:
            event = self._event(kind, reason, message, node_uid=self._nodes.uid())
            self._api.call("POST", _PATH, body=event, wait_seconds=_WAIT_SECONDS)
        except DriverError as error:
            if isinstance(error, RetryableError):
                self._paused_until = self._clock() + error.after_seconds
            if self._throttle.is_new(str(error)):
                log.warning("event_write_failed", reason=reason, error=str(error))
            return False
        self._throttle.over()
        self._written[reason, message] = now
        return True

    def _event(self, kind: str, reason: str, message: str, *, node_uid: str) -> dict[str, Any]:
        note = printable.one_line(message)
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        regarding = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node_name,
            "uid": node_uid,
        }
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{names.DRIVER}-", "namespace": "default"},
            "eventTime": moment,
            "reportingController": names.DRIVER,
            "reportingInstance": self._node_name[:_MAX_INSTANCE_BYTES],
            "action": _ACTION,
            "reason": reason,
            "type": kind,
            "regarding": regarding,
            "note": note.encode()[:_MAX_NOTE_BYTES].decode(errors="ignore"),
        }
