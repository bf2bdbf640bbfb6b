"""Memory of a process that serves: its garbage collector, and the arenas of the C library.

A start is mostly imports. They create objects that live as long as the process, and the garbage
collector would visit all of them again and again: a quarter of the CPU time until the kubelet can
call. So it is paused until everything is loaded. From then on it leaves these objects alone, so
that its longest pause, which stops all threads, is a few milliseconds instead of 40 to 60.

glibc gives each thread an arena of its own to allocate from, up to eight for each core, and memory
that is free in one arena is of no use to the others. Most threads here wait for the interpreter
most of the time, so that two arenas are enough.

glibc also keeps large blocks that are freed, once there have been some of their size. So blocks of
a megabyte or more, such as the texts of large answers and reviews, always go back to the kernel.
"""

import ctypes
import gc
from typing import Final

ARENAS: Final = 2

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""From glibc's malloc.h."""
_RETURNED_BYTES: Final = 2**20


def prepare_start() -> None:
    """Pause the garbage collector and limit the arenas; call it before any thread starts."""
    gc.disable()
    # Other C libraries, such as musl, have no arenas and no mallopt().
    limit = getattr(ctypes.CDLL(None), "mallopt", None)
    if limit is not None:
        limit(_M_ARENA_MAX, ARENAS)
        limit(_M_MMAP_THRESHOLD, _RETURNED_BYTES)


def finish_start() -> None:
    """Collect garbage again, except among the objects that exist now."""
    gc.collect()
    gc.freeze()
    gc.enable()
