"""Events on the Node object, as events.k8s.io/v1 has them."""

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
"""Events on objects without a namespace lie in `default`."""

_ACTION: Final = "ServeGPUs"
"""What this driver does with the Node; the reason says what became of it."""

_QUIET_SECONDS: Final = 600.0
_WAIT_SECONDS: Final = 5.0
_MAX_NOTE_BYTES: Final = 1024
_MAX_INSTANCE_BYTES: Final = 128


class Events:
    """See ports.cluster.Events. For one thread."""

    def __init__(
        self,
        api: Api,
        nodes: Nodes,
        *,
        node_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Writes nothing yet.

        Args:
            clock: In seconds; for the time in which nothing is repeated.
        """
        self._api = api
        self._nodes = nodes
        self._node_name = node_name
        self._clock = clock
        self._written: dict[tuple[str, str], float] = {}
        self._paused_until = -math.inf
        self._throttle = LogThrottle(clock=clock)

    def warn(self, reason: str, message: str) -> bool:
        """See ports.cluster.Events."""
        return self._write("Warning", reason, message)

    def note(self, reason: str, message: str) -> bool:
        """See ports.cluster.Events."""
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
                log.warning("event_not_written", reason=reason, error=str(error))
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
