"""The shared memory that Tensor Fusion's hypervisor keeps for each pod: its limits, its end.

Folders have the names of pods, and a name can be that of two pods with different UIDs, one after
the other. A container has the folder mounted that was there when it started, whatever comes to its
path later. Therefore the driver notes which folder it registered a pod with, in a file named after
the pod's UID in a folder of its own: device and inode, which tmpfs gives to no other folder until a
reboot, and behind it why the pod's limits do not hold, as far as the driver knows. Everything here
is lost with a reboot, as the containers are.

Layout, version 2, little-endian, 35504 bytes (NexusGPU/tensor-fusion,
pkg/hypervisor/worker/state/soft_limiter_shm.go; NexusGPU/vgpu.rs,
crates/utils/src/shared_memory/mod.rs):

    offset  content
    0       u32 version minus one: 1; 4 bytes unused
    8       16 entries of 136 bytes: UUID (64 bytes, ends with NUL), u32 compute limit in percent,
            4 bytes unused, u64 memory limit in bytes, 48 bytes of counters, u32 active, 4 unused
    2184    u32 number of GPUs; 4 bytes unused
    2192    u64 heartbeat, in seconds since 1970
    2200    u64 lock, 2048 u64 process IDs, 2048 u64 bitmap
    34976   u64 number of process IDs
    34984   u64 process ID of the lock's owner, 512 bytes unused

The file is read while the hypervisor writes it. Each value is aligned, so none is half written.
The hypervisor writes limits once, when it creates the file, and never reads them: from a pod's
annotations it computes the rate of its kernels, which are the counters. Limiters read the memory
limit at each allocation. Of the compute limit they only read, at each launch, whether it is 100 or
more: then they count nothing, and keep that in mind for 60 seconds. So a limit that changes is set
in place, and one that may fall is never 100 (marks.py). The file is not mapped for that: a
container that truncates it would end this process by a signal.
"""

import os
import struct
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims import claim as claim_rules
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.prepared import Limit
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.enforcers import written_files
from tensorfusion_dra.state import atomic, claim_files, folders

SHM_FILE: Final = "shm"
"""The hypervisor's file in the folder of a pod."""
REGISTERED_FOLDER: Final = ".tensorfusion-dra"
"""Beside the folders of namespaces: a file by pod UID, with the folder that the pod has mounted."""
FRESH_SECONDS: Final = 5.0
"""Greatest age of a heartbeat. The limiter wants two seconds; the rest is for whole seconds in the
file and for a busy node."""
_EARLY_SECONDS: Final = 2.0
"""Time by which a heartbeat may be ahead, since two clocks are read one after the other."""
SIZE: Final = 35_504
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_VERSION_2: Final = 1
_ENTRIES_AT: Final = 8
_ENTRIES: Final = 16
_ENTRY: Final = struct.Struct("<64sI4xQ48xI4x")
_PERCENT_AT: Final = 64
_BYTES_AT: Final = 72
_HEARTBEAT_AT: Final = 2_192
_COUNT_AT: Final = 34_976
_MAX_PROCESSES: Final = 2_048
_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """The shared memory of a pod, as Tensor Fusion's hypervisor writes it and its limiter reads it.

    Attributes:
        found: False if there is no such file.
        is_replaced: True if its folder is not the one that the pod's containers have mounted.
        overruled: What the hypervisor obeys instead of the limits in it; "" if nothing.
        reason: Why it could not be read; "" if it could.
        heartbeat: Time of the hypervisor's last visit, in seconds since 1970; 0 for none.
        limits: By GPU UUID, in the hypervisor's spelling.
        processes: Number of processes that registered. A hypervisor need not remove those that
            ended.
    """

    path: str
    found: bool = True
    is_replaced: bool = False
    overruled: str = ""
    reason: str = ""
    heartbeat: int = 0
    limits: Mapping[str, Limit] = field(default_factory=dict)
    processes: int = 0


def is_fresh(memory: SharedMemory, read_at: float) -> bool:
    """Return True if a hypervisor was at this shared memory a moment ago."""
    return memory.heartbeat > 0 and -_EARLY_SECONDS <= read_at - memory.heartbeat <= FRESH_SECONDS


def plain_uuid(uuid: str) -> str:
    """Return a UUID without its prefix, in lower case: upstream's parts spell it in three ways."""
    return uuid.lower().removeprefix("gpu-")


def read_registered(path: str, note: str) -> SharedMemory:
    """Return what is in the shared memory at this path of a pod that was registered with a folder.

    Args:
        path: Of the file.
        note: What was noted of the pod.
    """
    memory = read(path)
    folder, reason = noted(note)
    present = folder_identity(str(Path(path).parent))
    return replace(memory, is_replaced=folder not in {"", present}, overruled=reason)


def read(path: str) -> SharedMemory:
    """Return what is in the shared memory at this path; never raises."""
    try:
        with written_files.opened(path) as descriptor:
            content = _content(descriptor)
    except FileNotFoundError:
        return SharedMemory(path=path, found=False)
    except OSError as error:
        return SharedMemory(path=path, reason=error.strerror or str(error))
    except ValueError as error:
        return SharedMemory(path=path, reason=str(error))
    (heartbeat,) = _U64.unpack_from(content, _HEARTBEAT_AT)
    (processes,) = _U64.unpack_from(content, _COUNT_AT)
    return SharedMemory(
        path=path,
        heartbeat=heartbeat,
        limits={uuid: limit for _, uuid, limit in _entries(content)},
        processes=min(processes, _MAX_PROCESSES),
    )


def set_limits(path: str, limits: Mapping[str, Limit]) -> bool:
    """Write the limits by GPU UUID where they differ; return True if one did.

    Raises:
        OSError: The file cannot be opened or written.
        ValueError: It has another layout, or lacks a GPU.
    """
    changed = False
    with written_files.opened(path, access=os.O_RDWR) as descriptor:
        content = _content(descriptor)
        places = {plain_uuid(uuid): at for at, uuid, _ in _entries(content)}
        for uuid, limit in limits.items():
            at = places.get(plain_uuid(uuid))
            if at is None:
                found = ", ".join(places) or "none"
                raise ValueError(f"GPUs: found {found}, expected {uuid} as well")
            for place, value in (
                (at + _PERCENT_AT, _U32.pack(limit.sm_percent)),
                (at + _BYTES_AT, _U64.pack(limit.vram_bytes)),
            ):
                if content[place : place + len(value)] != value:
                    written_files.write(descriptor, value, place)
                    changed = True
    return changed


def folder_identity(folder: str) -> str:
    """Return the identity of the folder at this path; "" if there is none."""
    try:
        found = Path(folder).lstat()
    except OSError:
        return ""
    return f"{found.st_dev} {found.st_ino}"


def noted(note: str) -> tuple[str, str]:
    """Return the identity and the reason in a note; empty if there is no note, or a broken one."""
    try:
        folder, _, reason = Path(note).read_text("utf-8").partition("\n")
    except (OSError, ValueError):
        return "", ""
    return folder, reason


class WorkerMemory:
    """The shared memory from which limiters read the limits of workers, below one folder.

    The hypervisor creates it and writes a heartbeat into it twice a second. It never changes the
    limits in it. The folder has one for each namespace.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def lock_file(self) -> Path:
        """Return the file of the lock that whoever changes limits here holds.

        Raises:
            RetryableError: Its folder cannot be created.
        """
        folder = self._root / REGISTERED_FOLDER
        with claim_files.errors(folder):
            folders.make(self._root)
            folder.mkdir(mode=0o700, exist_ok=True)
        return folder / ".lock"

    def is_kept(self, pod: PodRef, gpu_ids: tuple[str, ...]) -> bool:
        """Return True if it is that of this pod and has these cards and a fresh heartbeat.

        Args:
            pod: The worker.
            gpu_ids: The UUIDs of exactly its cards, in lower case.
        """
        return self.is_of(pod) and not self._missing(pod, gpu_ids)

    def is_of(self, pod: PodRef) -> bool:
        """Return True if the pod was registered with the folder that is at its path now."""
        folder, _ = noted(str(self._note(pod)))
        return folder != "" and folder == self._present(pod)

    def is_replaced(self, pod: PodRef) -> bool:
        """Return True if the pod was registered with another folder than that at its path now."""
        folder, _ = noted(str(self._note(pod)))
        return folder not in {"", self._present(pod)}

    def record_registered(self, pod: PodRef) -> None:
        """Note that the pod is registered, and with which folder.

        Raises:
            RetryableError: It cannot be noted.
        """
        with claim_files.errors(self._note(pod)):
            self._write_note(pod, self._present(pod))

    def record_reason(self, pod: PodRef, text: str) -> None:
        """Note why the limits of a registered pod do not hold; "" if they do."""
        folder, reason = noted(str(self._note(pod)))
        if folder and reason != text:
            with suppress(OSError):
                self._write_note(pod, f"{folder}\n{text}")

    def await_kept(self, pod: PodRef, gpu_ids: tuple[str, ...], *, wait_seconds: float) -> None:
        """Return once it has these cards and a fresh heartbeat.

        Raises:
            RetryableError: It has not within the time.
        """
        deadline = time.monotonic() + wait_seconds
        while missing := self._missing(pod, gpu_ids):
            if time.monotonic() >= deadline:
                raise RetryableError(f"{missing} within {wait_seconds:.0f} s")
            time.sleep(_POLL_SECONDS)

    def set_limits(self, pod: PodRef, limits: Mapping[str, Limit]) -> bool:
        """Write the limits by GPU UUID where they differ; return True if one did.

        The limiter reads memory at its next allocation, and compute at its next launch, unless it
        found 100 percent in the last 60 seconds.

        Raises:
            RetryableError: There is no shared memory, or it has another layout or lacks a card.
        """
        path = self._file(pod)
        try:
            return set_limits(str(path), limits)
        except (OSError, ValueError) as error:
            raise RetryableError(f"{path}: {error}") from error

    def clear(self, pod: PodRef) -> None:
        """Remove what an earlier pod of this name left, or an earlier registration of this pod.

        Raises:
            RetryableError: See remove().
        """
        if self.is_of(pod):
            with suppress(OSError):  # containers may have put something else there
                self._file(pod).unlink(missing_ok=True)
                return
        self.remove(pod)

    def remove(self, pod: PodRef) -> None:
        """Remove the pod's folder, whatever its containers made of it, and what was noted.

        Raises:
            RetryableError: The folder above it cannot be written.
        """
        folder = self._file(pod).parent
        with claim_files.errors(folder):
            folders.remove(folder)
        self.forget(pod)

    def forget(self, pod: PodRef) -> None:
        """Remove what was noted; the folder at the pod's path is of another pod.

        Raises:
            RetryableError: It cannot be removed.
        """
        with claim_files.errors(self._note(pod)):
            self._note(pod).unlink(missing_ok=True)

    def forget_others(self, used: Collection[str]) -> None:
        """Remove what was noted of pods other than those with these UIDs."""
        with suppress(OSError):
            for note in (self._root / REGISTERED_FOLDER).iterdir():
                if claim_rules.is_uid(note.name) and note.name not in used:
                    note.unlink()

    def _missing(self, pod: PodRef, gpu_ids: tuple[str, ...]) -> str:
        """Return what is not as expected; "" if nothing."""
        memory = read(str(self._file(pod)))
        if not memory.found:
            return f"{memory.path}: found none, expected the hypervisor's shared memory"
        if memory.reason:
            return f"{memory.path}: {memory.reason}"
        found, expected = (sorted(map(plain_uuid, uuids)) for uuids in (memory.limits, gpu_ids))
        if found != expected:
            return f"{memory.path}: cards: found {found}, expected {expected}"
        now = time.time()
        if not is_fresh(memory, now):
            age = now - memory.heartbeat
            return (
                f"{memory.path}: heartbeat: found one of {age:.0f} s ago, expected "
                f"{FRESH_SECONDS:.0f} s at most"
            )
        return ""

    def _file(self, pod: PodRef) -> Path:
        return self._root / pod.namespace / pod.name / SHM_FILE

    def _note(self, pod: PodRef) -> Path:
        return self._root / REGISTERED_FOLDER / pod.uid

    def _write_note(self, pod: PodRef, text: str) -> None:
        note = self._note(pod)
        note.parent.mkdir(mode=0o700, exist_ok=True)
        atomic.write(note, text.encode(), mode=0o600, durable=False)

    def _present(self, pod: PodRef) -> str:
        return folder_identity(str(self._file(pod).parent))


def _content(descriptor: int) -> bytes:
    """Return the whole file.

    Raises:
        OSError: It cannot be read.
        ValueError: It has another layout.
    """
    content = os.pread(descriptor, SIZE + 1, 0)
    if len(content) != SIZE:
        size = os.fstat(descriptor).st_size
        raise ValueError(f"found {size} bytes, expected {SIZE}")
    (version,) = _U32.unpack_from(content)
    if version != _VERSION_2:
        raise ValueError(f"found version {version + 1}, expected 2")
    return content


def _entries(content: bytes) -> Iterator[tuple[int, str, Limit]]:
    """Yield offset, UUID and limit of each GPU."""
    for index in range(_ENTRIES):
        at = _ENTRIES_AT + index * _ENTRY.size
        uuid, percent, vram_bytes, active = _ENTRY.unpack_from(content, at)
        if active:
            name = uuid.partition(b"\0")[0].decode("ascii", errors="replace")
            yield at, name, Limit(sm_percent=percent, vram_bytes=vram_bytes)
