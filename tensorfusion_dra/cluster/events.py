"""Events on the Node object and on its pods, in the form of events.k8s.io/v1."""

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

import structlog

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.objects import Nodes
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.errors import DriverError, RetryableError, StatusError
from tensorfusion_dra.runtime.loops import LogThrottle

log = structlog.get_logger()

_NODES_NAMESPACE: Final = "default"
"""Events about cluster-scoped objects are in the namespace `default`."""

_ACTION: Final = "ServeGPUs"
"""The event's action: what this driver does with the object. The reason gives the outcome."""

_TERMINATING: Final = "being terminated"
"""Part of the text by which the API server refuses objects in a namespace that is deleted."""

_PERMISSION: Final = "create on events in all namespaces"

_QUIET_SECONDS: Final = 600.0
_WAIT_SECONDS: Final = 5.0
_MAX_NOTE_BYTES: Final = 1024
_MAX_INSTANCE_BYTES: Final = 128


class Events:
    """Writer of Events; implements ports.Events. Use it from one thread."""

    def __init__(
        self,
        api: Api,
        nodes: Nodes,
        *,
        node_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the arguments.

        Args:
            clock: In seconds. It measures the time in which an event is not repeated.
        """
        self._api = api
        self._nodes = nodes
        self._node_name = node_name
        self._clock = clock
        self._written: dict[tuple[str, str, PodRef | None], float] = {}
        self._paused_until = -math.inf
        self._may_name_pods = True
        self._throttle = LogThrottle(clock=clock)

    def warn(self, reason: str, message: str, *, pod: PodRef | None = None) -> bool:
        return self._write("Warning", reason, message, pod)

    def note(self, reason: str, message: str, *, pod: PodRef | None = None) -> bool:
        return self._write("Normal", reason, message, pod)

    def _write(self, kind: str, reason: str, message: str, pod: PodRef | None) -> bool:
        now = self._clock()
        self._written = {
            event: at for event, at in self._written.items() if now - at < _QUIET_SECONDS
        }
        if (reason, message, pod) in self._written:
            return True
        if now < self._paused_until:
            return False
        try:
            self._send(kind, reason, message, pod)
        except DriverError as error:
            if isinstance(error, RetryableError):
                self._paused_until = self._clock() + error.after_seconds
            if self._throttle.is_new(str(error)):
                log.warning("event_write_failed", reason=reason, error=str(error))
            return False
        self._throttle.over()
        self._written[reason, message, pod] = now
        return True

    def _send(self, kind: str, reason: str, message: str, pod: PodRef | None) -> None:
        """Create the Event; about the Node if this driver may not write any about pods."""
        if pod is not None and self._may_name_pods:
            regarding = {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            }
            try:
                self._create(pod.namespace, kind, reason, message, regarding)
            except StatusError as error:
                if error.status == HTTPStatus.NOT_FOUND or _TERMINATING in str(error):
                    return  # the namespace goes, and the pod with it
                if error.status != HTTPStatus.FORBIDDEN:
                    raise
                self._may_name_pods = False
                log.warning("pod_events_forbidden", error=f"expected {_PERMISSION}: {error}")
            else:
                return
        regarding = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node_name,
            "uid": self._nodes.uid(),
        }
        text = message if pod is None else f"pod {pod}: {message}"
        self._create(_NODES_NAMESPACE, kind, reason, text, regarding)

    def _create(
        self, namespace: str, kind: str, reason: str, message: str, regarding: Mapping[str, str]
    ) -> None:
        note = printable.one_line(message)
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{names.DRIVER}-", "namespace": namespace},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": names.DRIVER,
            "reportingInstance": self._node_name[:_MAX_INSTANCE_BYTES],
            "action": _ACTION,
            "reason": reason,
            "type": kind,
            "regarding": regarding,
            "note": note.encode()[:_MAX_NOTE_BYTES].decode(errors="ignore"),
        }
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        self._api.call("POST", path, body=event, wait_seconds=_WAIT_SECONDS)
