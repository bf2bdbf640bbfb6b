"""What HAMi-core's real library does in containers made from our CDI specs.

Two pods on a node with two stand-in cards of different sizes: `two` shares both cards, `whole` has
them alone, one after the other. Each check runs the program `tenant` in containers of runc.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dra_simulator.runtime import Container
from stand_ins import node as nodes
from stand_ins.bundle import Image, Runc
from stand_ins.libraries import Card, Machine
from stand_ins.node import Ask

OUT_OF_MEMORY: Final = 2
ASYNC_REFUSED: Final = -1
"""HAMi-core's own result for cuMemAllocAsync above the limit."""
_REFUSALS: Final = (OUT_OF_MEMORY, ASYNC_REFUSED)

CARDS: Final = (
    # The second card is the faster one, so CUDA's default order is not that of the PCI bus.
    Card(
        uuid="GPU-00000000-1111-2222-3333-444444444444",
        pci_bus_id="00000000:3A:00.0",
        minor=0,
        mib=8192,
        multiprocessors=100,
    ),
    Card(
        uuid="GPU-00000001-1111-2222-3333-444444444444",
        pci_bus_id="00000000:3B:00.0",
        minor=1,
        mib=16384,
        multiprocessors=108,
    ),
)
_CONTEXT_MIB: Final = 100
_LIMIT_MIB: Final = 2048
_MOST: Final = 1500
"""MiB below the limit; a second time it is above."""
_LAUNCH: Final = ("launch", "0", "6", "50000")
_KERNEL_SECONDS: Final = 0.001
"""A kernel of 50000 blocks of 20 ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A check's result.

    Attributes:
        expects_limit: False for a known gap, which is expected to let a process past its limit.
        holds: Whether the limit held.
    """

    name: str
    seen: str
    holds: bool
    expects_limit: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    runc: Runc
    pod: Container


_Check = Callable[[_Scene], Outcome]


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
        starter = Runc(node.folder / "bundles", image.root, node.cards, runc=runc)
        whole = node.run_pod("whole", Ask(amounts={}, cards=2))
        yield _cards_of_two_sizes(_Scene(runc=starter, pod=whole))
        node.delete("whole")
        node.until("end of pod whole", lambda: not node.spec_files())
        two = node.run_pod("two", Ask(amounts={"tflops": "78", "vram": "2Gi"}, cards=2))
        for check in (*_MEMORY, *_PROCESSES, *_PRELOADS, _compute_is_limited, *_GAPS):
            yield check(_Scene(runc=starter, pod=two))
        fresh = node.run_pod("fresh", Ask(amounts={"tflops": "78", "vram": "2Gi"}))
        yield _first_process(_Scene(runc=starter, pod=fresh))


def _cards_are_those_of_the_claim(scene: _Scene) -> Outcome:
    ended = scene.runc.run(scene.pod, "tenant", "device", "0", "device", "1", "nvml", "0")
    seen = [(each.get("bus"), each["total_mib"]) for each in ended.printed]
    expected = [*((card.pci_bus_id, _LIMIT_MIB) for card in CARDS), (None, _LIMIT_MIB)]
    totals = ", ".join(str(total) for _, total in seen)
    return Outcome(
        name="CUDA and NVML show the limits as the cards' memory, in the order of the PCI bus",
        seen=f"{totals} MiB",
        holds=seen == expected,
    )


def _allocation_above_the_limit(scene: _Scene) -> Outcome:
    seen = {}
    for by in ("link", "dlsym", "getproc"):
        words = ("alloc", "0", str(_MOST), "alloc", "0", str(_MOST))
        seen[by] = scene.runc.run(scene.pod, "tenant", "--by", by, *words).results
    return Outcome(
        name="an allocation above the limit is out of memory, however CUDA is called",
        seen=str(seen),
        holds=all(results == [0, OUT_OF_MEMORY] for results in seen.values()),
    )


def _every_kind_of_memory(scene: _Scene) -> Outcome:
    seen = {}
    for kind in ("alloc", "managed", "pitch", "async", "create"):
        words = (kind, "0", str(_MOST), kind, "0", str(_MOST))
        seen[kind] = scene.runc.run(scene.pod, "tenant", *words).results
    return Outcome(
        name="managed, pitched, asynchronous and virtual memory count as well",
        seen=str(seen),
        holds=all(first == 0 and last in _REFUSALS for first, last in seen.values()),
    )


def _second_card_has_its_own_limit(scene: _Scene) -> Outcome:
    words = [word for card in "0011" for word in ("alloc", card, str(_MOST))]
    seen = scene.runc.run(scene.pod, "tenant", *words).results
    return Outcome(
        name="the second card has a limit of its own",
        seen=str(seen),
        holds=seen == [0, OUT_OF_MEMORY, 0, OUT_OF_MEMORY],
    )


def _cards_of_two_sizes(scene: _Scene) -> Outcome:
    ended = scene.runc.run(scene.pod, "tenant", "device", "0", "device", "1")
    seen = [each["total_mib"] for each in ended.printed]
    return Outcome(
        name="cards of different sizes have different limits, each at its index",
        seen=f"{seen} MiB",
        holds=seen == [card.mib for card in CARDS],
    )


def _sum_over_processes(scene: _Scene) -> Outcome:
    with scene.runc.waiting(scene.pod, "alloc", "0", str(_MOST), "wait") as first:
        second = first.exec("tenant", "alloc", "0", str(_MOST), "info", "0")
    free = second.printed[-1].get("free_mib")
    return Outcome(
        name="two processes of a container share one limit",
        seen=f"{second.results[0]}, {free} MiB free",
        holds=second.results[0] == OUT_OF_MEMORY and free == _LIMIT_MIB - _MOST - 2 * _CONTEXT_MIB,
    )


def _killed_process(scene: _Scene) -> Outcome:
    with scene.runc.waiting(scene.pod, "count", "wait") as first:
        first.exec("tenant", "alloc", "0", str(_MOST), "kill")
        after = first.exec("tenant", "alloc", "0", str(_MOST))
    return Outcome(
        name="a killed process gives its memory back",
        seen=str(after.results),
        holds=after.results == [0],
    )


def _preloads(name: str, *before: str) -> _Check:
    def check(scene: _Scene) -> Outcome:
        words = ("tenant", "alloc", "0", str(_MOST), "alloc", "0", str(_MOST))
        seen = scene.runc.run(scene.pod, *before, *words).results
        return Outcome(name=name, seen=str(seen), holds=seen == [0, OUT_OF_MEMORY])

    return check


def _compute_is_limited(scene: _Scene) -> Outcome:
    ended = scene.runc.run(scene.pod, "tenant", *_LAUNCH)
    percent = _percent(ended.printed)
    return Outcome(
        name="compute stays near 25 %",
        seen=f"{percent:.0f} %",
        holds=15 <= percent <= 35,
    )


def _gap(name: str, *before: str, by: str = "link") -> _Check:
    def check(scene: _Scene) -> Outcome:
        words = ("tenant", "--by", by, "alloc", "0", str(_MOST), "alloc", "0", str(_MOST))
        seen = scene.runc.run(scene.pod, *before, *words).results
        holds = seen == [0, OUT_OF_MEMORY]
        return Outcome(name=name, seen=str(seen), holds=holds, expects_limit=False)

    return check


def _two_containers(scene: _Scene) -> Outcome:
    with scene.runc.waiting(scene.pod, "alloc", "0", str(_MOST), "wait"):
        seen = scene.runc.run(scene.pod, "tenant", "alloc", "0", str(_MOST)).results
    return Outcome(
        name="two containers use the request at once, each in a PID namespace of its own",
        seen=str(seen),
        holds=seen == [OUT_OF_MEMORY],
        expects_limit=False,
    )


def _another_process_by_another_index(scene: _Scene) -> Outcome:
    with scene.runc.waiting(scene.pod, "alloc", "1", str(_MOST), "wait") as first:
        words = ("env", "CUDA_VISIBLE_DEVICES=1", "tenant", "alloc", "0", str(_MOST))
        seen = first.exec(*words).results
    return Outcome(
        name="two processes on the second card, which one of them sees as its first",
        seen=str(seen),
        holds=seen == [OUT_OF_MEMORY],
        expects_limit=False,
    )


def _nvml_before_cuda(scene: _Scene) -> Outcome:
    words = ("nvml", "0", "alloc", "0", str(_MOST), "alloc", "0", str(_MOST))
    seen = scene.runc.run(scene.pod, "env", "CUDA_VISIBLE_DEVICES=1", "tenant", *words).results
    return Outcome(
        name="a process that sees only the second card and calls NVML before CUDA",
        seen=str(seen),
        holds=seen == [0, 0, OUT_OF_MEMORY],
        expects_limit=False,
    )


def _compute_of_another_first_card(scene: _Scene) -> Outcome:
    words = ("env", "CUDA_VISIBLE_DEVICES=1", "tenant", *_LAUNCH)
    percent = _percent(scene.runc.run(scene.pod, *words).printed)
    return Outcome(
        name="compute, if a process selects another card than the first one",
        seen=f"{percent:.0f} % of 25 %",
        holds=percent <= 35,
        expects_limit=False,
    )


def _percent(printed: Sequence[Mapping[str, Any]]) -> float:
    launched = printed[-1]
    return float(100 * launched["count"] * _KERNEL_SECONDS / launched["seconds"])


_MEMORY: Final = (
    _cards_are_those_of_the_claim,
    _allocation_above_the_limit,
    _every_kind_of_memory,
    _second_card_has_its_own_limit,
)
_PROCESSES: Final = (_sum_over_processes, _killed_process)
_PRELOADS: Final = (
    _preloads("an entrypoint that sets LD_PRELOAD keeps the limit", "env", "LD_PRELOAD=libm.so.6"),
    _preloads(
        "a later process that changes its own limit keeps it",
        "env",
        "CUDA_DEVICE_MEMORY_LIMIT_0=9g",
    ),
    _preloads(
        "a process that selects the second card has its limit", "env", "CUDA_VISIBLE_DEVICES=1"
    ),
)
_GAPS: Final = (
    _gap("a process without the container's environment (env -i)", "env", "-i"),
    _gap(
        "a process that chooses another cache file and limit",
        "env",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/own",
        "CUDA_DEVICE_MEMORY_LIMIT_0=9g",
    ),
    _gap(
        "a process that redirects HAMi-core's lookups",
        "env",
        "CUDA_REDIRECT=/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        by="dlsym",
    ),
    _two_containers,
    _another_process_by_another_index,
    _nvml_before_cuda,
    _compute_of_another_first_card,
)

_first_process: Final = _gap(
    "the first process of a claim, if it changes its own limit",
    "env",
    "CUDA_DEVICE_MEMORY_LIMIT_0=9g",
)
