"""Troubles that a test orders from the simulated API server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from tensorfusion_dra.simulator.api.requests import Asked

ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is answered with an error and not carried out.

    Attributes:
        retry_after_seconds: Sent as Retry-After; None for no such header.
    """

    code: int
    message: str = "refused on purpose"
    retry_after_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """The request is carried out, but only after some time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection is closed without an answer.

    Attributes:
        carried_out: Whether the request was carried out first. For a watch: it answers, and is
            cut in the middle of the first event.
    """

    carried_out: bool = False


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """The connection stays open and nothing more comes; for a watch after its headers."""


@dataclass(frozen=True, slots=True)
class Expire:
    """A watch is answered 200 and with an ERROR event of code 410."""


@dataclass(frozen=True, slots=True)
class Garble:
    """A watch sends a line that is no JSON, and ends."""


@dataclass(frozen=True, slots=True)
class Forge:
    """The request is answered 200 with these bytes, whatever is stored, and not carried out."""

    body: bytes


Action = Refuse | Delay | Cut | HalfOpen | Expire | Garble | Forge


@dataclass(slots=True, kw_only=True)
class Fault:
    """An ordered trouble.

    Attributes:
        left: How many more requests it meets; None for all until it is removed.
        hits: How many it has met.
    """

    verb: str
    resource: str
    name: str
    action: Action
    left: int | None
    hits: int = 0

    def meets(self, verb: str, resource: str, name: str) -> bool:
        """Whether a request is one of those it is for."""
        pairs = ((self.verb, verb), (self.resource, resource), (self.name, name))
        return self.left != 0 and all(wanted in (ANY, found) for wanted, found in pairs)


@dataclass(slots=True)
class Faults:
    """All ordered troubles; any thread may add and remove."""

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
        """The trouble that the next requests of this verb and resource meet.

        Args:
            verb: As in RBAC (get, list, watch, create, update, patch, delete, deletecollection),
                or ANY.
            resource: As in RBAC, such as ``resourceclaims/status``, or ANY.
            times: For how many requests; None until it is removed.
        """
        fault = Fault(verb=verb, resource=resource, name=name, action=action, left=times)
        with self._lock:
            self._faults.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """The trouble is over."""
        with self._lock:
            self._faults = [kept for kept in self._faults if kept is not fault]

    def clear(self) -> None:
        """All troubles are over."""
        with self._lock:
            self._faults.clear()

    @contextmanager
    def during(
        self, verb: str, resource: str, action: Action, *, name: str = ANY
    ) -> Iterator[Fault]:
        """A trouble that is over at the end of the block."""
        fault = self.add(verb, resource, action, name=name)
        try:
            yield fault
        finally:
            self.remove(fault)

    def take(self, verb: str, resource: str, name: str) -> Action | None:
        """What this request meets; counts it."""
        with self._lock:
            for fault in self._faults:
                if fault.meets(verb, resource, name):
                    fault.hits += 1
                    if fault.left is not None:
                        fault.left -= 1
                    return fault.action
            return None


@dataclass(slots=True)
class RequestCounts:
    """How many requests came, by verb and resource as in RBAC, and which."""

    _lock: Lock = field(default_factory=Lock)
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)
    _asked: set[Asked] = field(default_factory=set)

    def add(self, asked: Asked) -> None:
        """One more."""
        key = asked.verb, asked.resource
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1
            self._asked.add(asked)

    def asked(self, agent: str) -> frozenset[Asked]:
        """What the clients asked for that call themselves so."""
        with self._lock:
            return frozenset(asked for asked in self._asked if asked.agent == agent)

    def count(self, verb: str = ANY, resource: str = ANY) -> int:
        """How many came of this verb and resource."""
        with self._lock:
            return sum(
                number
                for (found_verb, found_resource), number in self._counts.items()
                if verb in (ANY, found_verb) and resource in (ANY, found_resource)
            )

    def writes(self) -> int:
        """How many came that change something."""
        with self._lock:
            reads = {"get", "list", "watch"}
            return sum(number for (verb, _), number in self._counts.items() if verb not in reads)

    def all(self) -> dict[tuple[str, str], int]:
        """Every count, by verb and resource."""
        with self._lock:
            return dict(self._counts)

    def reset(self) -> None:
        """From zero again."""
        with self._lock:
            self._counts.clear()
            self._asked.clear()
