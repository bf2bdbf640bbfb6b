"""The publishers of a fleet as processes, and what they did in a phase."""

import math
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Final

from benchmark.fleet import publisher
from benchmark.fleet.publisher import NodeSettings, Report
from benchmark.fleet.traffic import Sent

_STOP_SECONDS: Final = 20.0
_PAUSE_SECONDS: Final = 1.0
_QUIET_SECONDS: Final = 3.0


class UnsettledError(Exception):
    """The fleet still sends requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """Bytes that all publishers read and wrote with the system calls `read` and `write`.

    OpenSSL uses these two on its sockets, so they are the bytes of all TLS connections. Sockets
    without TLS are not among them, nor does a publisher read much else.
    """

    read: int
    written: int

    def __sub__(self, other: "Bytes") -> "Bytes":
        return Bytes(read=self.read - other.read, written=self.written - other.written)


@dataclass(slots=True)
class Fleet:
    """Running publishers."""

    processes: list[ForkProcess]
    connections: list[Connection]

    def tell(self, command: str) -> None:
        """Have every publisher carry out a command; return once all have."""
        for connection in self.connections:
            connection.send(command)
        for connection in self.connections:
            connection.recv()

    def reports(self) -> list[Report]:
        """Return what each publisher did since the last call."""
        for connection in self.connections:
            connection.send("report")
        return [connection.recv() for connection in self.connections]

    def bytes(self) -> Bytes:
        """Return the bytes of all publishers so far."""
        read = written = 0
        for process in self.processes:
            text = Path(f"/proc/{process.pid}/io").read_text(encoding="ascii")
            fields = dict(line.split(": ") for line in text.splitlines())
            read, written = read + int(fields["rchar"]), written + int(fields["wchar"])
        return Bytes(read=read, written=written)

    def stop(self) -> None:
        """Stop every publisher."""
        for connection in self.connections:
            connection.send("stop")
        for process in self.processes:
            process.join(_STOP_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


def started(nodes: Sequence[NodeSettings]) -> Fleet:
    """Fork a publisher for each node; return once all are ready to publish.

    No other thread may run in this process.
    """
    context = multiprocessing.get_context("fork")
    fleet = Fleet([], [])
    for node in nodes:
        ours, theirs = context.Pipe()
        process = context.Process(target=publisher.serve, args=(node, theirs), name=node.name)
        process.start()
        theirs.close()
        fleet.processes.append(process)
        fleet.connections.append(ours)
    for connection in fleet.connections:
        connection.recv()
    return fleet


def settled(fleet: Fleet, *, watches: int, seconds: float) -> list[Sent]:
    """Return all requests since the last report, once the fleet is quiet.

    It is quiet when each publisher has all its watches open, and none has sent a request for some
    seconds.

    Args:
        watches: Watches of one publisher.
        seconds: The longest wait.

    Raises:
        UnsettledError: The fleet is not quiet in time.
    """
    ends = time.monotonic() + seconds
    sent: list[Sent] = []
    quiet_since = math.inf
    while True:
        reports = fleet.reports()
        new = [each for report in reports for each in report.sent]
        sent += new
        now = time.monotonic()
        if new or any(report.open_watches < watches for report in reports):
            quiet_since = now
        elif now - quiet_since >= _QUIET_SECONDS:
            return sent
        quiet_since = min(quiet_since, now)
        if now > ends:
            watching = sum(report.open_watches == watches for report in reports)
            raise UnsettledError(
                f"{watching} of {len(reports)} publishers watch, and {len(new)} requests were "
                f"sent in the last second, expected all and none after {seconds:g} s"
            )
        time.sleep(_PAUSE_SECONDS)
