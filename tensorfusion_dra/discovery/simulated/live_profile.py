"""A profile that may change while it is in use, so that cards become sick and recover."""

from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Lock
from typing import Final

import structlog

from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.discovery.simulated import profile
from tensorfusion_dra.discovery.simulated.profile import NodeProfile

log = structlog.get_logger()

_POLL_SECONDS: Final = 0.1


class LiveProfile:
    """The profile of a shorthand or file; a file is read again whenever it has changed."""

    def __init__(self, text: str) -> None:
        """Read the profile for the first time.

        Raises:
            InputError: The text is neither a shorthand nor a file, or contains an unknown name.
        """
        self._text = text
        self._lock = Lock()  # guards all below
        self._read_version = self._version()
        self._profile = profile.from_text(text)

    def current(self) -> NodeProfile:
        """Return the current profile; the last valid one if the file has become unusable."""
        with self._lock:
            version = self._version()
            if version != self._read_version:
                self._read_version = version
                try:
                    self._profile = profile.from_text(self._text)
                except InputError as error:
                    log.warning("profile_unusable", error=str(error))
            return self._profile

    def _version(self) -> tuple[int, int, int] | None:
        try:
            status = Path(self._text).stat()
        except (OSError, ValueError):
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


class SimulatedEvents:
    """Source of simulated events: the XIDs that appear in a profile while run() waits."""

    def __init__(self, xids: Callable[[], Mapping[str, int]]) -> None:
        """Take the XIDs that are in the profile now as known; they are never reported.

        Args:
            xids: Returns the XIDs that are in the profile now, by GPU UUID.
        """
        self._xids = xids
        self._known = xids()
        self._watched: frozenset[str] = frozenset()  # replaced as a whole
        self._stop = Event()

    def watch(self, gpu_uuids: frozenset[str]) -> None:
        """Report events of these cards, and of no others, from now on."""
        self._watched = gpu_uuids

    def stop(self) -> None:
        """End run()."""
        self._stop.set()

    def run(self, on_event: Callable[[CardEvent], None]) -> None:
        """Wait for new XIDs and pass each one on, until stopped."""
        while not self._stop.wait(_POLL_SECONDS):
            now = self._xids()
            for uuid in sorted(self._watched & now.keys()):
                if now[uuid] != self._known.get(uuid):
                    on_event(CardEvent(gpu_uuid=uuid, kind=EventKind.XID, code=now[uuid]))
            self._known = now
