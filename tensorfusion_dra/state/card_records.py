"""The JSON file with the records of the node's cards."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import atomic

log = structlog.get_logger()

FILE_NAME: Final = "cards.json"
_MODE: Final = 0o600


class CardRecords:
    """Store of the card records; they survive a restart of the process.

    Two instances on one node write the same content; the last write wins.

    Attributes:
        boot_id: Identifies this boot of the machine.
    """

    def __init__(self, folder: Path, *, boot_id: str) -> None:
        """Read nothing yet."""
        self._file = folder / FILE_NAME
        self.boot_id = boot_id

    def load(self) -> Mapping[str, Any] | None:
        """Return the record that was saved last; None if there is none or it cannot be read."""
        try:
            found = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("card_record_unusable", error=f"{self._file}: {error}")
            return None
        return found if isinstance(found, dict) else None

    def save(self, record: Mapping[str, Any]) -> None:
        """Return once the record would survive a power cut.

        Raises:
            RetryableError: The record cannot be written; the old one, if any, is unchanged.
        """
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic.write(self._file, json.dumps(record).encode(), mode=_MODE)
        except OSError as error:
            raise RetryableError(f"card record {self._file}: {error.strerror}") from error
