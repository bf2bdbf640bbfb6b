"""The requests of one node as its client sees them."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from dra_simulator.api.requests import Request, route
from tensorfusion_dra.cluster.api import Api, StatusError, WatchStream
from tensorfusion_dra.core.errors import RetryableError

NO_ANSWER: Final = "no answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request.

    Attributes:
        at: When it was sent, in seconds of the monotonic clock, which all processes share.
        kind: Verb and resource as in RBAC, such as ``list resourceslices``.
        error: Its HTTP status if it failed, or NO_ANSWER; "" if it succeeded.
    """

    at: float
    kind: str
    error: str = ""


@dataclass(slots=True)
class Traffic:
    """The requests of one node so far; for all threads."""

    _guard: Lock = field(default_factory=Lock)  # guards all below
    _sent: list[Sent] = field(default_factory=list)
    _open_watches: int = 0

    def add(self, sent: Sent) -> None:
        """Add a request that has ended, or a watch that has been opened."""
        with self._guard:
            self._sent.append(sent)

    def change_open_watches(self, number: int) -> None:
        """Count watches that were opened; negative for those that ended."""
        with self._guard:
            self._open_watches += number

    @property
    def open_watches(self) -> int:
        """Number of watches that are open now."""
        with self._guard:
            return self._open_watches

    def take(self) -> list[Sent]:
        """Return the requests since the last call."""
        with self._guard:
            taken, self._sent = self._sent, []
            return taken


class CountedApi(Api):
    """The driver's client, which notes each request."""

    def __init__(self, kubeconfig: Path, traffic: Traffic) -> None:
        super().__init__(kubeconfig)
        self._traffic = traffic

    def call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        with self._noted(method, path):
            return super().call(method, path, **more)

    @contextmanager
    def watch(
        self, path: str, *, query: Mapping[str, str], silent_seconds: float
    ) -> Iterator[WatchStream]:
        began = time.monotonic()
        stream: WatchStream | None = None
        try:
            with super().watch(path, query=query, silent_seconds=silent_seconds) as stream:
                self._traffic.add(Sent(at=began, kind=kind_of("GET", f"{path}?watch=true")))
                self._traffic.change_open_watches(1)
                try:
                    yield stream
                finally:
                    self._traffic.change_open_watches(-1)
        except RetryableError as error:
            if stream is None:
                kind = kind_of("GET", f"{path}?watch=true")
                self._traffic.add(Sent(at=began, kind=kind, error=_text(error)))
            raise

    @contextmanager
    def _noted(self, method: str, path: str) -> Iterator[None]:
        began, error = time.monotonic(), ""
        try:
            yield
        except RetryableError as failure:
            error = _text(failure)
            raise
        finally:
            self._traffic.add(Sent(at=began, kind=kind_of(method, path), error=error))


def kind_of(method: str, target: str) -> str:
    """Return verb and resource of a request, as in RBAC; the path if it names no resource."""
    request = Request.of(method, target, {}, b"")
    found = route(request.path)
    return f"{found.verb(request)} {found.resource}" if found else f"get {request.path}"


def counts(sent: Iterable[Sent]) -> dict[str, int]:
    """Return the number of requests by kind, the most frequent first."""
    return dict(Counter(each.kind for each in sent).most_common())


def errors(sent: Iterable[Sent]) -> dict[str, int]:
    """Return the number of failed requests by kind and error, the most frequent first."""
    failed = (f"{each.kind}: {each.error}" for each in sent if each.error)
    return dict(Counter(failed).most_common())


def peak(sent: Iterable[Sent], *, seconds: float) -> int:
    """Return the largest number of requests that were sent within any time of this length."""
    times = sorted(each.at for each in sent)
    most = first = 0
    for last, at in enumerate(times):
        while times[first] <= at - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def spread(sent: Iterable[Sent]) -> float:
    """Return the seconds from the first to the last request."""
    times = [each.at for each in sent]
    return max(times) - min(times) if times else 0.0


def _text(error: RetryableError) -> str:
    return str(error.status) if isinstance(error, StatusError) else NO_ANSWER
