"""The phases of a fleet's life, and the cost of each at the clients and at the API server."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from benchmark.fleet import processes, traffic
from benchmark.fleet.processes import Bytes, Fleet
from benchmark.fleet.traffic import Sent

SETTLE_SECONDS: Final = 180.0

Row = dict[str, Any]


class Server(Protocol):
    """An API server that can be measured.

    Attributes:
        has_tls: True if the publishers' bytes can be counted, which needs TLS (processes.Bytes).
    """

    has_tls: bool

    def start_api_server(self) -> None:
        """Start the API server and return once it is ready."""
        ...

    def stop_api_server(self, *, gracefully: bool) -> None:
        """Stop or kill the API server, and return once it has ended."""
        ...

    def counters(self) -> Mapping[str, float]:
        """Return what the API server has done since its start."""
        ...

    def gauges(self) -> Mapping[str, float]:
        """Return the API server's present state."""
        ...


@dataclass(slots=True)
class Phases:
    """The phases so far, and the running fleet.

    Attributes:
        watches: Watches of one publisher.
        rows: The figures of each phase, in order.
    """

    server: Server
    fleet: Fleet
    watches: int
    rows: list[Row] = field(default_factory=list)

    def command(self, name: str, command: str) -> None:
        """Measure a command to all publishers at once, until the fleet is quiet again."""
        self.action(name, lambda: self.fleet.tell(command))

    def action(self, name: str, act: Callable[[], object]) -> None:
        """Measure what follows an action, until the fleet is quiet again."""
        with self._measured(name) as sent:
            act()
            sent.extend(self._settled())

    def rest(self, seconds: float) -> None:
        """Measure a fleet that has nothing to do."""
        with self._measured("at rest") as sent:
            time.sleep(seconds)
            sent.extend(each for report in self.fleet.reports() for each in report.sent)

    def restart(self, name: str, *, gracefully: bool) -> None:
        """Measure an API server that is stopped or killed, and started at once.

        The server's figures are those of the new process, its own start included.
        """
        with self._measured(name, new_server=True) as sent:
            self.server.stop_api_server(gracefully=gracefully)
            self.server.start_api_server()
            sent.extend(self._settled())

    def _settled(self) -> list[Sent]:
        return processes.settled(self.fleet, watches=self.watches, seconds=SETTLE_SECONDS)

    @contextmanager
    def _measured(self, name: str, *, new_server: bool = False) -> Iterator[list[Sent]]:
        before = {} if new_server else self.server.counters()
        bytes_before = self.fleet.bytes()
        began = time.monotonic()
        sent: list[Sent] = []
        yield sent
        seconds = time.monotonic() - began
        moved = self.fleet.bytes() - bytes_before if self.server.has_tls else None
        after = self.server.counters()
        self.rows.append(
            {
                "phase": name,
                "seconds": round(seconds, 1),
                "clients": client_cost(sent, moved, nodes=len(self.fleet.processes)),
                "server": {**difference(before, after), **rounded(self.server.gauges())},
            }
        )


def client_cost(sent: Sequence[Sent], moved: Bytes | None, *, nodes: int) -> Row:
    """Return what the clients did in a phase.

    Args:
        moved: None if unknown. The bytes include TLS and, at a publisher's start, the files that it
            reads.
    """
    cost: Row = {
        "requests": len(sent),
        "requests_per_node": round(len(sent) / nodes, 3),
        "by_kind": traffic.counts(sent),
        "errors": traffic.errors(sent),
        "peak_in_1_s": traffic.peak(sent, seconds=1.0),
        "peak_in_100_ms": traffic.peak(sent, seconds=0.1),
        "spread_seconds": round(traffic.spread(sent), 2),
    }
    if moved is not None:
        cost["received_bytes_per_node"] = round(moved.read / nodes)
        cost["sent_bytes_per_node"] = round(moved.written / nodes)
    return cost


def server_alone(server: Server, *, seconds: float) -> Row:
    """Return the cost of an API server without publishers: of a restart, and of some time."""
    server.stop_api_server(gracefully=True)
    server.start_api_server()
    started = server.counters()
    time.sleep(seconds)
    return {
        "start": rounded(started),
        "rest_seconds": seconds,
        "rest": difference(started, server.counters()),
        "state": rounded(server.gauges()),
    }


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return by how much each counter has grown; one that did not exist before began at 0."""
    return rounded({name: value - before.get(name, 0.0) for name, value in after.items()})


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the figures with two decimals."""
    return {name: round(value, 2) for name, value in figures.items()}
