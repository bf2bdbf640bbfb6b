"""The shared memory of a worker: whether the hypervisor keeps it, changes of its limits, its end.

A container can write into its pod's folder, and root in a container can change the folder's owner.
This driver is root without capabilities, so it may be unable to read or to empty what is left of a
pod. It can always rename the folder, whose parent no container sees, but only within that parent:
a move into another one would change the folder itself. So ``ns/train`` becomes
``ns/.<random>.removed`` at once, and is emptied later as far as possible.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.enforcement import soft_limiter
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.enforcement.hypervisor import shared_memory
from tensorfusion_dra.state import removal

_POLL_SECONDS: Final = 0.05
_MOST_AT_ONCE: Final = 1000
"""Files and folders of a removed pod to delete in one go."""


class WorkerMemory:
    """The files below one folder; implements ports.hypervisor.WorkerMemory."""

    def __init__(
        self,
        root: Path,
        *,
        now: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read nothing yet.

        Args:
            root: Folder with a folder for each namespace.
            now: Returns the time since the epoch, in seconds.
            pause: Waits this many seconds, between two looks at a file.
        """
        self._root = root
        self._now = now
        self._pause = pause

    def is_kept(self, pod: PodRef, gpu_ids: tuple[str, ...]) -> bool:
        return not self._missing(pod, gpu_ids)

    def await_kept(self, pod: PodRef, gpu_ids: tuple[str, ...], *, wait_seconds: float) -> None:
        deadline = time.monotonic() + wait_seconds
        while missing := self._missing(pod, gpu_ids):
            if time.monotonic() >= deadline:
                raise RetryableError(f"{missing} within {wait_seconds:.0f} s")
            self._pause(_POLL_SECONDS)

    def set_limits(self, pod: PodRef, limits: Mapping[str, Limit]) -> bool:
        path = self._file(pod)
        try:
            return shared_memory.set_limits(str(path), limits)
        except (OSError, ValueError) as error:
            raise RetryableError(f"{path}: {error}") from error

    def clear(self, pod: PodRef) -> None:
        try:
            self._file(pod).unlink(missing_ok=True)
        except OSError:  # a container put something else there, or took the folder
            self.remove(pod)

    def remove(self, pod: PodRef) -> None:
        folder = self._file(pod).parent
        try:
            folder.rename(folder.with_name(removal.new_name()))
        except FileNotFoundError:
            return
        except OSError as error:
            raise RetryableError(f"{folder}: {error.strerror or error}") from error

    def delete_removed(self) -> Sequence[str]:
        left = []
        for namespace in self._namespaces():
            for folder in removal.quarantined_in(namespace):
                try:
                    removal.clear(folder, most=_MOST_AT_ONCE)
                except OSError as error:
                    left.append(f"{error.filename or folder}: {error.strerror or error}")
        return left

    def _namespaces(self) -> Sequence[Path]:
        try:
            return sorted(path for path in self._root.iterdir() if path.is_dir())
        except OSError:
            return ()

    def _missing(self, pod: PodRef, gpu_ids: tuple[str, ...]) -> str:
        """Return what is not as expected; "" if nothing."""
        memory = shared_memory.read(str(self._file(pod)))
        if not memory.found:
            return f"{memory.path}: found none, expected the hypervisor's shared memory"
        if memory.trouble:
            return f"{memory.path}: {memory.trouble}"
        found, expected = (
            sorted(map(soft_limiter.plain_uuid, uuids)) for uuids in (memory.limits, gpu_ids)
        )
        if found != expected:
            return f"{memory.path}: cards: found {found}, expected {expected}"
        age = self._now() - memory.heartbeat
        if age > soft_limiter.FRESH_SECONDS:
            return (
                f"{memory.path}: heartbeat: found one of {age:.0f} s ago, expected "
                f"{soft_limiter.FRESH_SECONDS:.0f} s at most"
            )
        return ""

    def _file(self, pod: PodRef) -> Path:
        return self._root / pod.namespace / pod.name / "shm"
