"""Journal of the actions of a simulated component, for display and for tests."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final


@dataclass(frozen=True, slots=True)
class Entry:
    """One event in a journal.

    Attributes:
        seconds: Time since the epoch.
        event: Name in the past tense, for example ``plugin_registered``.
    """

    seconds: float
    event: str
    facts: Mapping[str, str]

    def __str__(self) -> str:
        return " ".join([self.event, *(f"{name}={value}" for name, value in self.facts.items())])


Listener = Callable[[Entry], None]


class Journal:
    """Entries in the order of their events."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener: Final = listener
        self._lock: Final = Lock()  # guards _entries
        self._entries: Final[list[Entry]] = []

    def add(self, event: str, **facts: str) -> None:
        """Append an entry and pass it to the listener."""
        entry = Entry(time.time(), event, facts)
        with self._lock:
            self._entries.append(entry)
        if self._listener is not None:
            self._listener(entry)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries so far."""
        with self._lock:
            return tuple(self._entries)
