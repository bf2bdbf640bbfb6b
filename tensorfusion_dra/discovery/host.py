"""Host facts for containers with a card: device nodes, driver libraries, sizes, boot ID."""

import json
import os
import platform
import stat
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.prepared import Mount
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.discovery import yaml_file

log = structlog.get_logger()

_DEV: Final = Path("/dev")
_CONTROL: Final = "nvidiactl"
_REQUIRED_NODES: Final = (_CONTROL, "nvidia-uvm")
"""Nodes without which no CUDA program starts."""
_OPTIONAL_NODES: Final = ("nvidia-uvm-tools", "nvidia-modeset")

# 64-bit folders first, because /usr/lib has 32-bit libraries on some distributions. The last three
# are for Talos, GKE's driver installer and WSL.
LIBRARY_FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
    "lib",
    "usr/local/glibc/usr/lib",
    "home/kubernetes/bin/nvidia/lib64",
    "usr/lib/wsl/lib",
)
PROGRAM_FOLDERS: Final = ("usr/bin", "usr/local/bin", "bin", "home/kubernetes/bin/nvidia/bin")

_MAX_LINKS: Final = 40
"""The kernel's limit."""

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

TOOLKIT_KIND: Final = "nvidia.com/gpu"
"""Kind of nvidia-ctk's specs. The device plugin's kind is not used: its specs go when it goes."""
_SPEC_SUFFIXES: Final = (".json", ".yaml")
"""Suffixes of the files that runtimes read."""


class HostDeviceNodes:
    """Device nodes in the host's /dev, or in the dev folder of the driver root.

    NVIDIA's driver container creates the nodes in its own /dev, below its root folder, and the
    host's /dev often has none. NVIDIA's device plugin and container toolkit also use the nodes
    below the driver root.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        driver_root: Path = Path("/"),
        root_on_host: Path | None = None,
    ) -> None:
        """Args:
        folder: Folder of the nodes, here and on the host. None means the dev folder of the
            driver root while it has the control device, and /dev otherwise.
        driver_root: Root folder of the driver in this process.
        root_on_host: Path of that folder on the host; the same path if None.
        """
        self._chosen: Final = folder
        self._driver_root: Final = driver_root
        self._root_on_host: Final = root_on_host or driver_root

    def folder(self) -> Path:
        """Return the folder with the device nodes at present, as a path of this process."""
        if self._chosen is not None:
            return self._chosen
        of_driver = self._driver_root / "dev"
        return of_driver if (of_driver / _CONTROL).is_char_device() else _DEV

    def of_card(self, minor: int, capability_minors: Sequence[int] = ()) -> tuple[str, ...]:
        """Return the paths on the host of a card's own nodes, and of those for a partition.

        Nodes of a partition are not checked: if it was made after this process started, they may be
        missing from its /dev. The container runtime finds them on the host.

        Raises:
            RetryableError: A node is missing or not a character device.
        """
        folder = self.folder() / names.CAPABILITIES_FOLDER
        nodes = (self._on_host(folder / f"nvidia-cap{number}") for number in capability_minors)
        return (self._required(self.folder() / f"nvidia{minor}"), *nodes)

    def common(self) -> tuple[str, ...]:
        """Return the paths on the host of the nodes that every container with a card needs.

        Raises:
            RetryableError: A node that every CUDA program needs is missing.
        """
        folder = self.folder()
        required = tuple(self._required(folder / name) for name in _REQUIRED_NODES)
        optional = (folder / name for name in _OPTIONAL_NODES)
        return (*required, *(self._on_host(path) for path in optional if path.is_char_device()))

    def _required(self, path: Path) -> str:
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise RetryableError(f"device node {path}: {error.strerror}") from error
        if not stat.S_ISCHR(mode):
            raise RetryableError(
                f"device node {path}: found another kind of file, expected a character device"
            )
        return self._on_host(path)

    def _on_host(self, path: Path) -> str:
        is_own = self._chosen is None and path.is_relative_to(self._driver_root / "dev")
        return str(self._root_on_host / path.relative_to(self._driver_root) if is_own else path)


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
        """Args:
        root: Root folder of the driver in this process.
        root_on_host: Path of that folder on the host; the same path if None.
        cdi_folders: Folders that may have specs of NVIDIA's toolkit.
        machine: Machine name (uname) of the containers; that of this process if None.
        """
        self._root: Final = root
        self._root_on_host: Final = root_on_host or root
        self._cdi_folders: Final = tuple(cdi_folders)
        triplet = f"{machine or platform.machine()}-linux-gnu"
        self._folders: Final = (f"/usr/lib/{triplet}", "/usr/lib64")

    def toolkit_device(self, gpu_uuid: str) -> str | None:
        """Return the card's qualified CDI device of NVIDIA's toolkit; None if it has none.

        A spec is read again when it changes, so a lookup costs one stat() for each file.
        """
        for path in (path for folder in self._cdi_folders for path in folder.glob("*.*")):
            # Our own specs may be many, one for each claim.
            if path.suffix in _SPEC_SUFFIXES and not path.name.startswith(names.CDI_FILE_PREFIX):
                version = file_version(path)  # DRA drivers remove specs at any time
                if version and gpu_uuid in _toolkit_devices(path, version):
                    return f"{TOOLKIT_KIND}={gpu_uuid}"
        return None

    def mounts(self) -> tuple[Mount, ...]:
        """Return the mounts of the libraries and of nvidia-smi.

        Raises:
            RetryableError: A library that every CUDA program needs is missing.
        """
        found: dict[str, Path] = {}
        for soname in _REQUIRED:
            file = self._find(soname)
            if file is None:
                raise RetryableError(
                    f"{soname}: found in no library folder of {self._root} "
                    f"({', '.join(LIBRARY_FOLDERS)}), and no CDI spec of NVIDIA's container "
                    "toolkit names the card; expected either"
                )
            found[soname] = file
        version = found[_CUDA].name.removeprefix("libcuda.so.")
        for name in (*_OPTIONAL, *(f"{stem}.so.{version}" for stem in _VERSIONED)):
            if file := self._find(name):
                found[name] = file
        files = {
            name: file
            for soname, file in found.items()
            for name in (soname, file.name, *_ALIASES.get(soname, ()))
        }
        mounts = [
            self._mount(file, f"{folder}/{name}")
            for folder in self._folders
            for name, file in files.items()
        ]
        if program := self._find(_PROGRAM, PROGRAM_FOLDERS):
            mounts.append(self._mount(program, f"/usr/bin/{_PROGRAM}"))
        return tuple(mounts)

    def _find(self, name: str, folders: Sequence[str] = LIBRARY_FOLDERS) -> Path | None:
        """Return the target file, because a package update may redirect a link; None if missing.

        Links are resolved within the driver root: an absolute one, such as one to
        /etc/alternatives, would lead out of it.
        """
        for folder in folders:
            path = self._root / folder / name
            for _ in range(_MAX_LINKS):
                if not path.is_symlink():
                    break
                link = path.readlink()
                path = (
                    self._root / link.relative_to("/") if link.is_absolute() else path.parent / link
                )
            if path.is_file():
                return path
        return None

    def _mount(self, file: Path, container_path: str) -> Mount:
        on_host = self._root_on_host / file.relative_to(self._root)
        return Mount(host_path=str(on_host), container_path=container_path)


class MachineSizes:
    """Sizes of the machine's memory and of the data disk's file system."""

    def __init__(self, data_folder: Path) -> None:
        """Args:
        data_folder: Any folder on the data disk.
        """
        self._data_folder: Final = data_folder

    def memory_bytes(self) -> int:
        """Return the machine's memory, regardless of this container's limit."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def disk_bytes(self) -> int:
        """Return the size of the data disk's file system, used or not.

        Raises:
            RetryableError: It cannot be read; the text names the folder.
        """
        try:
            disk = os.statvfs(self._data_folder)
        except OSError as error:
            raise RetryableError(
                f"data disk: {self._data_folder}: {error.strerror}, expected a folder on the disk "
                f"into which memory is expanded (setting data-dir)"
            ) from error
        return disk.f_frsize * disk.f_blocks


def boot_id(file: Path) -> str:
    """Return the boot ID, which stays the same until the machine reboots (random(4)).

    Raises:
        InputError: The file cannot be read, or is empty.
    """
    try:
        found = file.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"boot-id-file {file}: {error}") from error
    if not found:
        raise InputError(f"boot-id-file {file}: found nothing, expected the ID of this boot")
    return found


def file_version(path: Path) -> tuple[int, ...]:
    """Return numbers that change with the file; none if there is no file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@lru_cache(maxsize=64)
def _toolkit_devices(path: Path, _version: tuple[int, ...]) -> frozenset[str]:
    """Return the names of the devices in a spec; none if it is of another kind or malformed."""
    try:
        is_json = path.suffix == ".json"
        document = json.loads(yaml_file.read(path)) if is_json else yaml_file.content(path)
    except InputError as error:
        reason = str(error)
    except (ValueError, RecursionError) as error:
        reason = f"{path}: {error}"
    else:
        if isinstance(document, Mapping):
            devices = document.get("devices") if document.get("kind") == TOOLKIT_KIND else []
            if isinstance(devices, list):
                named = (device.get("name") for device in devices if isinstance(device, Mapping))
                return frozenset(name for name in named if isinstance(name, str))
        reason = f"{path}: found another structure, expected a CDI spec"
    log.warning("toolkit_spec_skipped", error=reason)
    return frozenset()
