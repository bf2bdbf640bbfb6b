"""Order in which requests get workers: by address in turn, then by namespace in turn.

A client that sends many requests delays only itself. The namespaces of the API server's requests
have equal parts of its workers. A stranger may name any namespace, but only gets the turns of its
own address.

Example: address A waits with three requests of namespace a and one of b, address B with one of a.
The order is A/a, B/a, A/b, A/a, A/a.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(eq=False, slots=True, kw_only=True)
class QueuedRequest:
    """A request that waits for a worker or has one.

    Attributes:
        namespace: As the request says; "" if it says none.
        size: Bytes of its body, and about as many as its elements take.
        on_turn: Called once, when it has a worker or was refused one.
        has_worker: False while it waits, and if it was refused.
    """

    address: str
    namespace: str
    size: int
    on_turn: Callable[[], None]
    has_worker: bool = False


class Turns:
    """Requests that wait for a worker, and those that have one; for one thread.

    Three quarters of the workers at most work for one address, and a quarter for one namespace of
    it: while they wait, for example for the API server, there are others left.
    """

    def __init__(self, workers: int, *, most_bytes: int) -> None:
        """Args:
        workers: Number of requests that are worked on at a time.
        most_bytes: Largest size of them together; a larger one is worked on alone.
        """
        self._workers: Final = workers
        self._most_bytes: Final = most_bytes
        self._working: Final[list[QueuedRequest]] = []
        # By address, then by namespace; at each level the one that had its turn last is the last.
        self._waiting: Final[dict[str, dict[str, list[QueuedRequest]]]] = {}

    def wait(self, request: QueuedRequest) -> None:
        """Put a request behind those of its namespace."""
        rows = self._waiting.setdefault(request.address, {})
        rows.setdefault(request.namespace, []).append(request)
        self._start()

    def done(self, request: QueuedRequest) -> None:
        """Free the worker of a request."""
        self._working.remove(request)
        self._start()

    def refuse(self, request: QueuedRequest) -> None:
        """Remove a request that waits."""
        self._take(request)
        request.on_turn()
        self._start()

    def _start(self) -> None:
        """Give free workers to those whose turn it is."""
        while found := self._first():
            taken = sum(each.size for each in self._working)
            if taken and taken + found.size > self._most_bytes:
                return  # nobody overtakes it
            rows = self._waiting[found.address] = self._waiting.pop(found.address)
            rows[found.namespace] = rows.pop(found.namespace)
            self._take(found)
            self._working.append(found)
            found.has_worker = True
            found.on_turn()

    def _first(self) -> QueuedRequest | None:
        """Return the request whose turn it is; None if there is none that may have a worker."""
        if len(self._working) < self._workers:
            of_address, of_namespace = max(1, self._workers * 3 // 4), max(1, self._workers // 4)
            for address, rows in self._waiting.items():
                own = [each.namespace for each in self._working if each.address == address]
                for namespace, row in rows.items() if len(own) < of_address else ():
                    if own.count(namespace) < of_namespace:
                        return row[0]
        return None

    def _take(self, request: QueuedRequest) -> None:
        """Remove a request from its row, and rows that are empty."""
        rows = self._waiting[request.address]
        rows[request.namespace].remove(request)
        if not rows[request.namespace]:
            del rows[request.namespace]
        if not rows:
            del self._waiting[request.address]
