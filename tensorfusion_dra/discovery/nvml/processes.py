"""Processes that use the cards: NVML names their PIDs, /proc says in which container each one is.

NVML gives PIDs of the host, so /proc has to be the host's: the pod needs `hostPID`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pynvml

from tensorfusion_dra.core.claims import use
from tensorfusion_dra.core.claims.use import Container, GpuProcess
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.discovery.recording import Refusal
from tensorfusion_dra.runtime.loops import LogThrottle

PROC: Final = Path("/proc")
_INITIAL_NAMESPACE: Final = "pid:[4026531836]"
"""The first PID namespace of a kernel (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""
_LISTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "compute processes": pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    "graphics processes": pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    "MPS processes": pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
}
_UTILIZATION: Final = "utilization by process"
_NO_SAMPLES: Final = frozenset({"NVML_ERROR_NOT_FOUND", "NVML_ERROR_0"})
"""Answers if no process ran a kernel since the last samples."""

Query = Callable[..., Any]
"""Calls a function of NVML; returns its answer or a Refusal."""


class ProcessReader:
    """Reader of the processes of all cards, for one thread."""

    def __init__(self, proc: Path = PROC) -> None:
        """Args:
        proc: The host's /proc.
        """
        self._proc = proc
        self._seen_until: dict[str, int] = {}  # time of the last sample by GPU UUID
        self._throttle = LogThrottle(quiet_seconds=math.inf)

    def check(self) -> None:
        """Check that /proc has the processes that NVML names.

        Raises:
            RetryableError: It is that of another PID namespace.
        """
        try:
            found = str((self._proc / "self/ns/pid").readlink())
        except OSError as error:
            found = error.strerror or str(error)
        if found != _INITIAL_NAMESPACE:
            raise RetryableError(
                f"observe-use: {self._proc}/self/ns/pid: found {found}, expected "
                f"{_INITIAL_NAMESPACE}: NVML's PIDs are the host's, so the node plugin's pod needs "
                "hostPID: true"
            )

    def read(self, handles: Mapping[str, Any], query: Query) -> Mapping[str, Sequence[GpuProcess]]:
        """Return the processes of each card; a card that refuses every list is missing.

        Args:
            handles: NVML's handles by GPU UUID.
            query: Calls NVML.
        """
        memory: dict[str, dict[int, int]] = {}
        busy: dict[str, Mapping[int, int]] = {}
        for uuid, handle in handles.items():
            for name, function in _LISTS.items():
                answer = query(f"{name} of {uuid}", function, handle)
                if self._is_refused(name, uuid, answer):
                    continue
                of_card = memory.setdefault(uuid, {})
                for each in answer:  # a process with two kinds of contexts is in two lists
                    of_card[each.pid] = max(of_card.get(each.pid, 0), each.usedGpuMemory or 0)
            busy[uuid] = self._utilization(uuid, handle, query)
        pids = {pid for of_card in memory.values() for pid in of_card}
        origins = {pid: self._origin(pid) for pid in pids}
        return {
            uuid: [
                GpuProcess(
                    pid=pid,
                    vram_bytes=vram_bytes,
                    sm_percent=busy[uuid].get(pid, 0),
                    container=origin[0],
                    name=origin[1],
                )
                for pid, vram_bytes in of_card.items()
                if (origin := origins[pid]) is not None
            ]
            for uuid, of_card in memory.items()
        }

    def _utilization(self, uuid: str, handle: Any, query: Query) -> Mapping[int, int]:
        """Return the mean of each process's samples since the last call, in percent."""
        since = self._seen_until.get(uuid, 0)
        name = f"{_UTILIZATION} of {uuid}"
        answer = query(name, pynvml.nvmlDeviceGetProcessUtilization, handle, since)
        if self._is_refused(_UTILIZATION, uuid, answer):
            return {}
        samples: dict[int, list[int]] = {}
        for each in answer:
            if each.timeStamp > since:
                samples.setdefault(each.pid, []).append(each.smUtil)
                self._seen_until[uuid] = max(self._seen_until.get(uuid, 0), each.timeStamp)
        return {pid: round(sum(found) / len(found)) for pid, found in samples.items()}

    def _is_refused(self, name: str, uuid: str, answer: object) -> bool:
        """Return True for a refusal; log each one once."""
        if not isinstance(answer, Refusal):
            return False
        if answer.error not in _NO_SAMPLES:
            text = f"NVML answered {answer.error}"
            self._throttle.warn("use_refused", text, key=f"{name} {uuid}", uuid=uuid, query=name)
        return True

    def _origin(self, pid: int) -> tuple[Container | None, str] | None:
        """Return container and program of a process; None if it has ended."""
        folder = self._proc / str(pid)
        try:
            cgroups = (folder / "cgroup").read_text(encoding="utf-8", errors="replace")
            name = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None
        return use.container_of(cgroups), name
