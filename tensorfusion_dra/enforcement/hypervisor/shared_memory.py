"""The shared memory that Tensor Fusion's hypervisor keeps for each pod: read, and its limits set.

It is in a folder with the pod's name, so a new pod of the same name could be taken for the old one.
Therefore a note of each registered pod has its folder's device and inode, which tmpfs gives to no
other folder until a reboot, and behind it why the pod's limits do not hold, as far as the driver
knows.

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
The hypervisor writes limits once, when it creates the file, and limiters read them at each call. So
a limit that changes is set in place. The file is not mapped for that: a container that truncates it
would end this process by a signal.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.evidence import SharedMemory
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.enforcement import written_files

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
_MOST_PROCESSES: Final = 2_048


def read(path: str) -> SharedMemory:
    """Return what is in the shared memory at this path; never raises."""
    try:
        with written_files.opened(path) as descriptor:
            content = _content(descriptor)
    except FileNotFoundError:
        return SharedMemory(path=path, found=False)
    except OSError as error:
        return SharedMemory(path=path, trouble=error.strerror or str(error))
    except ValueError as error:
        return SharedMemory(path=path, trouble=str(error))
    (heartbeat,) = _U64.unpack_from(content, _HEARTBEAT_AT)
    (processes,) = _U64.unpack_from(content, _COUNT_AT)
    return SharedMemory(
        path=path,
        heartbeat=heartbeat,
        limits={uuid: limit for _, uuid, limit in _entries(content)},
        processes=min(processes, _MOST_PROCESSES),
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
        places = {verdicts.plain_uuid(uuid): at for at, uuid, _ in _entries(content)}
        for uuid, limit in limits.items():
            at = places.get(verdicts.plain_uuid(uuid))
            if at is None:
                found = ", ".join(places) or "none"
                raise ValueError(f"GPUs: found {found}, expected {uuid} as well")
            for place, value in (
                (at + _PERCENT_AT, _U32.pack(limit.sm_percent)),
                (at + _BYTES_AT, _U64.pack(limit.vram_bytes)),
            ):
                if content[place : place + len(value)] != value:
                    os.pwrite(descriptor, value, place)
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
    """Return the identity and the trouble in a note; empty if there is no note, or a broken one."""
    try:
        folder, _, trouble = Path(note).read_text("utf-8").partition("\n")
    except (OSError, ValueError):
        return "", ""
    return folder, trouble


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
