"""Drivers under measurement: one at a socket, or the node plugin under the simulator."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, Protocol

from benchmark import node, process, target
from benchmark.cells import Cell
from benchmark.figures import CALLS, Measured, Sample, joined
from benchmark.node import BareNode
from benchmark.process import Usage
from benchmark.target import Claims, Target, TargetError
from dra_simulator.api.faults import ANY, Delay
from dra_simulator.node.plugin import ClaimRef, Plugin, PluginError
from tensorfusion_dra.cluster.api import Api

_CALLERS: Final = 8
_TRIES: Final = 3
_FEWEST_CALLS: Final = 10
_CALLS_OF_EACH: Final = 4


class Subject(Protocol):
    """A driver that can be measured.

    Attributes:
        name: For tables.
        facts: What is needed to repeat the measurement with it.
    """

    name: str
    facts: dict[str, Any]

    def measure(self, cell: Cell, calls: int) -> Measured:
        """Return the samples, each of this number of calls."""
        ...


class Live:
    """A driver that serves a socket; implements Subject."""

    def __init__(
        self,
        name: str,
        at: Target,
        api: Api,
        *,
        claims: Claims,
        cluster: BareNode | None = None,
    ) -> None:
        """Connect.

        Args:
            cluster: The simulated node of the driver; None with a real API server.
        """
        self.name = name
        self.facts: dict[str, Any] = {
            "socket": str(at.socket),
            "driver": at.driver,
            "class": at.device_class,
            "capacity": dict(at.capacity),
            "service": at.service,
            "devices": claims.device_count,
            "api_server": "simulated" if cluster else api.call("GET", "/version").get("gitVersion"),
        }
        self._claims = claims
        self._cluster = cluster
        self._socket = at.socket
        self._plugin: Plugin = target.connected(at)
        self._held: list[ClaimRef] = []

    def measure(self, cell: Cell, calls: int) -> Measured:
        """Return the samples, once the driver is at rest again.

        A few calls at a time are prepared, prepared again and unprepared, so that the number of
        claims held hardly changes meanwhile.
        """
        self._hold(cell.held)
        refs = self._claims.create(calls * cell.claims_per_call, devices=cell.devices)
        size = cell.claims_per_call
        groups = [refs[start : start + size] for start in range(0, len(refs), size)]
        block = max(_FEWEST_CALLS, _CALLS_OF_EACH * cell.at_a_time)
        before = process.usage_at_rest(self._socket)
        try:
            with self._latency(cell.api_ms / 1000):
                each = [
                    self._measure_block(groups[start : start + block], cell.at_a_time)
                    for start in range(0, len(groups), block)
                ]
            after = process.usage_at_rest(self._socket)
        except BaseException:
            timed(self._plugin.unprepare, groups, at_a_time=_CALLERS)
            raise
        finally:
            self._claims.delete(refs)
        return Measured(
            calls={name: joined(samples[name] for samples in each) for name in CALLS},
            cpu_seconds=_cpu_seconds(before, after),
            rss_mib=after.rss_mib if after else None,
        )

    def _measure_block(
        self, groups: Sequence[Sequence[ClaimRef]], at_a_time: int
    ) -> Mapping[str, Sample]:
        acts = (self._plugin.prepare, self._plugin.prepare, self._plugin.unprepare)
        return {
            name: timed(act, groups, at_a_time=at_a_time)
            for name, act in zip(CALLS, acts, strict=True)
        }

    def release(self) -> None:
        """Unprepare the claims that are held, and delete all claims that are left."""
        tried(self._plugin.unprepare, self._held)
        self._claims.delete_rest()

    def close(self) -> None:
        """Close the connection to the driver."""
        self._plugin.close()

    def _hold(self, count: int) -> None:
        new = self._claims.create(max(0, count - len(self._held)))
        self._held += new
        failed = tried(self._plugin.prepare, new)
        if failed:
            raise TargetError(f"{self.name}: {len(failed)} of {count} to hold: {failed[0]}")

    def _latency(self, seconds: float) -> AbstractContextManager[object]:
        if not seconds:
            return nullcontext()
        if self._cluster is None:
            raise TargetError(f"{self.name}: --api-ms needs the simulated API server")
        return self._cluster.server.faults.during(ANY, ANY, Delay(seconds))


def _cpu_seconds(before: Usage | None, after: Usage | None) -> float | None:
    """Return the CPU time between two moments; None if the process is not the same."""
    if before is None or after is None or before.pid != after.pid:
        return None
    return after.cpu_seconds - before.cpu_seconds


def timed(
    act: Callable[[Sequence[ClaimRef]], object],
    groups: Sequence[Sequence[ClaimRef]],
    *,
    at_a_time: int,
) -> Sample:
    """Call once with each group and return the times."""
    milliseconds: list[float] = []
    errors: list[str] = []

    def call(group: Sequence[ClaimRef]) -> int:
        began = time.monotonic()
        try:
            act(group)
        except PluginError as error:
            errors.append(str(error))
            return 0
        milliseconds.append((time.monotonic() - began) * 1000)
        return len(group)

    start = time.monotonic()
    if at_a_time == 1:
        claims = sum(map(call, groups))
    else:
        with ThreadPoolExecutor(at_a_time) as callers:
            claims = sum(callers.map(call, groups))
    return Sample(
        milliseconds=milliseconds,
        seconds=time.monotonic() - start,
        claims=claims,
        errors=errors,
    )


def tried(act: Callable[[Sequence[ClaimRef]], object], refs: Sequence[ClaimRef]) -> Sequence[str]:
    """Call once with each claim, several at a time, and again if it failed, as the kubelet does.

    Returns:
        The last error of each claim whose calls all failed.
    """

    def call(ref: ClaimRef) -> str:
        text = ""
        for _ in range(_TRIES):
            try:
                act([ref])
            except PluginError as error:
                text = str(error)
            else:
                return ""
        return text

    with ThreadPoolExecutor(_CALLERS) as callers:
        return [text for text in callers.map(call, refs) if text]


@contextmanager
def at_socket(at: Target, kubeconfig: Path, *, namespace: str, with_pods: bool) -> Iterator[Live]:
    """Yield the driver at a socket; its claims are in this kubeconfig's API server."""
    if not at.socket.is_socket():
        raise TargetError(f"{at.socket}: found no socket, expected the driver's")
    api = target.api_of(kubeconfig)
    claims = Claims(api, at, namespace=namespace, with_pods=with_pods)
    live = Live(at.driver, at, api, claims=claims)
    try:
        yield live
    finally:
        live.release()
        live.close()


@contextmanager
def simulated(gpus: str, *, with_pods: bool) -> Iterator[Live]:
    """Yield the node plugin of this checkout, under the simulated API server."""
    with node.running(gpus) as cluster:
        cluster.start_plugin()
        with of_node(cluster, with_pods=with_pods) as live:
            live.facts["gpus"] = gpus
            yield live


@contextmanager
def of_node(cluster: BareNode, *, with_pods: bool = True) -> Iterator[Live]:
    """Yield the node plugin that runs on a simulated node."""
    api = target.api_of(cluster.kubeconfig)
    claims = Claims(api, cluster.target, with_pods=with_pods)
    live = Live("simulated", cluster.target, api, claims=claims, cluster=cluster)
    try:
        yield live
    finally:
        live.close()
