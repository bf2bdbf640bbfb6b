"""The NVIDIA driver's libraries for containers: by NVIDIA's toolkit, or mounted one by one."""

import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims.prepared import Mount
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.discovery.host import driver_root
from tensorfusion_dra.discovery.host.toolkit_specs import ToolkitSpecs

_CUDA: Final = "libcuda.so.1"
_REQUIRED: Final = (_CUDA, "libnvidia-ml.so.1")
_OPTIONAL: Final = (
    "libcudadebugger.so.1",
    "libnvcuvid.so.1",
    "libnvidia-allocator.so.1",
    "libnvidia-cfg.so.1",
    "libnvidia-encode.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-opencl.so.1",
    "libnvidia-opticalflow.so.1",
    "libnvidia-ptxjitcompiler.so.1",
)
_VERSIONED: Final = ("libnvidia-compiler", "libnvidia-gpucomp", "libnvidia-nvvm70")
"""Libraries that the driver's other libraries load under a name with the driver's version."""

_ALIASES: Final = {_CUDA: ("libcuda.so",)}
"""Names without a version that programs open; a driver without the toolkit lacks them."""

_PROGRAM: Final = "nvidia-smi"


class HostDriverFiles:
    """Libraries below the driver root, and cards in the CDI specs of NVIDIA's container toolkit.

    Without NVIDIA's toolkit nothing runs ldconfig in a container, so the loader finds a library
    only in the folders that are compiled into it: /usr/lib/<machine>-linux-gnu on Debian and
    /usr/lib64 on other distributions. The driver does not know which one an image uses, so it
    mounts each library into both; the runtime creates a missing folder. With LD_LIBRARY_PATH one
    folder would be enough, but it would replace the image's own value.

    Each library is mounted under its soname, which programs load, and under its file name, which
    the driver's other libraries load: bind mounts cannot reproduce the symbolic links.
    """

    def __init__(
        self,
        root: Path,
        *,
        root_on_host: Path | None = None,
        cdi_folders: Sequence[Path],
        machine: str | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            root: Root folder of the driver in this process.
            root_on_host: Path of that folder on the host; the same path if None.
            cdi_folders: Folders that may have specs of NVIDIA's toolkit.
            machine: Machine name (uname) of the containers; that of this process if None.
        """
        self._root: Final = root
        self._root_on_host: Final = root_on_host or root
        self._specs: Final = ToolkitSpecs(cdi_folders)
        triplet = f"{machine or platform.machine()}-linux-gnu"
        self._folders: Final = (f"/usr/lib/{triplet}", "/usr/lib64")

    def toolkit_device(self, gpu_uuid: str) -> str | None:
        """Return the card's qualified CDI device of NVIDIA's toolkit; None if it has none."""
        return self._specs.device(gpu_uuid)

    def mounts(self) -> tuple[Mount, ...]:
        """Return the mounts of the libraries and of nvidia-smi.

        Raises:
            RetryableError: A library that every CUDA program needs is missing.
        """
        files = dict(self._libraries())
        mounts = [
            self._mount(file, f"{folder}/{name}")
            for folder in self._folders
            for name, file in files.items()
        ]
        program = self._find(_PROGRAM, driver_root.PROGRAM_FOLDERS)
        if program is not None:
            mounts.append(self._mount(program, f"/usr/bin/{_PROGRAM}"))
        return tuple(mounts)

    def _libraries(self) -> Iterator[tuple[str, Path]]:
        """Yield every library under each of its names."""
        found = {soname: self._required(soname) for soname in _REQUIRED}
        for soname in _OPTIONAL:
            file = self._library(soname)
            if file is not None:
                found[soname] = file
        for soname, file in found.items():
            for name in (soname, file.name, *_ALIASES.get(soname, ())):
                yield name, file
        version = found[_CUDA].name.removeprefix("libcuda.so.")
        for stem in _VERSIONED:
            file = self._library(f"{stem}.so.{version}")
            if file is not None:
                yield f"{stem}.so.{version}", file

    def _required(self, soname: str) -> Path:
        file = self._library(soname)
        if file is None:
            folders = ", ".join(driver_root.LIBRARY_FOLDERS)
            raise RetryableError(
                f"{soname}: found in no library folder of {self._root} ({folders}), and no CDI "
                "spec of NVIDIA's container toolkit names the card; expected either"
            )
        return file

    def _library(self, name: str) -> Path | None:
        return self._find(name, driver_root.LIBRARY_FOLDERS)

    def _find(self, name: str, folders: Sequence[str]) -> Path | None:
        """Return the target file, because a package update may redirect a link; None if missing."""
        files = (driver_root.target(self._root / folder / name, self._root) for folder in folders)
        return next((file for file in files if file is not None), None)

    def _mount(self, file: Path, container_path: str) -> Mount:
        on_host = self._root_on_host / file.relative_to(self._root)
        return Mount(host_path=str(on_host), container_path=container_path)
