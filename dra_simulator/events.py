"""Events on pods, in the format of the kubelet's recorder (client-go, tools/record, release 1.36).

Unlike that, this one counts an Event as repeated only if its text is the same too, and writes each
new count at once. The real scheduler writes Events of events.k8s.io; kubectl shows both alike.
"""

import time
from collections.abc import Mapping
from threading import Lock
from typing import Any, Final

from dra_simulator import podclaims
from dra_simulator.rest import EVENTS, ApiError, Client, Json, RestError

Document = Mapping[str, Any]

_NOT_FOUND: Final = 404


class Recorder:
    """Writer of a component's Events on pods; a repeated Event is counted, not written again.

    An Event that cannot be written is dropped without an error.
    """

    def __init__(self, client: Client, component: str, host: str = "") -> None:
        self._client: Final = client
        self._reporter: Final = {
            "source": {"component": component, **({"host": host} if host else {})},
            "reportingComponent": component,
            "reportingInstance": host,
        }
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
                facts = {"reason": reason, "message": message, "type": kind}
                written = self._create(about, facts), 1
        except RestError:
            return
        with self._lock:
            self._written[key] = written

    def _create(self, about: Json, facts: Json) -> Json:
        now = podclaims.now()
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                "name": f"{about['name']}.{time.time_ns():x}",
                "namespace": about["namespace"],
            },
            "involvedObject": about,
            **facts,
            **self._reporter,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        return self._client.create(EVENTS, body)

    def _repeat(self, event: Json, count: int) -> tuple[Json, int] | None:
        """Count an Event once more; return None if it is gone."""
        try:
            patch = {"count": count + 1, "lastTimestamp": podclaims.now()}
            return self._client.patch(EVENTS, event, patch), count + 1
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def forget(self, pod_uid: str) -> None:
        """Forget the Events of a pod that is gone."""
        with self._lock:
            for key in [key for key in self._written if key[0] == pod_uid]:
                del self._written[key]
