"""Memory limits that the NVIDIA driver keeps for cgroups, from release 615 on.

A limit is of one cgroup on one card. The driver refuses an allocation of the cgroup's processes
that would exceed the limit; the process continues. A limit of a pod's cgroup holds for all of its
containers together. A limit of a container's own cgroup is what programs in it see as the card's
memory.

NVML's answers are not reliable for two reasons, so each limit is read back and compared. The kernel
may drop a limit below the present use without an error. And NVML has one code (NOT_SUPPORTED) for a
driver that cannot limit and for a cgroup that has no limit yet: only setting one tells them apart.

The soft limit is always 0. The driver adds soft limits to the cgroups above, and a cgroup that is
removed leaves its part there.

Limits change while processes run: what is lent to one pod is taken back for another. A limit cannot
be lowered below the present use, and no process is killed for it. So on each card limits are
lowered first, and raised only if each of them could be lowered; otherwise the limits together would
exceed the card.

Example: a card has 80Gi; pod A may use 60Gi and uses 52Gi. Pod B comes with a request of 30Gi, so A
is to have 50Gi. It gets 52Gi, the least that is possible, and B gets an error. Once A has freed
2Gi, the same call lowers A to 50Gi and then gives B 30Gi.

Source: nvml.h of CUDA 13.4; Multi-Process Service guide, release 615, MPS v3 Memory Partitioning;
open-gpu-kernel-modules 615.71.09, mem_mgr/memacct.c.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml

from tensorfusion_dra.core.devices.gpu import UNLIMITED
from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.discovery.nvml import nvml_discovery
from tensorfusion_dra.runtime.single_call_thread import OverdueError, SingleCallThread

T = TypeVar("T")

CGROUPS: Final = Path("/sys/fs/cgroup")
_DRIVER: Final = 615
_CALL_SECONDS: Final = 2.0
_QUIET_SECONDS: Final = 30.0
_SCRATCH: Final = "tensorfusion-dra-check"
_POD_UID: Final = re.compile(r"[A-Za-z0-9-]{1,63}")
_TEXTS: Final = {
    pynvml.NVML_ERROR_INVALID_ARGUMENT: "found a limit that it refuses, expected at most the "
    "card's memory",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "found no accounting of this cgroup's memory on this card, "
    "expected a kernel with CONFIG_CGROUP_DMEM or CONFIG_CGROUP_MISC, NVIDIA's open kernel "
    "modules, and MIG off",
    pynvml.NVML_ERROR_NO_PERMISSION: "found too few rights, expected root with CAP_SYS_ADMIN in "
    "the host's user namespace",
    pynvml.NVML_ERROR_NOT_FOUND: "found no limits of this cgroup, expected one with dmem.max",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "found no such function in NVML, expected NVIDIA driver "
    f"{_DRIVER} or later",
    pynvml.NVML_ERROR_OPERATING_SYSTEM: "found that it cannot open the cgroup, expected the host's "
    "cgroup2 at /sys/fs/cgroup",
}


class CgroupLimits:
    """Memory limits of the pods of this node; for one thread.

    Each card is asked in a thread of its own. One that does not answer costs a call two seconds,
    and then nobody waits for it for half a minute, so the other cards' limits follow.

    NVML stays initialised between calls, because the limits of a card without persistence mode
    vanish when its last user closes it.
    """

    def __init__(
        self,
        library: Path | None,
        driver_root: Path,
        *,
        cgroups: Path = CGROUPS,
        every_container: bool = False,
        replacement_marker: Path | None = None,
    ) -> None:
        """Do not load the library yet; the first call does.

        Args:
            library: Path of libnvidia-ml.so.1; None searches for it.
            driver_root: Searched before the loader's path.
            cgroups: Where the host's cgroup2 is mounted.
            every_container: True to limit a container's cgroup also where it has no dmem.max.
            replacement_marker: File that exists while the NVIDIA driver is being replaced; None for
                none.
        """
        self._marker = replacement_marker
        self._library, self._driver_root = library, driver_root
        self._cgroups, self._every_container = cgroups, every_container
        self._is_open = False
        self._threads: dict[str, SingleCallThread] = {}
        self._quiet_until: dict[str, float] = {}

    def check_driver(self) -> None:
        """Return if NVML may be open.

        Raises:
            RetryableError: The NVIDIA driver is being replaced.
            FatalError: It is, and NVML is open: only with this process its device files close.
        """
        if self._marker is not None and self._marker.exists():
            text = "the NVIDIA driver is being replaced"
            if self._is_open:
                raise FatalError(f"{text}; this process ends, which closes NVML")
            raise RetryableError(text)

    def check(self) -> Sequence[str]:
        """Return why this node cannot limit memory, then the problems of single cards.

        The first text is "" if it can.

        Raises:
            FatalError: See set().
        """
        try:
            self._open()
            version = self._run("NVML", pynvml.nvmlSystemGetDriverVersion)
            if int(version.partition(".")[0]) < _DRIVER:
                return (f"NVIDIA driver: found {version}, expected {_DRIVER} or later",)
            if not (self._cgroups / "cgroup.controllers").is_file():
                return (f"{self._cgroups}: found no cgroup2, expected the host's",)
            return self._check_cards()
        except (RetryableError, OSError, pynvml.NVMLError) as error:
            return (str(error),)

    def set(
        self, pod_uid: str, limits: Mapping[str, int], beside: Mapping[str, Mapping[str, int]]
    ) -> Sequence[str]:
        """Set the limits of pods' cgroups where they differ, lower ones first; read them back.

        Args:
            pod_uid: The pod. If it has no cgroup, there is no limit to remove either.
            limits: Bytes by GPU UUID; UNLIMITED removes one.
            beside: Limits of the other pods on these cards, by UID.

        Returns:
            The cards on which the pod had another limit. If there is none, no other pod is looked
            at.

        Raises:
            RetryableError: A limit is not as wanted now; the text has card, cgroup and cause.
            FatalError: The NVIDIA driver was replaced; only a new process can load its library.
        """
        try:
            steps = self._steps(pod_uid, limits)
        except _NoCgroupError:
            if any(limit != UNLIMITED for limit in limits.values()):
                raise
            return ()
        if not steps:
            return ()
        changed = [gpu_uuid for _, gpu_uuid, _, _ in steps]
        for other, wanted in beside.items():
            with suppress(_NoCgroupError):  # nothing of that pod runs
                steps += self._steps(other, wanted)
        steps.sort(key=lambda step: step[3] == UNLIMITED or step[2] > step[3])
        for step in steps:
            self._change(*step)
        return changed

    def set_container(self, pod_uid: str, cgroup: str, limits: Mapping[str, int]) -> None:
        """Set the limits of the cgroup of a container that is about to start.

        A container's limit is only set where the kernel holds the pod's limit beside it, that is
        where the container's cgroup has dmem.max. Elsewhere it would replace the pod's limit, and
        two containers could use twice the claim's memory. There the pod's limit has to be set.

        Args:
            pod_uid: Its pod.
            cgroup: As in /proc/<pid>/cgroup of the host.
            limits: Bytes by GPU UUID.

        Raises:
            RetryableError: As in set(), or the cgroup is not of this pod.
            FatalError: See set().
        """
        pod = self._pod(pod_uid)
        container = self._cgroups / cgroup.lstrip("/")
        if pod not in container.parents or ".." in container.parts:
            raise RetryableError(
                f"cgroup {cgroup}: found a container outside pod {pod_uid}, expected one of this "
                "pod: a claim with memory limits by the NVIDIA driver belongs to one pod"
            )
        has_own = self._every_container or (container / "dmem.max").exists()
        for gpu_uuid, limit in limits.items():
            of_pod, _ = self._get(pod, gpu_uuid)
            if of_pod == UNLIMITED:
                raise RetryableError(f"{gpu_uuid}: {pod}: found no memory limit, expected one")
            if has_own:  # the pod's may have been lowered since the container's spec was written
                self._set_one(container, gpu_uuid, min(limit, of_pod))

    def get(self, pod_uid: str, gpu_uuids: Iterable[str]) -> Mapping[str, tuple[int, int] | str]:
        """Return limit and use of a pod in bytes by GPU UUID, or why a card's cannot be read.

        Raises:
            RetryableError: The pod has no cgroup, or NVML cannot be used.
            FatalError: See set().
        """
        pod = self._pod(pod_uid)
        found: dict[str, tuple[int, int] | str] = {}
        for gpu_uuid in gpu_uuids:
            try:
                found[gpu_uuid] = self._get(pod, gpu_uuid)
            except RetryableError as error:
                found[gpu_uuid] = str(error)
        return found

    def _check_cards(self) -> Sequence[str]:
        """Set and read a limit of an own cgroup on each card; return as check() does."""
        scratch = next(self._kubepods()) / _SCRATCH
        scratch.mkdir(exist_ok=True)
        refused, hints = [], []
        count = self._run("NVML", pynvml.nvmlDeviceGetCount)
        try:
            for index in range(count):
                try:
                    gpu_uuid, mig, persistence = self._run(f"GPU {index}", partial(_modes, index))
                    if persistence == 0:
                        hints.append(
                            f"{gpu_uuid}: persistence mode: found off, expected on: limits vanish "
                            "when the card's last user closes it; run nvidia-persistenced"
                        )
                    if mig == 1:
                        refused.append(f"{gpu_uuid}: MIG mode: found on, expected off")
                    else:
                        self._set_one(scratch, gpu_uuid, UNLIMITED)
                except RetryableError as error:
                    refused.append(str(error))
                except pynvml.NVMLError as error:
                    refused.append(f"GPU {index}: {nvml_discovery.error_name(error)}")
        finally:
            scratch.rmdir()
        if count == len(refused):
            return (refused[0] if refused else "NVML: found no card, expected one",)
        return ("", *refused, *hints)

    def _steps(self, pod_uid: str, limits: Mapping[str, int]) -> list[tuple[Path, str, int, int]]:
        """Return the necessary changes: cgroup, GPU UUID, limit, present limit."""
        pod = self._pod(pod_uid)
        found = [(pod, uuid, limit, self._present(pod, uuid)) for uuid, limit in limits.items()]
        return [step for step in found if step[2] != step[3]]

    def _change(self, pod: Path, gpu_uuid: str, limit: int, present: int) -> None:
        """Change a pod's limit; lower it to what is in use if it cannot be lowered further.

        Raises:
            RetryableError: It is not as wanted now.
        """
        try:
            self._set_pod(pod, gpu_uuid, limit, present)
        except RetryableError as error:
            used = self._get(pod, gpu_uuid)[1] if limit < present < UNLIMITED else 0
            if used <= limit:
                raise
            with suppress(RetryableError):
                self._set_pod(pod, gpu_uuid, used, present)
            raise RetryableError(
                f"{gpu_uuid}: {pod}: found {used} bytes in use, expected at most {limit}: this "
                "pod still uses memory that was lent to it"
            ) from error

    def _set_pod(self, pod: Path, gpu_uuid: str, limit: int, present: int) -> None:
        """Set a pod's limit, and that of its containers with the same limit.

        A container whose limit is another one uses one of several claims of the pod.
        """
        self._set_one(pod, gpu_uuid, limit)
        if {limit, present} & {0, UNLIMITED}:
            return
        for container in pod.glob("*/**/"):
            if self._present(container, gpu_uuid) == present:
                self._set_one(container, gpu_uuid, limit)

    def _present(self, cgroup: Path, gpu_uuid: str) -> int:
        """Return the present limit; 0 if there is none yet, or none that can be read."""
        with suppress(RetryableError):
            return self._get(cgroup, gpu_uuid)[0]
        return 0

    def _set_one(self, cgroup: Path, gpu_uuid: str, limit: int) -> None:
        given = pynvml.c_nvmlSetMemoryLimits_v1_t(str(cgroup).encode(), 0, limit)
        self._call(cgroup, gpu_uuid, "set", pynvml.nvmlDeviceSetMemoryLimits_v1, given)
        try:
            found, used = self._get(cgroup, gpu_uuid)
        except _NoLimitError:
            if limit == UNLIMITED:
                return
            raise
        if found != limit:
            raise RetryableError(
                f"{gpu_uuid}: memory limit of {cgroup}: found {found} bytes after it was set, "
                f"expected {limit}; {used} bytes are in use"
            )

    def _get(self, cgroup: Path, gpu_uuid: str) -> tuple[int, int]:
        found = pynvml.c_nvmlGetMemoryLimits_v1_t(str(cgroup).encode(), 0, 0, 0)
        self._call(cgroup, gpu_uuid, "get", pynvml.nvmlDeviceGetMemoryLimits_v1, found)
        return int(found.hardLimit), int(found.currentUsed)

    def _call(self, cgroup: Path, gpu_uuid: str, verb: str, function: Any, given: Any) -> None:
        """Call a function of NVML for a card, with what it reads or fills; translate its errors."""
        self._open()
        try:
            self._run(gpu_uuid, lambda: function(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid), given))
        except pynvml.NVMLError as error:
            name = nvml_discovery.error_name(error)
            cause = _TEXTS.get(error.value, "found an error that NVML does not explain")
            if error.value == pynvml.NVML_ERROR_NOT_FOUND and verb == "get":
                text = f"{gpu_uuid}: {cgroup}: found no memory limit, expected one"
                raise _NoLimitError(text) from error
            text = f"{gpu_uuid}: {verb} memory limit of {cgroup}: {name}: {cause}"
            # A broken card may say so for good, and must not end the process again and again.
            if name in nvml_discovery.UNAVAILABLE and not self._another_answers(gpu_uuid):
                raise FatalError(text) from error
            raise RetryableError(text) from error

    def _another_answers(self, gpu_uuid: str) -> bool:
        """Return True if NVML still works with another card."""
        with suppress(RetryableError, pynvml.NVMLError):
            for index in range(self._run("NVML", pynvml.nvmlDeviceGetCount)):
                with suppress(RetryableError, pynvml.NVMLError):
                    if self._run(f"GPU {index}", partial(_memory_of, index)) != gpu_uuid:
                        return True
        return False

    def _run(self, subject: str, function: Callable[[], T]) -> T:
        """Call NVML in the thread of a subject, such as a card.

        Raises:
            RetryableError: It did not answer, now or a moment ago.
        """
        if time.monotonic() >= self._quiet_until.get(subject, 0.0):
            thread = self._threads.setdefault(subject, SingleCallThread(f"nvml-{subject}"))
            with suppress(OverdueError):
                return thread.run(function, wait_seconds=_CALL_SECONDS)
            self._quiet_until[subject] = time.monotonic() + _QUIET_SECONDS
        raise RetryableError(
            f"{subject}: found no answer of NVML within {_CALL_SECONDS:g} s, expected one; it is "
            f"asked again after {_QUIET_SECONDS:g} s"
        )

    def _open(self) -> None:
        """Load and initialise NVML unless it is.

        Raises:
            RetryableError: It cannot be used yet.
            FatalError: See check_driver().
        """
        self.check_driver()
        if self._is_open:
            return
        nvml_discovery.load(self._library, self._driver_root)
        try:
            self._run("NVML", partial(pynvml.nvmlInitWithFlags, pynvml.NVML_INIT_FLAG_NO_GPUS))
        except pynvml.NVMLError as error:
            raise RetryableError(f"NVML: {nvml_discovery.error_name(error)}") from error
        self._is_open = True

    def _kubepods(self) -> Iterator[Path]:
        """Yield the cgroups above those of all pods; kind's kubelet has its own one level lower.

        Raises:
            RetryableError: There are none.
        """
        found = False
        for pattern in ("*kubepods*", "*/*kubepods*"):
            for path in sorted(self._cgroups.glob(pattern)):
                found = True
                yield path
        if not found:
            raise _NoCgroupError(f"{self._cgroups}: found no cgroup kubepods, expected one")

    def _pod(self, pod_uid: str) -> Path:
        """Return the cgroup of a pod, made by the kubelet with systemd or without, in any QoS.

        Raises:
            RetryableError: There is none.
        """
        if _POD_UID.fullmatch(pod_uid) is None:
            raise RetryableError(f"pod {pod_uid!r}: expected a UID")
        names = (f"pod{pod_uid}", f"*-pod{pod_uid.replace('-', '_')}.slice")
        for above in self._kubepods():
            for name in names:
                for found in (*above.glob(name), *above.glob(f"*/{name}")):
                    return found
        raise _NoCgroupError(
            f"pod {pod_uid}: found no cgroup below kubepods in {self._cgroups}, expected one"
        )


class _NoCgroupError(RetryableError):
    """The cgroup is not there."""


class _NoLimitError(RetryableError):
    """The cgroup has no limit on the card."""


def _modes(index: int) -> tuple[str, int | None, int | None]:
    """Return a card's UUID, MIG mode and persistence mode."""
    card = pynvml.nvmlDeviceGetHandleByIndex(index)
    modes = pynvml.nvmlDeviceGetMigMode, pynvml.nvmlDeviceGetPersistenceMode
    return pynvml.nvmlDeviceGetUUID(card), *(_mode(each, card) for each in modes)


def _memory_of(index: int) -> str:
    """Ask the NVIDIA driver for a card's memory; return the card's UUID."""
    card = pynvml.nvmlDeviceGetHandleByIndex(index)
    pynvml.nvmlDeviceGetMemoryInfo(card)
    return str(pynvml.nvmlDeviceGetUUID(card))


def _mode(function: Any, card: Any) -> int | None:
    """Return a card's current mode; None if it has none."""
    try:
        answer = function(card)
    except pynvml.NVMLError:
        return None
    return int(answer[0] if isinstance(answer, list) else answer)
