"""Libraries and programs that stand in for a machine with NVIDIA GPUs, compiled from C.

`libcuda.so.1` and `libnvidia-ml.so.1` answer for the same cards, which a file describes (gpus.h).
Processes on them share memory and compute as on a real card, and NVML fails as the file says.
`tenant` is a program that uses a GPU and prints what it got, `limiter.c` an enforcer's library.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "STAND_IN_GPUS"
"""Environment variable with the path of the file of cards."""
DEV_VARIABLE: Final = "STAND_IN_DEV"
"""Environment variable with the folder whose device nodes make cards visible."""
PATH_IN_CONTAINER: Final = "/run/stand-in-gpus"
"""Folder that has the file `cards` where no variable is set; cards in /dev are visible then."""
DRIVER: Final = "550.54.15"

A100: Final[Mapping[str, str]] = {
    "name": "NVIDIA A100-SXM4-80GB",
    "memory": str(80 * 2**30),
    "reserved": "0",
    "brand": "14",
    "architecture": "7",
    "compute_capability": "8 0",
    "mig": "0 0",
    "cores": "6912",
    "clock": "1410",
    "events": "0xffff",
    "recovery": "0",
}
"""What NVML answers of a card of this model, by query (nvml.c)."""
SYSTEM: Final[Mapping[str, str]] = {"driver": DRIVER, "cuda": "12040"}
"""What NVML answers of the machine."""

_SOURCES: Final = Path(__file__).parent
_STRICT: Final = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-O1", "-pthread")
_COMPILE_SECONDS: Final = 120


class CompilerError(Exception):
    """There is no C compiler, or it refused a source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card as the stand-ins show it.

    Attributes:
        pci_bus_id: As NVML writes it, such as 00000000:3A:00.0.
        multiprocessors: CUDA's default order of devices starts with the card that has the most.
    """

    uuid: str
    pci_bus_id: str
    minor: int
    mib: int = 81920
    multiprocessors: int = 108
    name: str = A100["name"]

    def answers(self) -> Mapping[str, str]:
        """Return what NVML answers of the card."""
        return {
            **A100,
            "uuid": self.uuid,
            "pci": self.pci_bus_id,
            "minor": str(self.minor),
            "memory": str(self.mib * 2**20),
            "multiprocessors": str(self.multiprocessors),
            "cores": str(self.multiprocessors * 64),
            "name": self.name,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Options of the machine; see gpus.h.

    Attributes:
        block_ns: Time of one block of a kernel. 20 is that of a fast card: a kernel of 50,000
            blocks takes 1 ms. HAMi-core's limiter counts blocks, so it needs a real order of size.
        context_mib: Memory of each process's primary context.
    """

    cards: Sequence[Card]
    block_ns: int = 20
    context_mib: int = 0

    def text(self) -> str:
        """Return the content of the file of cards."""
        options = {"block_ns": str(self.block_ns), "context_mib": str(self.context_mib)}
        return answers([card.answers() for card in self.cards], {**SYSTEM, **options})

    def write(self, folder: Path) -> Path:
        """Write the file of cards, in a folder that processes of any user may write to."""
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        file = folder / "cards"
        file.write_text(self.text(), encoding="utf-8")
        return file


def answers(cards: Sequence[Mapping[str, str]], system: Mapping[str, str]) -> str:
    """Return the content of a file of cards with these answers of each card and of the machine."""
    lines = [
        f"{index} {query} {answer}"
        for index, card in enumerate(cards)
        for query, answer in card.items()
    ]
    lines += [f"system {query} {answer}" for query, answer in system.items()]
    return "\n".join(lines) + "\n"


def build_driver(root: Path) -> Path:
    """Compile both libraries below a driver root, as a driver package installs them.

    Returns:
        The folder of the libraries, which LD_LIBRARY_PATH may name.

    Raises:
        CompilerError: There is no compiler, or it refused a source.
    """
    folder = root / "usr" / "lib64"
    folder.mkdir(parents=True, exist_ok=True)
    for stem, source in (("libcuda.so", "cuda.c"), ("libnvidia-ml.so", "nvml.c")):
        file = folder / f"{stem}.{DRIVER}"
        build_library(file, source, soname=f"{stem}.1")
        for name in (f"{stem}.1", stem):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(file.name)
    return folder


def build_library(file: Path, source: str, *flags: str, soname: str) -> None:
    """Compile a library that answers for the cards.

    Raises:
        CompilerError: There is no compiler, or it refused a source.
    """
    shared = ["-shared", "-fPIC", "-fvisibility=hidden", f"-Wl,-soname,{soname}"]
    compile_c(file, (source, "gpus.c"), [*shared, *flags])


def build_tenant(folder: Path, libraries: Path) -> Path:
    """Compile the program `tenant`; it loads whatever libcuda.so.1 the loader finds.

    Args:
        folder: Where it is put.
        libraries: Folder with a libcuda.so to link.

    Raises:
        CompilerError: There is no compiler, or it refused a source.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "tenant"
    compile_c(program, ("tenant.c",), [f"-L{libraries}", "-lcuda", "-ldl"])
    return program


def compile_c(file: Path, sources: Iterable[str], flags: Sequence[str]) -> None:
    """Compile sources of this folder, or at an absolute path, into a library or program.

    Raises:
        CompilerError: There is no compiler, or it refused a source.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise CompilerError("found no C compiler cc, expected one for the stand-in libraries")
    paths = [str(_SOURCES / source) for source in sources]
    command = [compiler, *_STRICT, "-o", str(file), *paths, *flags]
    done = subprocess.run(command, capture_output=True, timeout=_COMPILE_SECONDS, check=False)
    if done.returncode != 0:
        raise CompilerError(f"{file.name}: {done.stderr.decode(errors='replace')}")
