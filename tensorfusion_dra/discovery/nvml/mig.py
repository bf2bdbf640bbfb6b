"""Partitions of a card in MIG mode, as an administrator or a tool made them.

NVML calls a partition a MIG device: a compute instance of a GPU instance. A GPU instance has memory
and multiprocessors of its own. Its compute instances divide the multiprocessors and share the
memory.

A container reaches a partition by three device nodes: the card's, and one for each of the two
instances (NVIDIA's guide to MIG, Device Nodes and Capabilities). The file
/proc/driver/nvidia-caps/mig-minors has the minor numbers for all instances that the node could
have. After `gpu` it has the card's minor number. A partition's name ends in its profile: NVIDIA
A100-SXM4-80GB MIG 1g.10gb.

    gpu0/gi7/access 66
    gpu0/gi7/ci0/access 67
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pynvml

from tensorfusion_dra.discovery.recording import PartitionAnswers, Refusal

MINORS: Final = Path("driver/nvidia-caps/mig-minors")
"""Below /proc."""

Query = Callable[..., Any]
"""Calls a function of NVML; returns its answer or a Refusal."""


def is_on(mode: object) -> bool:
    """Return True if a card is in MIG mode, by its current and pending mode."""
    return isinstance(mode, tuple) and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def handles(card: Any, query: Query) -> Iterator[Any]:
    """Yield NVML's handles of a card's partitions.

    Args:
        card: The handle of a card in MIG mode.
        query: Calls NVML.
    """
    count = query("number of partitions", pynvml.nvmlDeviceGetMaxMigDeviceCount, card)
    for index in range(0 if isinstance(count, Refusal) else count):
        name = f"handle of partition {index}"
        handle = query(name, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, card, index)
        if not isinstance(handle, Refusal):  # the numbers have gaps
            yield handle


def partitions(card: Any, query: Query, proc: Path) -> tuple[PartitionAnswers, ...]:
    """Return NVML's answers about each partition of a card.

    Args:
        card: The handle of a card in MIG mode.
        query: Calls NVML.
        proc: The node's /proc.
    """
    minors, minor = _minors(proc), query("minor number", pynvml.nvmlDeviceGetMinorNumber, card)
    largest = _largest(card, query)

    def one(handle: Any) -> PartitionAnswers:
        def get(field: str, function: Callable[[Any], Any]) -> Any:
            return query(f"{field} of a partition", function, handle)

        name = get("name", pynvml.nvmlDeviceGetName)
        of_gpu = get("GPU instance", pynvml.nvmlDeviceGetGpuInstanceId)
        of_compute = get("compute instance", pynvml.nvmlDeviceGetComputeInstanceId)
        path = f"gpu{minor}/gi{of_gpu}"
        paths = (f"{path}/access", f"{path}/ci{of_compute}/access")
        return PartitionAnswers(
            uuid=get("uuid", pynvml.nvmlDeviceGetUUID),
            profile=name if isinstance(name, Refusal) else name.rpartition(" MIG ")[2],
            amounts=get("attributes", _amounts),
            largest=largest,
            gpu_instance=of_gpu,
            capability_minors=tuple(int(minors[each]) for each in paths if each in minors),
        )

    return tuple(map(one, handles(card, query)))


def _amounts(handle: Any) -> tuple[int, int]:
    found = pynvml.nvmlDeviceGetAttributes_v2(handle)
    return int(found.multiprocessorCount), int(found.memorySizeMB)


def _largest(card: Any, query: Query) -> int:
    """Return the multiprocessors of the card's largest possible GPU instance; 0 if unknown."""
    found = (
        query("profile", pynvml.nvmlDeviceGetGpuInstanceProfileInfo, card, profile, 1)
        for profile in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
    )
    return max((getattr(each, "multiprocessorCount", 0) for each in found), default=0)


def _minors(proc: Path) -> dict[str, str]:
    """Return the minor number of each capability; empty if the driver lists none."""
    text = ""
    with suppress(OSError, ValueError):
        text = (proc / MINORS).read_text(encoding="ascii")
    return dict(re.findall(r"^(\S+) ([0-9]+)$", text, re.MULTILINE))
