"""CPU time and memory of a driver's process."""

import ctypes
from pathlib import Path


def cpu_clock(pid: int) -> int:
    """Return the clock of the CPU time of a process, with all its threads."""
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise ProcessLookupError(error, f"process {pid}: no CPU clock")
    return clock.value


def rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return round(int(line.split()[1]) / 1024, 1)
