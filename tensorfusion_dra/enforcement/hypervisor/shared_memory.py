"""The shared memory that Tensor Fusion's hypervisor keeps for each pod: read, and its limits set.

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
from typing import Final

from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.evidence import SharedMemory
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.enforcement import written_files

SIZE: Final = 35_504
_BEGINNING: Final = 2_200
_VERSION: Final = struct.Struct("<I")
_VERSION_2: Final = 1
_ENTRIES_AT: Final = 8
_ENTRIES: Final = 16
_ENTRY: Final = struct.Struct("<64sI4xQ48xI4x")
_PERCENT: Final = struct.Struct("<I")
_PERCENT_AT: Final = 64
_BYTES: Final = struct.Struct("<Q")
_BYTES_AT: Final = 72
_HEARTBEAT: Final = struct.Struct("<Q")
_HEARTBEAT_AT: Final = 2_192
_COUNT: Final = struct.Struct("<Q")
_COUNT_AT: Final = 34_976
_MOST_PROCESSES: Final = 2_048
_SHORTER: Final = "it became shorter while it was read"


def read(path: str) -> SharedMemory:
    """Return what is in the shared memory at this path; never raises."""
    try:
        with written_files.opened(path) as (descriptor, size):
            beginning = _beginning(descriptor, size)
            count = os.pread(descriptor, _COUNT.size, _COUNT_AT)
    except FileNotFoundError:
        return SharedMemory(path=path, found=False)
    except OSError as error:
        return SharedMemory(path=path, trouble=error.strerror or str(error))
    except ValueError as error:
        return SharedMemory(path=path, trouble=str(error))
    if len(count) < _COUNT.size:
        return SharedMemory(path=path, trouble=_SHORTER)
    (heartbeat,) = _HEARTBEAT.unpack_from(beginning, _HEARTBEAT_AT)
    (processes,) = _COUNT.unpack(count)
    return SharedMemory(
        path=path,
        heartbeat=heartbeat,
        limits=_limits(beginning),
        processes=min(processes, _MOST_PROCESSES),
    )


def set_limits(path: str, limits: Mapping[str, Limit]) -> bool:
    """Write the limits by GPU UUID where they differ; return True if one did.

    Raises:
        OSError: The file cannot be opened or written.
        ValueError: It has another layout, or lacks a GPU.
    """
    changed = False
    with written_files.opened(path, access=os.O_RDWR) as (descriptor, size):
        content = _beginning(descriptor, size)
        places = {verdicts.plain_uuid(uuid): at for at, uuid, _ in _entries(content)}
        for uuid, limit in limits.items():
            at = places.get(verdicts.plain_uuid(uuid))
            if at is None:
                found = ", ".join(places) or "none"
                raise ValueError(f"GPUs: found {found}, expected {uuid} as well")
            for place, value in (
                (at + _PERCENT_AT, _PERCENT.pack(limit.sm_percent)),
                (at + _BYTES_AT, _BYTES.pack(limit.vram_bytes)),
            ):
                if content[place : place + len(value)] != value:
                    os.pwrite(descriptor, value, place)
                    changed = True
    return changed


def _beginning(descriptor: int, size: int) -> bytes:
    """Return the file up to its heartbeat, of the layout above.

    Raises:
        OSError: It cannot be read.
        ValueError: It has another layout.
    """
    if size != SIZE:
        raise ValueError(f"found {size} bytes, expected {SIZE}")
    content = os.pread(descriptor, _BEGINNING, 0)
    if len(content) < _BEGINNING:
        raise ValueError(_SHORTER)
    (version,) = _VERSION.unpack_from(content)
    if version != _VERSION_2:
        raise ValueError(f"found version {version + 1}, expected 2")
    return content


def _limits(content: bytes) -> dict[str, Limit]:
    return {uuid: limit for _, uuid, limit in _entries(content)}


def _entries(content: bytes) -> Iterator[tuple[int, str, Limit]]:
    """Yield offset, UUID and limit of each GPU."""
    for index in range(_ENTRIES):
        at = _ENTRIES_AT + index * _ENTRY.size
        uuid, percent, vram_bytes, active = _ENTRY.unpack_from(content, at)
        if active:
            name = uuid.partition(b"\0")[0].decode("ascii", errors="replace")
            yield at, name, Limit(sm_percent=percent, vram_bytes=vram_bytes)
