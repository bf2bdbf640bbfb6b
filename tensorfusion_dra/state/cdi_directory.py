"""The CDI specs of prepared claims, where container runtimes read them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.core import cdi
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import atomic

_MODE: Final = 0o644
_FOLDER_MODE: Final = 0o755
"""Runtimes need not run as root; set by name, whatever the umask."""


class CdiDirectory:
    """One file a claim; other drivers' files are never touched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ensure(self, claim_uid: str, spec: Mapping[str, Any]) -> bool:
        """See ports.Specs."""
        path = self._path(claim_uid)
        content = (json.dumps(spec, indent=2) + "\n").encode()
        with _errors(path):
            if _content(path) == content:
                return False
            if not self._folder.is_dir():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._folder.chmod(_FOLDER_MODE)
            atomic.write(path, content, mode=_MODE)
        return True

    def remove(self, claim_uid: str) -> None:
        """See ports.Specs."""
        path = self._path(claim_uid)
        with _errors(path):
            atomic.remove(path)

    def claim_uids(self) -> frozenset[str]:
        """See ports.Specs."""
        with _errors(self._folder):
            try:
                uids = [cdi.claim_uid_of(path.name) for path in self._folder.iterdir()]
            except FileNotFoundError:
                return frozenset()
            return frozenset(uid for uid in uids if uid)

    def _path(self, claim_uid: str) -> Path:
        return self._folder / cdi.file_name(claim_uid)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RetryableError(f"CDI spec {path}: {error.strerror or error}") from error
