"""The shared memory of a worker: its liveness, and changes of its limits.

The hypervisor writes the limits once, when it creates the file, and never changes them. Limiters
read them at each call. So a limit that changes is written here, in place, one aligned field each.

A container can write into the folder of its file. So a file is opened without following links, and
used only if it is a regular file of the known size and version. It is not mapped: a container that
truncates it would end this process by a signal.

Source: NexusGPU/tensor-fusion, pkg/hypervisor/worker/state/soft_limiter_shm.go (layout V2).
"""

import os
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.errors import RetryableError

SIZE: Final = 35_504
VERSION: Final = 1
"""The discriminant of layout V2."""
MOST_DEVICES: Final = 16
DEVICES_AT: Final = 8
DEVICE_SIZE: Final = 136
UUID: Final = struct.Struct("64s")
UP_LIMIT: Final = (64, struct.Struct("<I"))
MEMORY_LIMIT: Final = (72, struct.Struct("<Q"))
IS_ACTIVE: Final = (128, struct.Struct("<I"))
HEARTBEAT: Final = (2192, struct.Struct("<Q"))

_FRESH_SECONDS: Final = 5.0
"""The hypervisor writes whole seconds, twice a second; limiters give up after two."""
_POLL_SECONDS: Final = 0.05


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
        try:
            return not self._missing(pod, gpu_ids)
        except RetryableError:
            return False

    def await_kept(self, pod: PodRef, gpu_ids: tuple[str, ...], *, wait_seconds: float) -> None:
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                missing = self._missing(pod, gpu_ids)
            except RetryableError as error:
                missing = str(error)
            if not missing:
                return
            if time.monotonic() >= deadline:
                raise RetryableError(f"{missing} within {wait_seconds:.0f} s")
            self._pause(_POLL_SECONDS)

    def set_limits(self, pod: PodRef, limits: Mapping[str, Limit]) -> bool:
        changed = False
        with self._opened(pod) as (file, content):
            places = _devices(content)
            for uuid, limit in limits.items():
                place = places.get(_short(uuid))
                if place is None:
                    found = ", ".join(places) or "none"
                    raise RetryableError(
                        f"{self._file(pod)}: cards: found {found}, expected {uuid}"
                    )
                for (offset, field), value in (
                    (UP_LIMIT, limit.sm_percent),
                    (MEMORY_LIMIT, limit.vram_bytes),
                ):
                    if field.unpack_from(content, place + offset)[0] != value:
                        os.pwrite(file, field.pack(value), place + offset)
                        changed = True
        return changed

    def clear(self, pod: PodRef) -> None:
        try:
            self._file(pod).unlink(missing_ok=True)
        except OSError as error:
            raise RetryableError(f"{self._file(pod)}: {error.strerror or error}") from error

    def remove(self, pod: PodRef) -> None:
        self.clear(pod)
        with suppress(OSError):
            self._file(pod).parent.rmdir()

    def _missing(self, pod: PodRef, gpu_ids: tuple[str, ...]) -> str:
        """Return what is not as expected; "" if nothing.

        Raises:
            RetryableError: There is no such file, or it has another layout.
        """
        with self._opened(pod) as (_, content):
            found = sorted(_devices(content))
            expected = sorted(map(_short, gpu_ids))
            if found != expected:
                return f"{self._file(pod)}: cards: found {found}, expected {expected}"
            offset, field = HEARTBEAT
            age = self._now() - field.unpack_from(content, offset)[0]
            if age > _FRESH_SECONDS:
                return (
                    f"{self._file(pod)}: heartbeat: found one of {age:.0f} s ago, expected "
                    f"{_FRESH_SECONDS:.0f} s at most"
                )
        return ""

    def _file(self, pod: PodRef) -> Path:
        return self._root / pod.namespace / pod.name / "shm"

    @contextmanager
    def _opened(self, pod: PodRef) -> Iterator[tuple[int, bytes]]:
        """Open the worker's file; yield its descriptor and its content.

        Raises:
            RetryableError: It cannot be used: it is of another kind, size or version.
        """
        path = self._file(pod)
        try:
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise RetryableError(
                f"{path}: found {error.strerror}, expected the hypervisor's shared memory"
            ) from error
        try:
            yield file, _content(path, file)
        except OSError as error:
            raise RetryableError(f"{path}: {error.strerror or error}") from error
        finally:
            os.close(file)


def _content(path: Path, file: int) -> bytes:
    """Return the content of a file.

    Raises:
        RetryableError: It is of another kind, size or version.
    """
    status = os.fstat(file)
    content = os.pread(file, SIZE, 0) if stat.S_ISREG(status.st_mode) else b""
    if len(content) != SIZE or status.st_size != SIZE:
        raise RetryableError(f"{path}: found {status.st_size} bytes, expected a file of {SIZE}")
    version = struct.unpack_from("<I", content)[0]
    if version != VERSION:
        raise RetryableError(f"{path}: version: found {version}, expected {VERSION}")
    return content


def _devices(content: bytes) -> Mapping[str, int]:
    """Return where the entry of each card begins, by its UUID without prefix."""
    found = {}
    for number in range(MOST_DEVICES):
        place = DEVICES_AT + number * DEVICE_SIZE
        offset, field = IS_ACTIVE
        if field.unpack_from(content, place + offset)[0]:
            text = UUID.unpack_from(content, place)[0].split(b"\0", 1)[0].decode(errors="replace")
            found[_short(text)] = place
    return found


def _short(uuid: str) -> str:
    """Return a UUID in lower case without its prefix: the hypervisor spells it in two ways."""
    return uuid.lower().removeprefix("gpu-")
