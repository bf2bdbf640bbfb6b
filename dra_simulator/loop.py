"""Parts of controllers: a thread that acts on changes of resources, and a writer of Events."""

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Condition, Event, Lock, Thread
from typing import Any, Final, Self

from dra_simulator import podclaims
from dra_simulator.rest import EVENTS, Client, Json, Resource, RestError, Watch

_RETRY_SECONDS: Final = 0.2
_SETTLE_SECONDS: Final = 0.01
_JOIN_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Watched:
    """Resource to watch.

    Attributes:
        on_event: Called with each event, in the watching thread; objects that a list has before
            the first event are events too, in the order in which they were last written.
    """

    resource: Resource
    field_selector: str = ""
    on_event: Callable[[Json], None] | None = None


class Loop:
    """Caller of one function after each change, never twice at the same time.

    The function may return the number of seconds after which it is called even without a change.

    The function decides from fresh lists, not from the events. A missed or duplicate event
    therefore costs time, but never leads to a wrong decision.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        *,
        watched: Sequence[Watched],
        sync: Callable[[], float | None],
    ) -> None:
        self._name: Final = name
        self._client: Final = client
        self._sync: Final = sync
        self._stopping: Final = Event()
        self._wake: Final = Event()
        self._watches: Final[set[Watch]] = set()
        self._lock: Final = Lock()  # guards _watches
        self._synced: Final = Condition()  # guards _begun and _ended
        self._begun = 0
        self._ended = 0
        self._threads: Final = [
            Thread(target=self._run, name=name, daemon=True),
            *(
                Thread(target=self._watch, name=f"{name}-{entry.resource.plural}", args=(entry,))
                for entry in watched
            ),
        ]

    def start(self) -> None:
        """Call the function for the first time, and from then on after each change."""
        self._wake.set()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop, and return once all threads have ended."""
        self._stopping.set()
        self._wake.set()
        with self._lock:
            for watch in self._watches:
                watch.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_JOIN_SECONDS)

    def wake(self) -> None:
        """Schedule another call of the function."""
        self._wake.set()

    def catch_up(self, *, seconds: float) -> bool:
        """Wait until a new call of the function has succeeded, which has seen all changes so far.

        Returns:
            False if that did not happen in time.
        """
        with self._synced:
            wanted = self._begun + 1
            self._wake.set()
            return self._synced.wait_for(lambda: self._ended >= wanted, timeout=seconds)

    def _run(self) -> None:
        wait_seconds: float | None = None
        while True:
            self._wake.wait(wait_seconds)
            # Changes come in groups; one call is enough for a group.
            if self._stopping.wait(_SETTLE_SECONDS):
                return
            self._wake.clear()
            if self._stopping.is_set():
                return  # the wake-up of stop() may be the one that was just cleared
            with self._synced:
                self._begun += 1
            try:
                wait_seconds = self._sync()
                with self._synced:
                    self._ended = self._begun
                    self._synced.notify_all()
            except RestError:
                # A conflict with another writer, or the server is away: call it again.
                wait_seconds = _RETRY_SECONDS

    def _watch(self, entry: Watched) -> None:
        while not self._stopping.is_set():
            try:
                self._follow(entry)
            except RestError:
                self._stopping.wait(_RETRY_SECONDS)

    def _follow(self, entry: Watched) -> None:
        selector = entry.field_selector
        listed = self._client.list(entry.resource, field_selector=selector)
        watch = self._client.watch(entry.resource, listed.resource_version, field_selector=selector)
        try:
            with self._lock:
                if self._stopping.is_set():
                    return
                self._watches.add(watch)
            # Something may have changed between the last call and this list.
            self._wake.set()
            known = sorted(listed.items, key=lambda item: int(item["metadata"]["resourceVersion"]))
            added = ({"type": "ADDED", "object": item} for item in known)
            for event in itertools.chain(added, watch):
                if entry.on_event is not None:
                    entry.on_event(event)
                self._wake.set()
        finally:
            with self._lock:
                self._watches.discard(watch)
            watch.release()


class LoopComponent:
    """A component of the cluster that is one loop, from `start` or `with` until `stop`."""

    _loop: Loop

    def start(self) -> None:
        """Start acting on the objects of the API server."""
        self._loop.start()

    def stop(self) -> None:
        """Stop, and return once all threads have ended."""
        self._loop.stop()

    def catch_up(self, *, seconds: float) -> bool:
        """Wait until the component has seen all changes so far; return False if that is late."""
        return self._loop.catch_up(seconds=seconds)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


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
