"""Events on pods, in the format of the recorders of real components.

Source: client-go, release 1.36: tools/record for the kubelet and the controllers, tools/events for
the scheduler. Unlike those, these recorders count an Event as repeated only if its text is the same
too, and write each new count at once.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final, Protocol

from dra_simulator.responses import ApiError, RestError
from dra_simulator.rest import EVENTS, EVENTS_V1, Client, Json, Resource

Document = Mapping[str, Any]

_NOT_FOUND: Final = 404
_MAX_NOTE_BYTES: Final = 1024
_CUT: Final = " ..."
_ACTIONS: Final = {"Scheduled": "Binding"}
_OTHER_ACTION: Final = "Scheduling"


class Style(Protocol):
    """API group of a component's Events, and its way to count repetitions."""

    @property
    def resource(self) -> Resource:
        """Resource of the Events."""
        ...

    def body(self, about: Json, reason: str, *, message: str, kind: str) -> Json:
        """Return the fields of a new Event.

        Args:
            about: Reference to the object of the Event.
            kind: Type of the Event, Normal or Warning.
        """
        ...

    def repeated(self, count: int) -> Json:
        """Return the patch that sets the count of a repeated Event."""
        ...


class CoreStyle:
    """Style of the core group's Events, with count and lastTimestamp."""

    resource: Final = EVENTS

    def __init__(self, component: str, host: str = "") -> None:
        self._reporter: Final = {
            "source": {"component": component, **({"host": host} if host else {})},
            "reportingComponent": component,
            "reportingInstance": host,
        }

    def body(self, about: Json, reason: str, *, message: str, kind: str) -> Json:
        now = _now(digits=0)
        times = {"firstTimestamp": now, "lastTimestamp": now, "count": 1}
        facts = {"involvedObject": about, "reason": reason, "message": message, "type": kind}
        return {**facts, **self._reporter, **times}

    def repeated(self, count: int) -> Json:
        return {"count": count, "lastTimestamp": _now(digits=0)}


class SeriesStyle:
    """Style of the Events of events.k8s.io, with a series once they are repeated."""

    resource: Final = EVENTS_V1

    def __init__(self, component: str) -> None:
        self._reporter: Final = {
            "reportingController": component,
            "reportingInstance": f"{component}-simulated",
        }

    def body(self, about: Json, reason: str, *, message: str, kind: str) -> Json:
        facts = {"regarding": about, "reason": reason, "note": _cut(message), "type": kind}
        action = _ACTIONS.get(reason, _OTHER_ACTION)
        return {**facts, **self._reporter, "action": action, "eventTime": _now(digits=6)}

    def repeated(self, count: int) -> Json:
        return {"series": {"count": count, "lastObservedTime": _now(digits=6)}}


class Recorder:
    """Writer of a component's Events on pods; a repeated Event is counted, not written again.

    An Event that cannot be written is dropped without an error.
    """

    def __init__(self, client: Client, style: Style) -> None:
        self._client: Final = client
        self._style: Final = style
        self._lock: Final = Lock()  # guards _written
        self._written: Final[dict[tuple[str, ...], tuple[Json, int]]] = {}

    def record(
        self,
        pod: Document,
        reason: str,
        message: str,
        *,
        warning: bool = True,
        field_path: str = "",
    ) -> None:
        """Write an Event on a pod, or on the part of it that field_path names."""
        metadata = pod["metadata"]
        about = {
            "apiVersion": "v1",
            "kind": "Pod",
            **{name: metadata[name] for name in ("namespace", "name", "uid", "resourceVersion")},
            **({"fieldPath": field_path} if field_path else {}),
        }
        key = (str(metadata["uid"]), field_path, reason, message)
        with self._lock:
            known = self._written.get(key)
        try:
            written = self._repeat(*known) if known else None
            if written is None:
                kind = "Warning" if warning else "Normal"
                fields = self._style.body(about, reason, message=message, kind=kind)
                written = self._create(about, fields), 1
        except RestError:
            return
        with self._lock:
            self._written[key] = written

    def _create(self, about: Json, fields: Json) -> Json:
        metadata = {
            "name": f"{about['name']}.{time.time_ns():x}",
            "namespace": about["namespace"],
        }
        resource = self._style.resource
        marks = {"apiVersion": resource.api_version, "kind": resource.kind}
        return self._client.create(resource, {**marks, "metadata": metadata, **fields})

    def _repeat(self, event: Json, count: int) -> tuple[Json, int] | None:
        """Count an Event once more; return None if it is gone."""
        try:
            patch = self._style.repeated(count + 1)
            return self._client.patch(self._style.resource, event, patch), count + 1
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def forget(self, pod_uid: str) -> None:
        """Forget the Events of a pod that is gone."""
        with self._lock:
            for key in [key for key in self._written if key[0] == pod_uid]:
                del self._written[key]


def _now(*, digits: int) -> str:
    moment = datetime.now(UTC)
    fraction = f".{moment.microsecond:06}" if digits else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def _cut(message: str) -> str:
    """Cut a note to the length that the API allows."""
    encoded = message.encode()
    if len(encoded) <= _MAX_NOTE_BYTES:
        return message
    return encoded[: _MAX_NOTE_BYTES - len(_CUT)].decode(errors="ignore") + _CUT
