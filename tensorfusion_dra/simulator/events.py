"""Events on pods, written as the recorders of real components write them.

client-go, release 1.36: tools/record for the kubelet and the controllers, tools/events for the
scheduler. Unlike theirs, these recorders count an Event only if its text is repeated as well, and
write each new count at once.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final, Protocol

from tensorfusion_dra.simulator.answers import ApiError, RestError
from tensorfusion_dra.simulator.rest import EVENTS, NEW_EVENTS, Client, Json, Resource

Document = Mapping[str, Any]

_NOT_FOUND: Final = 404
_MAX_NOTE_BYTES: Final = 1024
_CUT: Final = " ..."
_ACTIONS: Final = {"Scheduled": "Binding"}
_OTHER_ACTION: Final = "Scheduling"


class Style(Protocol):
    """In which API group a component writes its Events, and how it counts them."""

    @property
    def resource(self) -> Resource:
        """Where the Events are written."""
        ...

    def body(self, about: Json, reason: str, *, message: str, kind: str) -> Json:
        """Return the fields of a new Event; about refers to the object, kind is its type."""
        ...

    def repeated(self, count: int) -> Json:
        """Return the patch that counts one more."""
        ...


class CoreStyle:
    """Events of the core group, with count and lastTimestamp."""

    resource: Final = EVENTS

    def __init__(self, component: str, host: str = "") -> None:
        self._reporter: Final = {
            "source": {"component": component, **({"host": host} if host else {})},
            "reportingComponent": component,
            "reportingInstance": host,
        }

    def body(self, about: Json, reason: str, *, message: str, kind: str) -> Json:
        """See Style."""
        now = _now(digits=0)
        times = {"firstTimestamp": now, "lastTimestamp": now, "count": 1}
        facts = {"involvedObject": about, "reason": reason, "message": message, "type": kind}
        return {**facts, **self._reporter, **times}

    def repeated(self, count: int) -> Json:
        """See Style."""
        return {"count": count, "lastTimestamp": _now(digits=0)}


class SeriesStyle:
    """Events of events.k8s.io, with a series once they are repeated."""

    resource: Final = NEW_EVENTS

    def __init__(self, component: str) -> None:
        self._reporter: Final = {
            "reportingController": component,
            "reportingInstance": f"{component}-simulated",
        }

    def body(self, about: Json, reason: str, *, message: str, kind: str) -> Json:
        """See Style."""
        facts = {"regarding": about, "reason": reason, "note": _cut(message), "type": kind}
        action = _ACTIONS.get(reason, _OTHER_ACTION)
        return {**facts, **self._reporter, "action": action, "eventTime": _now(digits=6)}

    def repeated(self, count: int) -> Json:
        """See Style."""
        return {"series": {"count": count, "lastObservedTime": _now(digits=6)}}


class Recorder:
    """Writes a component's Events on pods; a repeated one is counted, not written again.

    An Event is no reason to stop: one that cannot be written is dropped.
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
        """Counts an Event once more; None if it is gone."""
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
    """A note of at most the length that the API takes."""
    encoded = message.encode()
    if len(encoded) <= _MAX_NOTE_BYTES:
        return message
    return encoded[: _MAX_NOTE_BYTES - len(_CUT)].decode(errors="ignore") + _CUT
