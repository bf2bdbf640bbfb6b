"""Reader of the file in which the processes of a container count under HAMi-core.

Layout, version 1.2, 64-bit little-endian (Project-HAMi/HAMi-core,
src/multiprocess/multiprocess_memory_limit.h):

    offset   content
    0        i32 19920718 once a process has initialized the file
    4        u32 major version, u32 minor version
    12       lock and owner
    56       u64 number of cards
    64       16 UUIDs of 96 bytes
    1600     16 u64 memory limits in bytes; 0 for none
    1728     16 u64 compute limits in percent; 0 for none
    1856     1024 processes of 1960 bytes
    2008896  i32 number of processes
"""

import os
import struct
from typing import Final

from tensorfusion_dra.core.claims.evidence import Cache
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.enforcers import written_files

_FLAG: Final = 19_920_718
_START: Final = struct.Struct("<iII")
_VERSION: Final = (1, 2)
_CARDS: Final = 16
_LIMITS: Final = struct.Struct(f"<{_CARDS}Q{_CARDS}Q")
_LIMITS_AT: Final = 1_600
_BEGINNING: Final = 1_856
_COUNT: Final = struct.Struct("<i")
_COUNT_AT: Final = 2_008_896
_MOST_PROCESSES: Final = 1_024


def read(path: str) -> Cache:
    """Return what is in the file at this path; never raises."""
    try:
        with written_files.opened(path) as descriptor:
            beginning = os.pread(descriptor, _BEGINNING, 0)
            count = os.pread(descriptor, _COUNT.size, _COUNT_AT)
    except FileNotFoundError:
        return Cache(path=path)
    except OSError as error:
        return Cache(path=path, trouble=error.strerror or str(error))
    if len(beginning) < _BEGINNING or len(count) < _COUNT.size:
        # The first process makes it as long as it has to be before it writes anything.
        return Cache(path=path)
    flag, *version = _START.unpack_from(beginning)
    if flag != _FLAG:
        return Cache(path=path)
    if tuple(version) != _VERSION:
        found, expected = (".".join(map(str, each)) for each in (version, _VERSION))
        return Cache(path=path, trouble=f"found version {found}, expected {expected}")
    amounts = _LIMITS.unpack_from(beginning, _LIMITS_AT)
    (processes,) = _COUNT.unpack(count)
    return Cache(
        path=path,
        limits=tuple(
            Limit(sm_percent=percent, vram_bytes=vram_bytes)
            for vram_bytes, percent in zip(amounts[:_CARDS], amounts[_CARDS:], strict=True)
        ),
        processes=max(0, min(processes, _MOST_PROCESSES)),
    )
