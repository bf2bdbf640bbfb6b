"""The shared memory of a worker: whether the hypervisor keeps it, changes of its limits, its end.

Folders have the names of pods, and a name can be that of two pods with different UIDs, one after
the other. A container has the folder mounted that was there when it started, whatever comes to its
path later. Therefore the driver notes which folder it registered a pod with: its inode, in a file
named after the pod's UID in a folder of its own. Everything here is lost with a reboot, as the
containers are.
"""

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims import claim as claims
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import REGISTERED_FOLDER, SHM_FILE
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.enforcement.hypervisor import shared_memory
from tensorfusion_dra.state import atomic, folders, host_files

_POLL_SECONDS: Final = 0.05


class WorkerMemory:
    """The files below one folder; implements ports.hypervisor.WorkerMemory."""

    def __init__(self, root: Path) -> None:
        """Read nothing yet.

        Args:
            root: Folder with a folder for each namespace.
        """
        self._root = root

    def is_kept(self, pod: PodRef, gpu_ids: tuple[str, ...]) -> bool:
        return self.is_of(pod) and not self._missing(pod, gpu_ids)

    def is_of(self, pod: PodRef) -> bool:
        noted, _ = shared_memory.noted(str(self._note(pod)))
        return noted != "" and noted == self._present(pod)

    def is_replaced(self, pod: PodRef) -> bool:
        noted, _ = shared_memory.noted(str(self._note(pod)))
        return noted != "" and noted != self._present(pod)

    def note_registered(self, pod: PodRef) -> None:
        with host_files.errors(self._note(pod)):
            self._write_note(pod, self._present(pod))

    def note_trouble(self, pod: PodRef, text: str) -> None:
        noted, trouble = shared_memory.noted(str(self._note(pod)))
        if noted and trouble != text:
            with suppress(OSError):
                self._write_note(pod, f"{noted}\n{text}")

    def await_kept(self, pod: PodRef, gpu_ids: tuple[str, ...], *, wait_seconds: float) -> None:
        deadline = time.monotonic() + wait_seconds
        while missing := self._missing(pod, gpu_ids):
            if time.monotonic() >= deadline:
                raise RetryableError(f"{missing} within {wait_seconds:.0f} s")
            time.sleep(_POLL_SECONDS)

    def set_limits(self, pod: PodRef, limits: Mapping[str, Limit]) -> bool:
        path = self._file(pod)
        try:
            return shared_memory.set_limits(str(path), limits)
        except (OSError, ValueError) as error:
            raise RetryableError(f"{path}: {error}") from error

    def clear(self, pod: PodRef) -> None:
        if self.is_of(pod):
            with suppress(OSError):  # containers may have put something else there
                self._file(pod).unlink(missing_ok=True)
                return
        self.remove(pod)

    def remove(self, pod: PodRef) -> None:
        folder = self._file(pod).parent
        with host_files.errors(folder):
            folders.remove(folder)
        self.forget(pod)

    def forget(self, pod: PodRef) -> None:
        with host_files.errors(self._note(pod)):
            self._note(pod).unlink(missing_ok=True)

    def forget_others(self, used: Collection[str]) -> None:
        with suppress(OSError):
            for note in (self._root / REGISTERED_FOLDER).iterdir():
                if claims.is_uid(note.name) and note.name not in used:
                    note.unlink()

    def _missing(self, pod: PodRef, gpu_ids: tuple[str, ...]) -> str:
        """Return what is not as expected; "" if nothing."""
        memory = shared_memory.read(str(self._file(pod)))
        if not memory.found:
            return f"{memory.path}: found none, expected the hypervisor's shared memory"
        if memory.trouble:
            return f"{memory.path}: {memory.trouble}"
        found, expected = (
            sorted(map(verdicts.plain_uuid, uuids)) for uuids in (memory.limits, gpu_ids)
        )
        if found != expected:
            return f"{memory.path}: cards: found {found}, expected {expected}"
        now = time.time()
        if not verdicts.is_fresh(memory, now):
            age = now - memory.heartbeat
            return (
                f"{memory.path}: heartbeat: found one of {age:.0f} s ago, expected "
                f"{verdicts.FRESH_SECONDS:.0f} s at most"
            )
        return ""

    def _file(self, pod: PodRef) -> Path:
        return self._root / pod.namespace / pod.name / SHM_FILE

    def _note(self, pod: PodRef) -> Path:
        return self._root / REGISTERED_FOLDER / pod.uid

    def _write_note(self, pod: PodRef, text: str) -> None:
        note = self._note(pod)
        note.parent.mkdir(mode=0o700, exist_ok=True)
        atomic.write(note, text.encode(), mode=0o600, durable=False)

    def _present(self, pod: PodRef) -> str:
        return shared_memory.folder_identity(str(self._file(pod).parent))
