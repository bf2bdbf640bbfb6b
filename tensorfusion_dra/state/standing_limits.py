"""The JSON file with the standing verdicts about the limits of prepared claims."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import atomic

log = structlog.get_logger()

FILE_NAME: Final = "limits.json"
_MODE: Final = 0o600


class StandingLimits:
    """Store of the standing verdicts by claim UID; they survive a restart of the process.

    They need not survive a power cut: without them, the statuses of the claims are written anew.
    """

    def __init__(self, folder: Path) -> None:
        """Read nothing yet."""
        self._file = folder / FILE_NAME

    def load(self) -> Mapping[str, Any]:
        """Return what was saved last; nothing if there is no file, or none that can be read."""
        try:
            found = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("enforcement_record_unusable", error=f"{self._file}: {error}")
            return {}
        return found if isinstance(found, dict) else {}

    def save(self, record: Mapping[str, Any]) -> None:
        """Replace the file.

        Raises:
            RetryableError: It cannot be written; the old one, if any, is unchanged.
        """
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic.write(self._file, json.dumps(record).encode(), mode=_MODE, durable=False)
        except OSError as error:
            raise RetryableError(f"standing limits {self._file}: {error.strerror}") from error
