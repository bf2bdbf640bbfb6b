"""JSON files with the state of the driver when it stopped: its cards, the verdicts on limits."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import atomic

log = structlog.get_logger()

CARDS: Final = "cards.json"
LIMITS: Final = "limits.json"
LIMITER_SEEN: Final = "limiterSeen"
"""Key of `LIMITS` beside the claims' UIDs: the claim in which a limiter was seen last, and when."""
_MODE: Final = 0o600


class SavedState:
    """One such file; it survives a restart of the process.

    Two instances on one node write the same content; the last write wins.
    """

    def __init__(self, folder: Path, name: str, *, durable: bool = False) -> None:
        """Args:
        folder: The driver's data folder.
        name: Of the file: `CARDS` or `LIMITS`.
        durable: What was saved survives a power cut as well.
        """
        self._file = folder / name
        self._durable = durable

    def load(self) -> Mapping[str, Any] | None:
        """Return what was saved last; None if there is nothing that can be read."""
        try:
            found = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("saved_state_unusable", error=f"{self._file}: {error}")
            return None
        return found if isinstance(found, dict) else None

    def save(self, record: Mapping[str, Any]) -> None:
        """Replace the file.

        Raises:
            RetryableError: It cannot be written; the old one, if any, is unchanged.
        """
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic.write(self._file, json.dumps(record).encode(), mode=_MODE, durable=self._durable)
        except OSError as error:
            raise RetryableError(f"saved state {self._file}: {error.strerror}") from error
