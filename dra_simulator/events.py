"""Events on pods, in the format of the kubelet's recorder (client-go, tools/record, release 1.36).

Unlike that, this one writes an Event of a text once and does not count its repetitions. The real
scheduler writes Events of events.k8s.io; kubectl shows both alike.
"""

import contextlib
import time
from collections.abc import Mapping
from threading import Lock
from typing import Any, Final

from dra_simulator import podclaims
from dra_simulator.rest import EVENTS, Client, RestError

Document = Mapping[str, Any]


class Recorder:
    """Writer of a component's Events on pods; a repeated Event is not written again.

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
        self._written: Final[set[tuple[str, ...]]] = set()

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
            if key in self._written:
                return
        now = podclaims.now()
        event = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                "name": f"{about['name']}.{time.time_ns():x}",
                "namespace": about["namespace"],
            },
            "involvedObject": about,
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            **self._reporter,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        with contextlib.suppress(RestError):
            self._client.create(EVENTS, event)
            with self._lock:
                self._written.add(key)

    def forget(self, pod_uid: str) -> None:
        """Forget the Events of a pod that is gone."""
        with self._lock:
            self._written.difference_update([key for key in self._written if key[0] == pod_uid])
