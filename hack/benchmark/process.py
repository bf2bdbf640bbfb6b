"""CPU time and memory of a driver's process.

The process is found by the driver's socket, so that any driver can be measured.
"""

import ctypes
import socket
import struct
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")
"""The kernel's struct ucred: process, user and group."""
_PERIOD_SECONDS: Final = 0.2
_SHARE_AT_REST: Final = 0.02
_MAX_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process has used.

    Attributes:
        pid: Its ID.
        cpu_seconds: CPU time of all its threads since its start.
        rss_mib: Its memory at the moment.
    """

    pid: int
    cpu_seconds: float
    rss_mib: float


def serving(path: Path) -> int | None:
    """Return the ID of the process that listens on a Unix socket.

    None if nothing listens, or if the process is in another PID namespace.
    """
    with closing(socket.socket(socket.AF_UNIX)) as client:
        try:
            client.connect(str(path))
        except OSError:
            return None
        found = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(found)[0]
    return pid or None


def usage_at_rest(path: Path) -> Usage | None:
    """Return the usage of the process that serves a socket, once it is at rest.

    A driver may go on working after its answers: it writes the status of claims, or reads CDI specs
    again. This belongs to the calls before, and would disturb the calls after. None if there is no
    such process or if it ends meanwhile.
    """
    pid = serving(path)
    if pid is None:
        return None
    try:
        return Usage(pid=pid, cpu_seconds=_cpu_seconds_at_rest(pid), rss_mib=rss_mib(pid))
    except OSError:
        return None


def _cpu_seconds_at_rest(pid: int) -> float:
    clock = cpu_clock(pid)
    deadline = time.monotonic() + _MAX_SECONDS
    while True:
        before = time.clock_gettime(clock)
        time.sleep(_PERIOD_SECONDS)
        after = time.clock_gettime(clock)
        if after - before < _SHARE_AT_REST * _PERIOD_SECONDS or time.monotonic() > deadline:
            return after


def cpu_clock(pid: int) -> int:
    """Return the clock of the CPU time of a process, with all its threads."""
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise ProcessLookupError(error, f"process {pid}: no CPU clock")
    return clock.value


def rss_mib(pid: int) -> float:
    """Return the memory of a process.

    Raises:
        OSError: It has ended.
    """
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise ProcessLookupError(f"process {pid}: found no VmRSS, expected a process that runs")
