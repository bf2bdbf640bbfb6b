"""The machine under check: where its NVIDIA driver is, and what stands in for it."""

import ctypes
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stand_ins import libraries
from stand_ins.libraries import Card
from tensorfusion_dra.discovery.host import LIBRARY_FOLDERS, PROGRAM_FOLDERS

MPS_CONTROL: Final = "nvidia-cuda-mps-control"

_CUDA: Final = "libcuda.so.1"
_ROOTS: Final = (Path("/"), Path("/usr/local/nvidia"), Path("/run/nvidia/driver"))
"""Roots of driver files, for machines whose loader does not know them."""
_STAND_IN: Final = Card(
    uuid="GPU-00000000-aaaa-bbbb-cccc-dddddddddddd", pci_bus_id="00000000:3A:00.0", minor=0
)
_BLOCK_NS: Final = 50
"""The kernel of the load has 43200 blocks on this card, and so takes about 2 ms."""
_CONTEXT_MIB: Final = 64
_MPS_STAND_IN: Final = Path(__file__).parents[2] / "tests/daemonset/mps_stand_in.py"
_OF_LIMITERS: Final = ("CUDA_", "GPU_CORE", "LD_", "NVIDIA_", "TENSOR_FUSION_", "TF_")
"""Beginnings of variables that would change what a tenant gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Paths of the NVIDIA driver and of what can limit its users.

    Attributes:
        driver_root: Root folder of the NVIDIA driver's files.
        library_folder: Folder of its libraries, if the loader does not find them by itself.
        dev: Folder of the device nodes; None for the machine's own.
        hami_core: HAMi-core's library, or what stands in for it; None if there is none.
        mps_control: Command of the MPS control daemon, or what stands in; empty if there is none.
        stand_ins: What is not real, for every output; empty on a machine with a GPU.
        variables: Additional environment variables of every process.
    """

    driver_root: Path
    library_folder: Path | None
    dev: Path | None
    hami_core: Path | None
    mps_control: tuple[str, ...]
    stand_ins: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the environment of this process without what would change a tenant's limits."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(_OF_LIMITERS)
        }
        return {**kept, **self.variables}


def real(*, driver_root: Path | None, hami_core: Path | None) -> Machine:
    """Return this machine.

    Args:
        driver_root: Root folder of the NVIDIA driver's files; None to find it.
        hami_core: HAMi-core's library.
    """
    root, folder = (driver_root, None) if driver_root else _found_root()
    programs = [*(str(root / each) for each in PROGRAM_FOLDERS), os.environ.get("PATH", "")]
    control = shutil.which(MPS_CONTROL, path=os.pathsep.join(programs))
    return Machine(
        driver_root=root,
        library_folder=folder,
        dev=None,
        hami_core=hami_core,
        mps_control=(control,) if control else (),
    )


def with_stand_ins(folder: Path, *, hami_core: Path | None, with_limiter: bool) -> Machine:
    """Compile what stands in for a GPU, its driver and its enforcers, in a folder.

    Args:
        hami_core: HAMi-core's real library, to be used instead of the limiter.
        with_limiter: False for a limiter that limits nothing.

    Raises:
        CompilerError: There is no C compiler, or it refused a source.
    """
    root = folder / "driver"
    libraries_folder = libraries.build_driver(root)
    dev = folder / "dev"
    dev.mkdir()
    for node in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        (dev / node).symlink_to("/dev/null")
    cards = libraries.Machine(
        cards=[_STAND_IN], block_ns=_BLOCK_NS, context_mib=_CONTEXT_MIB
    ).write(folder / "cards")
    limiter = folder / "limiter.so"
    flags = ["-shared", "-fPIC", "-ldl", *(() if with_limiter else ("-DLIMITS_NOTHING",))]
    libraries.compile_c(limiter, ("limiter.c",), flags)
    return Machine(
        driver_root=root,
        library_folder=libraries_folder,
        dev=dev,
        hami_core=hami_core or limiter,
        mps_control=(sys.executable, str(_MPS_STAND_IN)),
        stand_ins=(
            "NVML, libcuda and the card",
            *(() if hami_core else ("HAMi-core's library",)),
            "the MPS daemon",
        ),
        variables={
            libraries.VARIABLE: str(cards),
            "MPS_STAND_IN_LOG": str(folder / "mps-commands"),
        },
    )


def _found_root() -> tuple[Path, Path | None]:
    """Return the root above the folder of libcuda, and the folder; None if there is no libcuda."""
    folder = _loaded_from()
    if folder is None:
        places = (root / each for root in _ROOTS for each in LIBRARY_FOLDERS)
        folder = next((place for place in places if (place / _CUDA).exists()), None)
    if folder is None:
        return Path("/"), None
    for each in LIBRARY_FOLDERS:
        if str(folder).endswith(f"/{each}"):
            return Path(str(folder).removesuffix(each)), folder
    return Path("/"), folder


def _loaded_from() -> Path | None:
    """Return the folder in which the loader finds libcuda; this process only maps it."""
    try:
        ctypes.CDLL(_CUDA)
    except OSError:
        return None
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    paths = (line.split(maxsplit=5)[-1] for line in maps if "/libcuda.so" in line)
    return next((Path(path).parent for path in paths), None)
