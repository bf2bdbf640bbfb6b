"""One JSON file with what is known of the node's cards."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import atomic

log = structlog.get_logger()

FILE_NAME: Final = "cards.json"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MODE: Final = 0o600


class CardFile:
    """See ports.CardRecords. Of two instances, each writes the same; the last one stays."""

    def __init__(self, folder: Path, *, boot_id_file: Path = _BOOT_ID) -> None:
        """Reads nothing of the folder yet.

        Args:
            boot_id_file: Where the kernel tells this boot from others.

        Raises:
            RetryableError: It cannot be read.
        """
        self._file = folder / FILE_NAME
        try:
            self.boot_id = boot_id_file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise RetryableError(f"boot id {boot_id_file}: {error.strerror}") from error

    def load(self) -> Mapping[str, Any] | None:
        """See ports.CardRecords."""
        try:
            found = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("card_record_unusable", error=f"{self._file}: {error}")
            return None
        return found if isinstance(found, dict) else None

    def save(self, record: Mapping[str, Any]) -> None:
        """See ports.CardRecords."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic.write(self._file, json.dumps(record).encode(), mode=_MODE)
        except OSError as error:
            raise RetryableError(f"card record {self._file}: {error.strerror}") from error
