"""A profile that may change while it is in use: cards become sick and well again."""

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

_LOOK_SECONDS: Final = 0.1


class LiveProfile:
    """The profile of a text, read again whenever the file that the text names has changed."""

    def __init__(self, text: str) -> None:
        """Reads it for the first time.

        Raises:
            InputError: The text is neither shorthand nor file, or something in it is not known.
        """
        self._text = text
        self._lock = Lock()  # guards all below
        self._seen = self._version()
        self._profile = profile.from_text(text)

    def current(self) -> NodeProfile:
        """The profile as it is now; the last good one if it cannot be read any more."""
        with self._lock:
            version = self._version()
            if version != self._seen:
                self._seen = version
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
    """See ports.discovery.CardEvents: XIDs that a profile begins to name while somebody waits."""

    def __init__(self, named: Callable[[], Mapping[str, int]]) -> None:
        """What the profile names from the beginning is never reported.

        Args:
            named: The XIDs that the profile names now, by GPU UUID.
        """
        self._named = named
        self._before = named()
        self._watched: frozenset[str] = frozenset()  # replaced as a whole
        self._stop = Event()

    def watch(self, gpu_uuids: frozenset[str]) -> None:
        """See ports.discovery.CardEvents."""
        self._watched = gpu_uuids

    def stop(self) -> None:
        """See ports.discovery.CardEvents."""
        self._stop.set()

    def run(self, on_event: Callable[[CardEvent], None]) -> None:
        """See ports.discovery.CardEvents."""
        while not self._stop.wait(_LOOK_SECONDS):
            now = self._named()
            for uuid in sorted(self._watched & now.keys()):
                if now[uuid] != self._before.get(uuid):
                    on_event(CardEvent(gpu_uuid=uuid, kind=EventKind.XID, code=now[uuid]))
            self._before = now
