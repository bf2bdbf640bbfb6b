"""The file in which the processes of one request count what they use, and find their limits.

HAMi-core makes the file, and each process maps it into its memory. A container can write it as
well, so nothing in it is believed about another tenant, and it may be of any length and content.
What a running process takes from it:

- Its memory limits, at every allocation.
- The switch of the compute limits, every 120 ms. 0 lifts all compute limits of the file, unless the
  process has GPU_CORE_UTILIZATION_POLICY=force. The compute limits themselves a process reads once,
  when it starts.

What it shows: the time of the last launch of a kernel by cuLaunchKernel, which each process sets at
most once a second, and of the last start of a process. For each process, what NVML saw of it in the
last second, and the memory that it has allocated. A launch by a CUDA graph sets no time.

Layout of version 1.2, 64-bit little-endian:

    offset   content
    0        i32 19920718 once a process has initialized the file
    4        u32 major version, u32 minor version
    12       lock and owner
    56       u64 number of cards
    64       16 UUIDs of 96 bytes
    1600     16 u64 memory limits in bytes; 0 for none
    1728     16 u64 compute limits in percent; 0 for none
    1856     1024 processes of 1960 bytes:
      0        i32 PID in the container, 0 once it has exited; i32 PID on the host, 0 while unknown
      8        16 cards of 64 bytes; the u64 at 32 is the allocated memory
      1160     16 cards of 48 bytes; the u64 at 16 is the utilization in percent
    2008896  i32 number of processes
    2008900  i32 switch of the compute limits: 1 on, 0 off
    2008904  i32 recent kernel: below 0, launches wait; i32 priority
    2008912  u64 time of the last launch, in seconds since 1970

Source: Project-HAMi/HAMi-core, src/multiprocess: multiprocess_memory_limit.h (shared_region_t) and
.c (try_create_shrreg, pre_launch_kernel), multiprocess_utilization_watcher.c.
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.claims.prepared import Limit
from tensorfusion_dra.enforcers import written_files

CARDS: Final = 16

_FLAG: Final = 19_920_718
_START: Final = struct.Struct("<iII")
_VERSION: Final = (1, 2)
_LIMITS: Final = struct.Struct(f"<{CARDS}Q{CARDS}Q")
_MEMORY_LIMITS: Final = struct.Struct(f"<{CARDS}Q")
_LIMITS_AT: Final = 1_600
_PROCESS: Final = struct.Struct("<ii" + "32xQ24x" * CARDS + "128x" + "16xQ24x" * CARDS + "32x")
_PROCESSES_AT: Final = 1_856
_END: Final = struct.Struct("<iiiiQ")
_END_AT: Final = 2_008_896
_SWITCH: Final = struct.Struct("<i")
_SWITCH_AT: Final = _END_AT + 4
_MAX_PROCESSES: Final = 1_024
_MAX_READ: Final = 64
"""Processes that are read; what more of them do is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """What is in the file of one request.

    Attributes:
        reason: Why it could not be read; "" if it could, or if there is no such file yet.
        limits: By the index of a card in the container; 0 means no limit. Empty while no process
            has initialized the file.
        processes: Number of processes that are registered.
        used: Memory that they have allocated, in bytes by index; None if it is not known.
        unlimited: Number of those that use a card and have no PID on the host. HAMi-core never
            limits their compute. It finds a PID by comparing NVML's processes before and after the
            process makes a context, and finds none if another one starts at the same time.
        is_busy: True if one of them used a card in the last second, or if that is not known.
        limits_compute: True unless the compute limits are lifted.
        launched_at: Time of the last launch or start, in seconds since 1970.
    """

    path: str
    reason: str = ""
    limits: tuple[Limit, ...] = ()
    processes: int = 0
    used: tuple[int, ...] | None = (0,) * CARDS
    unlimited: int = 0
    is_busy: bool = False
    limits_compute: bool = True
    launched_at: int = 0


def read(path: str) -> Cache:
    """Return what is in the file at this path; never raises."""
    try:
        with written_files.opened(path) as descriptor:
            end = os.pread(descriptor, _END.size, _END_AT)
            # The first process makes it as long as it has to be before it writes anything.
            if len(end) < _END.size:
                return Cache(path=path)
            count, switch, _, _, launched_at = _END.unpack(end)
            count = max(0, min(count, _MAX_PROCESSES))
            size = _PROCESSES_AT + min(count, _MAX_READ) * _PROCESS.size
            found = os.pread(descriptor, size, 0)
    except FileNotFoundError:
        return Cache(path=path)
    except OSError as error:
        return Cache(path=path, reason=error.strerror or str(error))
    flag, *version = _START.unpack_from(found) if len(found) == size else (0,)
    if flag != _FLAG:  # or it became shorter meanwhile
        return Cache(path=path)
    if tuple(version) != _VERSION:
        shown, expected = (".".join(map(str, each)) for each in (version, _VERSION))
        return Cache(path=path, reason=f"found version {shown}, expected {expected}")
    amounts = _LIMITS.unpack_from(found, _LIMITS_AT)
    processes = list(_PROCESS.iter_unpack(memoryview(found)[_PROCESSES_AT:]))
    alive = [each for each in processes if each[0]]  # a process that exits sets its PID to 0
    # What exited processes had counts for the others until the next process starts.
    used = [*map(sum, [*zip(*processes, strict=True)][2 : 2 + CARDS])] if alive else [0] * CARDS
    # Without its PID on the host, HAMi-core finds no utilization of a process. One without memory
    # works by no graph: it only asks NVML, as nvidia-smi does.
    unlimited = sum(not host_pid and any(rest[:CARDS]) for _, host_pid, *rest in alive)
    busy = unlimited > 0 or any(any(rest[CARDS:]) for _, _, *rest in alive)
    is_known = count <= _MAX_READ
    return Cache(
        path=path,
        limits=tuple(
            Limit(sm_percent=percent, vram_bytes=vram_bytes)
            for vram_bytes, percent in zip(amounts[:CARDS], amounts[CARDS:], strict=True)
        ),
        processes=count,
        used=tuple(used) if is_known else None,
        unlimited=unlimited,
        is_busy=busy or not is_known,
        limits_compute=switch != 0,
        launched_at=launched_at,
    )


def set_memory_limits(path: str, limits: Sequence[int]) -> None:
    """Write the memory limits, in bytes for each of CARDS; a file that is too short stays so.

    Raises:
        OSError: It cannot be written.
    """
    with written_files.opened(path, access=os.O_RDWR) as descriptor:
        written_files.write(descriptor, _MEMORY_LIMITS.pack(*limits), _LIMITS_AT)


def compute_is_lifted(descriptor: int) -> bool:
    """Return True if the compute limits of an open file are lifted.

    Raises:
        OSError: It cannot be read.
    """
    return os.pread(descriptor, _SWITCH.size, _SWITCH_AT) == _SWITCH.pack(0)


def switch_compute_limits(descriptor: int, *, on: bool) -> None:
    """Let the compute limits of an open file hold, or lift them; a file that is too short stays so.

    Raises:
        OSError: It cannot be written.
    """
    written_files.write(descriptor, _SWITCH.pack(on), _SWITCH_AT)
