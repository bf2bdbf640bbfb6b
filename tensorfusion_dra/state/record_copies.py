"""A copy of each record in a file of its own, from which a damaged ledger is rebuilt."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims import claim as claims
from tensorfusion_dra.state import atomic, records
from tensorfusion_dra.state.records import DamageError, Record

FOLDER_NAME: Final = "records"
_SUFFIX: Final = ".record"
_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class RecordCopies:
    """Two lines a file: the seal, and the text that the ledger has.

    A copy is written without waiting for the disk. It is there for containers that run while the
    ledger is damaged, and after a power cut none runs: the kubelet asks for its claims anew.

    Raises, each method:
        OSError: The folder is full, read-only or unreadable.
    """

    folder: Path

    def put(self, record: Record) -> None:
        """Writes the record's copy, in place of an older one."""
        self.keep(record.uid, self.staged(record))

    def staged(self, record: Record) -> Path:
        """A file that becomes the record's copy by keep(), and until then is none."""
        path = self._path(record.uid)
        try:
            return atomic.staged(path, _content(record), mode=_MODE, durable=False)
        except (FileNotFoundError, NotADirectoryError):
            self._clear_folder()
            self.folder.mkdir(parents=True, exist_ok=True)
            return atomic.staged(path, _content(record), mode=_MODE, durable=False)

    def keep(self, uid: str, file: Path) -> None:
        """Makes a staged file the copy, in place of an older one."""
        try:
            file.rename(self._path(uid))
        except IsADirectoryError:
            self.quarantine(uid, moment=datetime.now(UTC))
            file.rename(self._path(uid))

    def ensure(self, record: Record) -> bool:
        """Writes the record's copy unless it is there as it should be; True if it was written."""
        try:
            if self._read(record.uid) == _content(record):
                return False
        except DamageError:
            self.quarantine(record.uid, moment=datetime.now(UTC))
        self.put(record)
        return True

    def remove(self, uid: str) -> None:
        """Removes the copy; fine if there is none."""
        try:
            self._path(uid).unlink(missing_ok=True)
        except IsADirectoryError:
            self.quarantine(uid, moment=datetime.now(UTC))

    def uids(self) -> frozenset[str]:
        """The claims that have a copy."""
        try:
            found = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return frozenset()
        names = (name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))
        return frozenset(name for name in names if claims.is_uid(name))

    def get(self, uid: str) -> Record | None:
        """The record, if there is a copy of it.

        Raises:
            DamageError: The copy is not what was written.
        """
        content = self._read(uid)
        if content is None:
            return None
        checksum, _, text = content.removesuffix(b"\n").partition(b"\n")
        record = records.read(uid.encode(), text, checksum)
        records.claim(record)
        return record

    def quarantine(self, uid: str, *, moment: datetime) -> None:
        """Puts a damaged copy out of the way."""
        path = self._path(uid)
        path.rename(path.with_name(f"{uid}-damaged-{moment:%Y%m%dT%H%M%S.%fZ}"))

    def remove_unfinished(self) -> None:
        """Removes what a crash left of a write; call it only while nobody writes."""
        self._clear_folder()
        if self.folder.is_dir():
            for path in atomic.unfinished(self.folder, prefix="", suffix=_SUFFIX):
                path.unlink(missing_ok=True)

    def _read(self, uid: str) -> bytes | None:
        # A damaged ledger may name anything.
        if not claims.is_uid(uid):
            return None
        try:
            return self._path(uid).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in atomic.NO_FILE:
                raise DamageError(f"{self._path(uid)}: {error.strerror}") from error
            raise

    def _clear_folder(self) -> None:
        """Puts what is no folder out of the folder's way."""
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            moment = datetime.now(UTC)
            aside = f"{self.folder.name}-damaged-{moment:%Y%m%dT%H%M%S.%fZ}"
            self.folder.rename(self.folder.with_name(aside))

    def _path(self, uid: str) -> Path:
        return self.folder / f"{uid}{_SUFFIX}"


def _content(record: Record) -> bytes:
    return f"{record.checksum}\n{record.text}\n".encode()
