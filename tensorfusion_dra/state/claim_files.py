"""Files that other programs read: CDI specs, limits documents and metadata of devices."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import atomic, folders

Document = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A JSON object, or several of them, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFiles:
    """A folder with one JSON file for each claim; files of other names are never touched.

    Device metadata has a file for each request of a claim. Its methods get the name from
    device_metadata.file_name() in place of a claim's UID.

    Every method raises:
        RetryableError: The folder is full, read-only or missing.

    Attributes:
        what: Kind of the files, for error texts: ``CDI spec`` or ``limits``.
        prefix: Start of every file name; the claim's UID and .json follow.
        mode: Permission bits of every file.
    """

    folder: Path
    what: str
    prefix: str
    mode: int

    def ensure(self, claim_uid: str, document: Document) -> bool:
        """Write the claim's file unless it has this content; return True if it was written.

        A reader sees the old file or the new one, never a part of one.
        """
        path = self._path(claim_uid)
        objects = [document] if isinstance(document, Mapping) else document
        # Without indentation, which json would write in Python instead of C: four times as slow.
        content = "".join(f"{json.dumps(each)}\n" for each in objects).encode()
        with self._errors(path):
            if _content(path) == content:
                return False
            try:
                # Without a flush: it is rewritten from the records (docs/adr/0055).
                atomic.write(path, content, mode=self.mode, durable=False)
            except (FileNotFoundError, IsADirectoryError):
                # There is no folder yet, or remove_unfinished() took the temporary file away.
                folders.make(self.folder)
                _clear(path)
                atomic.write(path, content, mode=self.mode, durable=False)
        return True

    def remove(self, claim_uid: str) -> None:
        """Remove the claim's file; do nothing if there is none."""
        path = self._path(claim_uid)
        with self._errors(path):
            _clear(path)
            path.unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Remove temporary files that a crash left; a write that is running starts again."""
        with self._errors(self.folder):
            if self.folder.is_dir():
                for path in atomic.unfinished(self.folder, prefix=self.prefix, suffix=".json"):
                    path.unlink(missing_ok=True)

    def claim_uids(self) -> frozenset[str]:
        """Return the UIDs of the claims that have a file."""
        with self._errors(self.folder):
            try:
                found = [path.name for path in self.folder.iterdir()]
            except FileNotFoundError:
                return frozenset()
        ours = (n for n in found if n.startswith(self.prefix) and n.endswith(".json"))
        uids = (n.removeprefix(self.prefix).removesuffix(".json") for n in ours)
        return frozenset(uid for uid in uids if uid and not uid.startswith("."))

    def read(self, claim_uid: str) -> Any:
        """Return the JSON value in the claim's file; None if there is no file, or no JSON in it."""
        path = self._path(claim_uid)
        with self._errors(path):
            content = _content(path)
        try:
            return None if content is None else json.loads(content)
        except (ValueError, RecursionError):
            return None

    def _path(self, claim_uid: str) -> Path:
        return self.folder / f"{self.prefix}{claim_uid}.json"

    @contextmanager
    def _errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RetryableError(f"{self.what} {path}: {error.strerror or error}") from error


def cdi_specs(folder: Path) -> ClaimFiles:
    """Return the CDI specs in the CDI directory."""
    return ClaimFiles(folder=folder, what="CDI spec", prefix=names.CDI_FILE_PREFIX, mode=0o644)


def limits(folder: Path) -> ClaimFiles:
    """Return the limits documents in this folder; only this driver may change them."""
    return ClaimFiles(folder=folder, what="limits", prefix="", mode=0o444)


def device_metadata(folder: Path) -> ClaimFiles:
    """Return the files of device metadata in this folder; containers read them."""
    return ClaimFiles(folder=folder, what="device metadata", prefix="", mode=0o644)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in atomic.NO_FILE:
            return None
        raise


def _clear(path: Path) -> None:
    """Remove an empty folder at the file's path; a mount of a missing file creates such a folder.

    Raises:
        OSError: The folder is not empty.
    """
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
