"""Fault injection into the simulated API server."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from dra_simulator.api.requests import Asked

ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Refuse:
    """A fault that answers with an error; the request is not carried out.

    Attributes:
        retry_after_seconds: Sent as Retry-After; None to omit the header.
    """

    code: int
    message: str = "refused on purpose"
    retry_after_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """A fault that delays the request and then carries it out."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Cut:
    """A fault that closes the connection without an answer.

    Attributes:
        carried_out: The request is carried out first. A watch answers and is cut in the middle of
            its first event.
    """

    carried_out: bool = False


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """A fault that keeps the connection open and sends nothing; a watch still sends headers."""


@dataclass(frozen=True, slots=True)
class Expire:
    """A fault that answers a watch with 200 and an ERROR event of code 410."""


@dataclass(frozen=True, slots=True)
class Garble:
    """A fault that makes a watch send a line that is not JSON, and end."""


@dataclass(frozen=True, slots=True)
class Forge:
    """A fault that answers 200 with these bytes; the request is not carried out."""

    body: bytes


Action = Refuse | Delay | Cut | HalfOpen | Expire | Garble | Forge


@dataclass(slots=True, kw_only=True)
class Fault:
    """An injected fault and the requests that it affects.

    Attributes:
        left: Number of further requests that it affects; None for all until it is removed.
        hits: Number of requests that it has affected.
    """

    verb: str
    resource: str
    name: str
    action: Action
    left: int | None
    hits: int = 0

    def matches(self, verb: str, resource: str, name: str) -> bool:
        """Return True if the fault affects a request."""
        pairs = ((self.verb, verb), (self.resource, resource), (self.name, name))
        return self.left != 0 and all(wanted in (ANY, found) for wanted, found in pairs)


@dataclass(slots=True)
class Faults:
    """All injected faults; any thread may add and remove faults."""

    _lock: Lock = field(default_factory=Lock)
    _faults: list[Fault] = field(default_factory=list)

    def add(
        self,
        verb: str,
        resource: str,
        action: Action,
        *,
        name: str = ANY,
        times: int | None = None,
    ) -> Fault:
        """Inject a fault into the next requests of this verb and resource; return it.

        Args:
            verb: As in RBAC (get, list, watch, create, update, patch, delete, deletecollection),
                or ANY.
            resource: As in RBAC, such as ``resourceclaims/status``, or ANY.
            times: Number of requests to affect; None for all until the fault is removed.
        """
        fault = Fault(verb=verb, resource=resource, name=name, action=action, left=times)
        with self._lock:
            self._faults.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """Remove a fault."""
        with self._lock:
            self._faults = [kept for kept in self._faults if kept is not fault]

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    @contextmanager
    def during(
        self, verb: str, resource: str, action: Action, *, name: str = ANY
    ) -> Iterator[Fault]:
        """Inject a fault until the end of the block."""
        fault = self.add(verb, resource, action, name=name)
        try:
            yield fault
        finally:
            self.remove(fault)

    def take(self, verb: str, resource: str, name: str) -> Action | None:
        """Count a hit of the fault that affects this request and return its action, or None."""
        with self._lock:
            for fault in self._faults:
                if fault.matches(verb, resource, name):
                    fault.hits += 1
                    if fault.left is not None:
                        fault.left -= 1
                    return fault.action
            return None


@dataclass(slots=True)
class RequestCounts:
    """Received requests: how many of each, and how many of a User-Agent's were answered."""

    _lock: Lock = field(default_factory=Lock)
    _asked: Counter[Asked] = field(default_factory=Counter)
    _answered: Counter[str] = field(default_factory=Counter)

    def add(self, asked: Asked) -> None:
        """Count a request."""
        with self._lock:
            self._asked[asked] += 1

    def add_answered(self, asked: Asked) -> None:
        """Count a request that is being answered; watches are not counted here."""
        with self._lock:
            self._answered[asked.agent] += 1

    def received(self, agent: str) -> int:
        """Return the number of requests of the clients with this User-Agent."""
        with self._lock:
            return sum(n for asked, n in self._asked.items() if asked.agent == agent)

    def answered(self, agent: str) -> int:
        """Return the number of these requests that have an answer, without watches."""
        with self._lock:
            return self._answered[agent]

    def asked(self, agent: str) -> frozenset[Asked]:
        """Return the distinct requests of the clients with this User-Agent."""
        with self._lock:
            return frozenset(asked for asked in self._asked if asked.agent == agent)

    def count(self, verb: str = ANY, resource: str = ANY) -> int:
        """Return the number of requests of this verb and resource."""
        return sum(
            n
            for (asked_verb, asked_resource), n in self.all().items()
            if verb in (ANY, asked_verb) and resource in (ANY, asked_resource)
        )

    def all(self) -> dict[tuple[str, str], int]:
        """Return every count, by verb and resource."""
        found = Counter[tuple[str, str]]()
        with self._lock:
            for asked, n in self._asked.items():
                found[asked.verb, asked.resource] += n
        return dict(found)

    def reset(self) -> None:
        """Forget all requests."""
        with self._lock:
            self._asked.clear()
            self._answered.clear()
