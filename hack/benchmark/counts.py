"""Work of the node plugin for one claim: flushes, API requests, transactions and so on.

The real process runs under the simulated API server, with counters (counters.py). Claims are held
on a card; one more claim after the other is prepared on it, prepared again and unprepared, one call
at a time. The work of a call is all that happens until the process is quiet again: also what it
does after its answer, such as the write of the claim's status. The periodic work of a node, which
no claim causes, is turned off by its settings. `cpu_ms` includes what the counting itself takes.

The API server delays its answers, so `api_requests_before_answer` are the requests for which the
driver waited: a request that it sends beside its answer has none yet. Such requests are writes, and
those take longest, so that a busy machine does not change the count.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmark import node, process, target
from benchmark.counters import Counters
from benchmark.figures import CALLS
from benchmark.node import BareNode
from benchmark.target import Claims
from dra_simulator.api.faults import ANY, Delay
from dra_simulator.node.plugin import ClaimRef, Plugin
from tensorfusion_dra.cluster.api import USER_AGENT
from tests.faults import fault_points
from tests.faults.fault_points import FaultPoints

FIGURES: Final = (
    "flushes",
    "api_requests_before_answer",
    "api_requests",
    "transactions",
    "records_decoded",
    "files_written",
    "cpu_ms",
)
_GPUS: Final = "1xA100-SXM4-80GB"
_READ_SECONDS: Final = 0.02
_WRITE_SECONDS: Final = 0.5
_WRITES: Final = ("create", "update", "patch", "delete")
_QUIET_SECONDS: Final = 0.3
"""Longer than the wait of a status for a moment without calls."""
_MAX_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.01
_SETTLE_SECONDS: Final = 2.0
_NO_PERIODIC_WORK: Final = (
    *("--poll-seconds", "86400"),
    *("--observe-use", "false"),
)

Counts = Mapping[str, float]


class Meter:
    """Everything that is counted of one node plugin."""

    def __init__(self, cluster: BareNode, counters: Counters, pid: int) -> None:
        self._requests = cluster.server.requests
        self._counters = counters
        self._clock = process.cpu_clock(pid)

    def read(self) -> dict[str, float]:
        """Return each figure since the start of the process."""
        return {
            **self._counters.work(),
            "api_requests_before_answer": self._requests.answered(USER_AGENT),
            "api_requests": self._requests.received(USER_AGENT),
            "cpu_ms": time.clock_gettime(self._clock) * 1000,
        }

    def call(self, act: Callable[[], object], is_over: Callable[[], bool]) -> Counts:
        """Return the work of a call.

        Args:
            is_over: Polled after the call; True as soon as the work that is known to follow it is
                done.
        """
        before = self.read()
        act()
        at_answer = self.read()["api_requests_before_answer"]
        self.wait_quiet(is_over)
        after = {**self.read(), "api_requests_before_answer": at_answer}
        return {name: after[name] - before[name] for name in FIGURES}

    def wait_quiet(self, is_over: Callable[[], bool] = lambda: True) -> None:
        """Return once nothing has been counted for a moment, or after some seconds."""
        deadline = time.monotonic() + _MAX_SECONDS
        while not is_over() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        known, since = self._events(), time.monotonic()
        while time.monotonic() < min(since + _QUIET_SECONDS, deadline):
            time.sleep(_POLL_SECONDS)
            if (found := self._events()) != known:
                known, since = found, time.monotonic()

    def _events(self) -> Sequence[float]:
        return [value for name, value in self.read().items() if name != "cpu_ms"]


def measured(*, claims: int, held: int) -> Mapping[str, Counts]:
    """Return the counts of each call, as means over the claims.

    Args:
        claims: Claims that are measured.
        held: Claims that are prepared on the same card all the time.

    Raises:
        CompilerError: There is no C compiler.
    """
    with node.running(_GPUS) as cluster:
        page = cluster.folder / "fault-points"
        points = FaultPoints(page, fault_points.build(cluster.folder))
        points.watch(cluster.folder)
        points.trace()
        cluster.plugin_flags.extend(_NO_PERIODIC_WORK)
        with node.plugins_as("benchmark.counted_plugin", points.environment):
            pid = cluster.start_plugin()
        written = Claims(target.api_of(cluster.kubeconfig), cluster.target)
        plugin = target.connected(cluster.target)
        try:
            for ref in written.create(held):
                plugin.prepare([ref])
            refs = written.create(claims)
            time.sleep(_SETTLE_SECONDS)  # until the imports and first readings of a start are over
            meter = Meter(cluster, Counters(fault_points.trace_of(page)), pid)
            meter.wait_quiet()
            for verb in _WRITES:
                cluster.server.faults.add(verb, ANY, Delay(_WRITE_SECONDS))
            cluster.server.faults.add(ANY, ANY, Delay(_READ_SECONDS))
            each = [_cycle(meter, plugin, written, ref) for ref in refs]
        finally:
            plugin.close()
    return {name: mean([cycle[name] for cycle in each]) for name in CALLS}


def _cycle(meter: Meter, plugin: Plugin, written: Claims, ref: ClaimRef) -> Mapping[str, Counts]:
    return {
        "prepare": meter.call(lambda: plugin.prepare([ref]), lambda: written.has_status(ref)),
        "again": meter.call(lambda: plugin.prepare([ref]), lambda: True),
        "unprepare": meter.call(lambda: plugin.unprepare([ref]), lambda: True),
    }


def mean(each: Sequence[Counts]) -> Counts:
    """Return the mean of each figure; a whole number as an int."""
    means = {}
    for name in FIGURES:
        value = round(sum(counts[name] for counts in each) / len(each), 2)
        means[name] = value if name == "cpu_ms" or value != int(value) else int(value)
    return means


def text(counts: Mapping[str, Counts]) -> str:
    """Return a table with a line for each figure and a column for each call."""
    width = max(map(len, FIGURES))
    lines = [f"{'per claim':{width}}" + "".join(f"{call:>11}" for call in CALLS)]
    for name in FIGURES:
        values = "".join(f"{counts[call][name]:>11g}" for call in CALLS)
        lines.append(f"{name.replace('_', ' '):{width}}{values}")
    return "\n".join(lines)
