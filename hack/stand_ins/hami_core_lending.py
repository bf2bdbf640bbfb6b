"""What tenants get while HAMi-core's real library is lent idle compute and free memory.

Two stand-in cards of 312 TFLOPS. `quarter`, `half` and `plain` reserve 25, 50 and 25 % of the first
one, and the first two may borrow. `holder` and `later` reserve memory of the second one. What a
tenant got is the number of its kernels, in percent of those that the card has time for.
"""

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from dra_simulator.runtime import Container
from stand_ins import node as nodes
from stand_ins.bundle import Image, Runc, Waiting
from stand_ins.hami_core_checks import CARDS, OUT_OF_MEMORY, Outcome
from stand_ins.libraries import Machine
from stand_ins.node import StandInNode
from tensorfusion_dra.core import names
from tensorfusion_dra.enforcers.hami_core import cache
from tensorfusion_dra.enforcers.hami_core.cache import Cache

_KERNEL: Final = ("0", "0.25", "50000")
"""Kernels of 1 ms on the only card, counted every 0.25 s."""
_KERNEL_SECONDS: Final = 0.001
_MOST_WINDOWS: Final = 400
_NEAR: Final = 10
"""Points between what a tenant got and its share."""
_WHOLE: Final = 95
_BACK_SECONDS: Final = 2.0
_SETTLE_SECONDS: Final = 2.0
"""After this time HAMi-core's rate of a new process has found its limit."""
_MEASURE_SECONDS: Final = 6.0
_CONTEXT_MIB: Final = 100

_PROCESS_AT: Final = 1856
_UTILIZATION_AT: Final = _PROCESS_AT + 1160 + 16
_MEMORY_AT: Final = 1600
_SWITCH_AT: Final = 2_008_900
_LAUNCH_AT: Final = 2_008_912

_Printed = Sequence[Mapping[str, Any]]
_Action = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pod:
    """A pod with one container; `share` is what it reserves, in percent of the card."""

    container: Container
    name: str
    share: int = 0

    @property
    def path(self) -> str:
        """The file of its request on the host."""
        path = Path(self.container.env[names.ENV_CUDA_SHARED_CACHE])
        found = {each.container_path: each.host_path for each in self.container.mounts}
        return f"{found[str(path.parent)]}/{path.name}"

    @property
    def cache(self) -> Cache:
        return cache.read(self.path)

    @property
    def is_lifted(self) -> bool:
        return not self.cache.limits_compute

    @property
    def limit_mib(self) -> int:
        limits = self.cache.limits
        return limits[0].vram_bytes >> 20 if limits else 0

    def with_policy(self, value: str) -> "_Pod":
        env = {**self.container.env, names.ENV_CORE_POLICY: value}
        return replace(self, container=replace(self.container, env=env))

    def forge(self, at: int, form: str, value: int) -> None:
        """Write into its file, as its container can."""
        descriptor = os.open(self.path, os.O_RDWR)
        os.pwrite(descriptor, struct.pack(form, value), at)
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    node: StandInNode
    runc: Runc

    def pod(self, name: str, *, share: int, mib: int, limits: Mapping[str, str]) -> _Pod:
        asks = {"tflops": f"{312 * share / 100:g}", "vram": f"{mib}Mi"}
        self.node.submit(name, asks, limits)
        return self.started(name, share=share)

    def started(self, name: str, *, share: int) -> _Pod:
        self.node.until(f"pod {name}", lambda: self.node.container_of(name) is not None)
        return _Pod(container=self.node.containers_of(name)[0], name=name, share=share)

    def until(self, what: str, condition: Callable[[], bool]) -> float:
        """Return how long it took until the condition was true, in seconds."""
        start = time.monotonic()
        self.node.until(what, condition)
        return time.monotonic() - start

    def working(self, pod: _Pod, how: str = "launch") -> AbstractContextManager[Waiting]:
        """Start a process that works from go() until end()."""
        words = ("count", "wait", *((how, *_KERNEL, "more") * _MOST_WINDOWS))
        return self.runc.waiting(pod.container, *words)

    def verdict(self, pod: _Pod) -> str:
        """Return the status and the reason of the condition LimitsEnforced of its claim."""
        claim = self.node.claim_of(self.node.pod(pod.name)) or {}
        for device in claim.get("status", {}).get("devices", ()):
            for each in device["conditions"]:
                if each["type"] == "LimitsEnforced":
                    return f"{each['status']}: {each['reason']}"
        return ""


def outcomes(library: Path, *, runc: str = "runc") -> Iterator[Outcome]:
    """Yield the outcome of each check.

    Args:
        library: HAMi-core's libvgpu.so.

    Raises:
        CompilerError: There is no C compiler.
        PermissionError: The process is not root.
    """
    machine = Machine(cards=CARDS, context_mib=_CONTEXT_MIB)
    with nodes.running(machine, ("--enforcer", "hami-core"), hami_core=library) as node:
        image = Image(node.folder / "image", node.tenant)
        scene = _Scene(
            node=node, runc=Runc(node.folder / "bundles", image.root, node.cards, runc=runc)
        )
        whole = {names.ANNOTATION_TFLOPS_LIMIT: "312"}
        quarter = scene.pod("quarter", share=25, mib=2048, limits=whole)
        half = scene.pod("half", share=50, mib=2048, limits=whole)
        plain = scene.pod("plain", share=25, mib=2048, limits={})
        yield _alone(scene, "a limit of 25 %, alone", plain, expected=25)
        yield _alone(scene, "25 % with a limit of 100 %, alone", quarter, expected=100)
        yield _both(scene, "both may borrow, and both work", quarter, half)
        yield _owner_starts(scene, quarter, half)
        yield _graphs(scene, quarter, half)
        yield from _policies(scene, quarter, half)
        yield from _forged(scene, quarter, half)
        yield from _memory(scene)
        yield _resized(scene, "holder")
        yield from _stops(scene, quarter, half)
        claims = len(node.claims())
        node.delete(plain.name)
        node.until("end of pod plain", lambda: len(node.claims()) < claims)
        node.stop_plugin()
        node.until("end of the registration", lambda: not node.kubelet.registered)
        node.plugin_flags.extend(("--default-compute-limit", "card"))
        node.start_plugin()
        node.until("registration", lambda: bool(node.kubelet.registered))
        plain = scene.pod("plain", share=25, mib=2048, limits={})
        yield _alone(scene, "default-compute-limit=card: 25 %, alone", plain, expected=100)
        yield _both(scene, "default-compute-limit=card: both work", plain, half)


def _alone(scene: _Scene, name: str, pod: _Pod, *, expected: int) -> Outcome:
    with scene.working(pod) as tenant:
        tenant.go()
        if expected == 100:
            scene.until("idle compute", lambda: pod.is_lifted)
        # The node plugin looks for processes every 10 s.
        scene.until("its condition", lambda: scene.verdict(pod).startswith("True"))
        time.sleep(_SETTLE_SECONDS)
        since = time.monotonic()
        time.sleep(_MEASURE_SECONDS)
        verdict = scene.verdict(pod)
        got = _percent(tenant.end().printed, since)
    holds = got >= _WHOLE if expected == 100 else abs(got - expected) <= _NEAR
    return Outcome(
        name=name,
        seen=f"{got:.0f} %; LimitsEnforced is {verdict}",
        holds=holds and verdict.startswith("True"),
    )


def _got(
    scene: _Scene, first: _Pod, second: _Pod, during: _Action = lambda: None
) -> tuple[float, float]:
    """Return what each of two tenants that work at the same time got, in percent of the card."""
    with scene.working(first) as one, scene.working(second) as other:
        one.go()
        other.go()
        time.sleep(_SETTLE_SECONDS)
        during()
        since = time.monotonic()
        time.sleep(_MEASURE_SECONDS)
        return _percent(one.end().printed, since), _percent(other.end().printed, since)


def _both(
    scene: _Scene, name: str, first: _Pod, second: _Pod, during: _Action = lambda: None
) -> Outcome:
    got = _got(scene, first, second, during)
    return Outcome(
        name=f"{name}: {first.share} and {second.share} %",
        seen=" and ".join(f"{each:.0f}" for each in got) + " %",
        holds=all(
            abs(each - pod.share) <= _NEAR for each, pod in zip(got, (first, second), strict=True)
        ),
    )


def _owner_starts(
    scene: _Scene,
    borrower: _Pod,
    owner: _Pod,
    name: str = "",
    during: _Action = lambda: None,
    *,
    is_lent_again: bool = True,
) -> Outcome:
    with scene.working(borrower) as one, scene.working(owner) as other:
        one.go()
        scene.until("idle compute", lambda: borrower.is_lifted)
        time.sleep(_SETTLE_SECONDS)
        during()
        since = time.monotonic()
        other.go()
        time.sleep(_SETTLE_SECONDS + _MEASURE_SECONDS)
        own = other.end().printed
        again = is_lent_again and scene.until("idle compute", lambda: borrower.is_lifted)
        theirs = one.end().printed
    ends = own[-1]["at"]
    before = _percent(theirs, since - 1, since)
    limited, _ = _first(theirs, since, lambda percent: percent <= borrower.share + _NEAR)
    _, back = _first(own, since, lambda percent: percent >= owner.share - _NEAR)
    after = [_percent(each, since + _SETTLE_SECONDS, ends) for each in (theirs, own)]
    return Outcome(
        name=name or "an owner starts after 10 s of silence",
        seen=f"borrower had {before:.0f} %, near its own after {limited:.1f} s; owner near its own "
        f"after {back:.1f} s; then {after[0]:.0f} and {after[1]:.0f} %"
        + (f"; lent again {again:.0f} s after the owner's end" if again else ""),
        holds=max(limited, back) <= _BACK_SECONDS and after[1] >= owner.share - _NEAR,
    )


def _graphs(scene: _Scene, borrower: _Pod, owner: _Pod) -> Outcome:
    with scene.working(borrower) as one, scene.working(owner, "graph") as other:
        one.go()
        scene.until("idle compute", lambda: borrower.is_lifted)
        launched = owner.cache.launched_at
        other.go()
        seconds = scene.until("the limits", lambda: not borrower.is_lifted)
        time.sleep(_SETTLE_SECONDS)
        since = time.monotonic()
        lifted = sum(borrower.is_lifted for _ in _samples(_MEASURE_SECONDS))
        got = [_percent(each.end().printed, since) for each in (one, other)]
    no_time = owner.cache.launched_at == launched
    return Outcome(
        name="an owner launches CUDA graphs only: it counts as working by its utilization",
        seen=f"limited after {seconds:.1f} s, lifted in {lifted} samples; {got[0]:.0f} and "
        f"{got[1]:.0f} %; launch time {'un' if no_time else ''}changed",
        holds=seconds <= _BACK_SECONDS and not lifted and no_time and got[0] <= 25 + _NEAR,
    )


def _policies(scene: _Scene, borrower: _Pod, owner: _Pod) -> Iterator[Outcome]:
    old = borrower.with_policy(names.CORE_POLICY_FORCE)
    with scene.working(old) as tenant:
        tenant.go()
        scene.until("idle compute", lambda: borrower.is_lifted)
        time.sleep(_SETTLE_SECONDS)
        since = time.monotonic()
        time.sleep(_MEASURE_SECONDS)
        got = _percent(tenant.end().printed, since)
    yield Outcome(
        name="a container with the policy `force`, though the switch is off: 25 %",
        seen=f"{got:.0f} %",
        holds=got <= 25 + _NEAR,
    )
    variables = {names.ENV_CORE_POLICY: "disable", **borrower.container.env}
    image = replace(borrower, container=replace(borrower.container, env=variables))
    yield _both(scene, "an image with the policy `disable`", image, owner)


def _forged(scene: _Scene, forger: _Pod, other: _Pod) -> Iterator[Outcome]:
    with scene.working(other) as waiting, scene.working(forger) as tenant:
        other.forge(_LAUNCH_AT, "<Q", 2**40)
        tenant.go()
        lifted = sum(forger.is_lifted for _ in _samples(15))
        got = _percent(tenant.end().printed, time.monotonic() - _MEASURE_SECONDS)
        waiting.end()
    yield Outcome(
        name="forged: an idle owner says that it works; nothing is lent to the other",
        seen=f"lifted in {lifted} samples of 15 s, {got:.0f} % of 25 %",
        holds=not lifted and abs(got - 25) <= _NEAR,
    )
    with _repeated(lambda: _look_idle(forger)):
        got_idle = _got(scene, forger, other, lambda: time.sleep(12))
    yield Outcome(
        name="forged: a tenant that works says that it is idle; it gets no more",
        seen=f"{got_idle[0]:.0f} % of 25 %; the other {got_idle[1]:.0f} % of 50 %",
        holds=got_idle[0] <= 25 + _NEAR and got_idle[1] >= 50 - _NEAR,
    )
    seconds: list[float] = []

    def lift() -> None:
        forger.forge(_SWITCH_AT, "<i", 0)
        seconds.append(scene.until("the limits", lambda: not forger.is_lifted))

    outcome = _both(scene, "forged: a tenant lifts its limits", forger, other, lift)
    yield replace(outcome, seen=f"limited after {seconds[0]:.1f} s; {outcome.seen}")
    yield _owner_starts(
        scene,
        forger,
        other,
        "forged: a borrower removes its file, and an owner starts",
        lambda: Path(forger.path).unlink(),
        is_lent_again=False,
    )
    words = ("alloc", "0", "1500")
    with scene.runc.waiting(forger.container, *words, "wait", *words) as tenant:
        forger.forge(_MEMORY_AT, "<Q", 8 << 30)
        took = scene.until("the memory limit", lambda: forger.limit_mib == 2048)
        tenant.go()
        results = tenant.end().results
    yield Outcome(
        name="forged: a larger memory limit",
        seen=f"{forger.limit_mib} MiB again after {took:.1f} s, then cuMemAlloc: {results}",
        holds=results == [OUT_OF_MEMORY],
    )


@contextmanager
def _repeated(action: _Action) -> Iterator[None]:
    """Repeat an action every 10 ms inside the block."""
    stopped = Event()

    def run() -> None:
        while not stopped.wait(0.01):
            action()

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _look_idle(pod: _Pod) -> None:
    if pod.cache.processes:
        pod.forge(_LAUNCH_AT, "<Q", 0)
        pod.forge(_UTILIZATION_AT, "<Q", 0)


def _memory(scene: _Scene) -> Iterator[Outcome]:
    limits = {names.ANNOTATION_VRAM_LIMIT: "12Gi"}
    holder = scene.pod("holder", share=50, mib=4096, limits=limits)
    steps = ("alloc", "0", "1000", "wait", "alloc", "0", "9000", "wait")
    looks = ("info", "0", "launch", "0", "0.02", "1000") * 150
    with scene.runc.waiting(holder.container, *steps, *looks) as tenant:
        took = scene.until("a higher limit", lambda: holder.limit_mib == 12288)
        second = tenant.exec("tenant", "info", "0")
        total = second.printed[-1]["total_mib"]
        logged = "Limit inconsistency" in second.errors
        scene.until("a verdict", lambda: scene.verdict(holder).startswith("True"))
        yield Outcome(
            name="a memory limit above the request is in the file, not in the environment",
            seen=f"{holder.container.env['CUDA_DEVICE_MEMORY_LIMIT_0']}, {holder.limit_mib} MiB "
            f"after {took:.1f} s; another process sees {total} MiB "
            f"{'and logs' if logged else 'without'} an inconsistency; {scene.verdict(holder)}",
            holds=total == 12288 and logged,
        )
        tenant.go()
        scene.until("memory in use", lambda: (holder.cache.used or (0,))[0] >= 10_000 << 20)
        scene.node.submit("later", {"tflops": "156", "vram": "8Gi"})
        tenant.go()
        scene.until("a lower limit", lambda: holder.limit_mib < 12288)
        kept = holder.limit_mib
        ended = tenant.end()
        waits = scene.node.container_of("later") is None
    shown = [each for each in ended.printed if each["command"] == "info"]
    errors = sum(each["result"] != 0 for each in shown)
    took = scene.until("pod later", lambda: scene.node.container_of("later") is not None)
    yield Outcome(
        name="a later pod waits for memory in use, and cuMemGetInfo answers",
        seen=f"limit {kept} MiB with 10000 MiB in use; later pod waits: {waits}; {errors} errors "
        f"of {len(shown)} cuMemGetInfo; {shown[0]['total_mib']} to {shown[-1]['total_mib']} MiB; "
        f"the later pod starts {took:.1f} s after the memory is free",
        holds=waits and not errors and kept >= 10_000,
    )
    more = ("alloc", "0", "9000")
    with scene.runc.waiting(holder.container, "count", "wait", *more, "wait", *more) as tenant:
        lowered = holder.limit_mib
        tenant.go()
        time.sleep(1)
        scene.node.delete("later")
        took = scene.until("a higher limit", lambda: holder.limit_mib == 12288)
        tenant.go()
        results = [each["result"] for each in tenant.end().printed if each["command"] == "alloc"]
    yield Outcome(
        name="a running process gets memory of a claim that ends",
        seen=f"{lowered} then {holder.limit_mib} MiB after {took:.1f} s; cuMemAlloc: {results}",
        holds=results == [OUT_OF_MEMORY, 0],
    )


def _resized(scene: _Scene, name: str) -> Outcome:
    """Change the limits of a running process: up, above the card, after a kill, below its use."""
    node, pod = scene.node, scene.started(name, share=50)
    codes, sizes = [], []

    def settled(mib: int) -> None:
        scene.until(f"a limit of {mib} MiB", lambda: pod.limit_mib == mib)
        sizes.append(pod.limit_mib)

    with scene.runc.waiting(pod.container, "count", "wait", "alloc", "0", "13000", "wait") as one:
        codes.append(node.resize(name, "vram=14Gi"))
        settled(14 << 10)
        one.go()
        scene.until("memory in use", lambda: (pod.cache.used or (0,))[0] >= 13_000 << 20)
        codes.append(node.resize(name, "vram=14Gi", "tflops=312"))
        settled(14 << 10)
        codes.append(node.resize(name, "vram=20Gi"))
        settled(16 << 10)
        node.kill_plugin()
        node.start_plugin()
        node.until("registration", lambda: bool(node.kubelet.registered))
        settled(16 << 10)
        codes.append(node.resize(name, "vram=6Gi"))
        in_use = pod.limit_mib
        printed = one.end().printed
    settled(6 << 10)
    results = [each["result"] for each in printed if each["command"] == "alloc"]
    return Outcome(
        name="a running process is resized: granted; compute refused; above the card, in part; "
        "kill -9; below what it uses",
        seen=f"exit codes {codes}, limits {sizes} MiB, {in_use} MiB while 13000 MiB are in use; "
        f"cuMemAlloc: {results}",
        holds=codes[:3] == [0, 1, 1] and in_use >= 13_000 and results == [0],
    )


def _stops(scene: _Scene, borrower: _Pod, owner: _Pod) -> Iterator[Outcome]:
    node = scene.node
    with scene.working(borrower) as one, scene.working(owner) as other:
        one.go()
        scene.until("idle compute", lambda: borrower.is_lifted)
        node.kill_plugin()
        other.go()
        time.sleep(_SETTLE_SECONDS)
        killed = time.monotonic()
        time.sleep(_MEASURE_SECONDS)
        sockets = Path(node.kubelet_root / "plugins_registry")
        before = _sockets(sockets)
        restarted = time.monotonic()
        node.start_plugin()
        scene.until("the registration socket", lambda: not _sockets(sockets) <= before)
        is_first = not borrower.is_lifted
        scene.until("the limits", lambda: not borrower.is_lifted)
        took = time.monotonic() - restarted
        time.sleep(_SETTLE_SECONDS)
        since = time.monotonic()
        time.sleep(_MEASURE_SECONDS)
        printed = [each.end().printed for each in (one, other)]
    unlimited = [_percent(each, killed, restarted) for each in printed]
    limited = [_percent(each, since) for each in printed]
    yield Outcome(
        name="kill -9 while lending, and the owner starts; then a restart",
        seen=f"{unlimited[0]:.0f} and {unlimited[1]:.0f} % until the restart; limited "
        f"within {took:.1f} s of its start, {'before' if is_first else 'AFTER'} the registration "
        f"socket; then {limited[0]:.0f} and {limited[1]:.0f} %",
        holds=is_first and limited[0] <= borrower.share + _NEAR,
    )
    with scene.working(borrower) as one:
        one.go()
        scene.until("idle compute", lambda: borrower.is_lifted)
        node.start_plugin("b")
        node.until("second instance", lambda: len(_sockets(sockets)) > 1)
        limited_samples = sum(not borrower.is_lifted for _ in _samples(5))
        start = time.monotonic()
        node.stop_plugin()
        took, is_back = time.monotonic() - start, not borrower.is_lifted
        again = scene.until("idle compute", lambda: borrower.is_lifted)
        one.end()
    yield Outcome(
        name="two instances, and the one that lends gets SIGTERM",
        seen=f"limited in {limited_samples} samples of 5 s with both; limited when the first had "
        f"ended ({took:.1f} s): {is_back}; lent by the second {again:.0f} s later",
        holds=not limited_samples and is_back,
    )
    node.start_plugin()
    node.stop_plugin("b")


def _sockets(folder: Path) -> set[tuple[int, int]]:
    """Return what tells a new socket from an old one, whose inode it may have."""
    found = [each.stat() for each in folder.iterdir()]
    return {(each.st_ino, each.st_ctime_ns) for each in found}


def _samples(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.05)


def _percent(printed: _Printed, start: float, end: float = float("inf")) -> float:
    windows = [each for each in printed if "at" in each and start <= each["at"] < end]
    seconds = sum(each["seconds"] for each in windows)
    return float(100 * sum(each["count"] for each in windows) * _KERNEL_SECONDS / seconds)


def _first(
    printed: _Printed, start: float, is_reached: Callable[[float], bool]
) -> tuple[float, float]:
    """Return begin and end of the first window with such a percentage, in seconds after start."""
    for each in printed:
        if "at" in each and each["at"] >= start and is_reached(_percent([each], start)):
            return each["at"] - start, each["at"] - start + each["seconds"]
    return float("inf"), float("inf")
