"""A machine for tests: answers of the stand-in for NVML, and a process with discovery."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stand_ins import libraries
from tests.support import forks
from tests.support.compiler import compiler

MIB = 2**20
MAX_THREADS = "2"
"""Threads that may call NVML: the one that reads, and the one that waits for events."""


def build(folder: Path, *flags: str) -> Path:
    """Compile the stand-in for NVML and return its path."""
    compiler("the NVML tests")
    folder.mkdir()
    library = folder / "libnvidia-ml.so.1"
    libraries.build_library(library, "nvml.c", *flags, soname=library.name)
    return library


def uuid(index: int) -> str:
    return f"GPU-0000000{index}-aaaa-bbbb-cccc-dddddddddddd"


def card(index: int, **answers: str) -> dict[str, str]:
    """Return the answers of an A100 with these changes; the answer ``!3`` is that NVML error."""
    own = {"uuid": uuid(index), "minor": str(index), "pci": f"00000000:{0x3A + index:02X}:00.0"}
    return {**libraries.A100, **own, **answers}


def answers(*cards: Mapping[str, str], **system: str) -> str:
    """Return the content of the file of cards."""
    every = {**libraries.SYSTEM, "threads": MAX_THREADS, **system}
    return libraries.answers(cards, every)


MIG = {"mig": "1 1", "partitions": "7", "profile4": "98"}
"""What a card in MIG mode answers; it refuses its memory to processes without privileges."""


def mig_uuid(number: int) -> str:
    return f"MIG-0000000{number}-aaaa-bbbb-cccc-dddddddddddd"


def partition(number: int, instance: int, **changed: str) -> dict[str, str]:
    """Return the answers of partition 1g.10gb, by query."""
    return {
        "uuid": mig_uuid(number),
        "name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "instances": f"{instance} 0",
        "attributes": f"14 {9728}",
        **changed,
    }


def divided(index: int, *partitions: dict[str, str], **changed: str) -> str:
    """Return the lines of a card with these partitions, whose numbers have gaps."""
    lines = [
        f"{index}.{2 * number} {query} {answer}"
        for number, each in enumerate(partitions)
        for query, answer in each.items()
    ]
    return answers_of(index, **changed) + "\n".join(lines) + "\n"


def answers_of(index: int, **changed: str) -> str:
    every = [card(number) for number in range(index)]
    return answers(*every, card(index, **{**MIG, "memory": "!4", **changed}))


def provide_driver(folder: Path, *, cards: int) -> None:
    """Create what claims need of a driver: dev with nodes, driver with empty libraries."""
    (folder / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(cards))):
        (folder / "dev" / name).symlink_to("/dev/null")
    (folder / "driver/usr/lib64").mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / "driver/usr/lib64" / name).touch()


@dataclass(kw_only=True)
class Machine:
    """Discovery in a process of its own, because pynvml never unloads a library."""

    folder: Path
    library: Path | None
    driver_root: Path = Path("/nowhere")
    wait_seconds: float = 20.0

    @property
    def answers_file(self) -> Path:
        return self.folder / "answers"

    def run(self, first: str, *steps: list[Any]) -> list[Any]:
        """Run the steps in a process and return their results; see nvml_child for the steps."""
        # A lone surrogate in a text stands for a byte that is not UTF-8.
        self.answers_file.write_bytes(first.encode("utf-8", "surrogateescape"))
        script = {
            "library": None if self.library is None else str(self.library),
            "folder": str(self.folder),
            "driver_root": str(self.driver_root),
            "wait_seconds": self.wait_seconds,
            "steps": steps,
        }
        child = forks.run(
            module="tests.discovery.nvml.nvml_child",
            stdin=json.dumps(script).encode(),
            environment={**os.environ, libraries.VARIABLE: str(self.answers_file)},
        )
        assert child.returncode == 0, child.stderr
        printed: list[Any] = json.loads(child.stdout.splitlines()[-1])  # after the log
        return printed

    def read(self, first: str) -> Any:
        """Return the inventory of one reading, or its error."""
        return self.run(first, ["read"])[0]

    def rewrite(self, text: str) -> list[Any]:
        """Return a step that changes the machine before the next reading."""
        return ["write", str(self.answers_file), text]

    def put_in_sysfs(self, bus_id: str, device: str, *, numa_node: str | None) -> None:
        """Add a PCI device to the machine's /sys, at this path under /sys/devices."""
        real = self.folder / "sys" / "devices" / device
        real.mkdir(parents=True)
        if numa_node is not None:
            (real / "numa_node").write_text(numa_node + "\n", encoding="ascii")
        links = self.folder / "sys" / "bus" / "pci" / "devices"
        links.mkdir(parents=True, exist_ok=True)
        (links / bus_id).symlink_to(real)
