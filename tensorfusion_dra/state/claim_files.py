"""Files of claims on the host, for other programs and for containers.

ClaimFiles are the CDI specs, limits documents and metadata of devices, HostFiles the files, sockets
and folders of enforcers.
"""

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcer import Needs
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import atomic, folders, unix_sockets

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

    def remove(self, claim_uid: str) -> None:
        """Remove the claim's file; do nothing if there is none."""
        path = self.path(claim_uid)
        with errors(f"{self.what} {path}"):
            _clear(path)
            path.unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Remove temporary files that a crash left; a write that is running starts again."""
        with errors(f"{self.what} {self.folder}"):
            if self.folder.is_dir():
                for path in atomic.unfinished(self.folder, prefix=self.prefix, suffix=".json"):
                    path.unlink(missing_ok=True)

    def claim_uids(self) -> frozenset[str]:
        """Return the UIDs of the claims that have a file."""
        with errors(f"{self.what} {self.folder}"):
            try:
                found = [path.name for path in self.folder.iterdir()]
            except FileNotFoundError:
                return frozenset()
        ours = (n for n in found if n.startswith(self.prefix) and n.endswith(".json"))
        uids = (n.removeprefix(self.prefix).removesuffix(".json") for n in ours)
        return frozenset(uid for uid in uids if uid and not uid.startswith("."))

    def read(self, claim_uid: str) -> Any:
        """Return the JSON value in the claim's file; None if there is no file, or no JSON in it."""
        path = self.path(claim_uid)
        with errors(f"{self.what} {path}"):
            content = _content(path)
        try:
            return None if content is None else json.loads(content)
        except (ValueError, RecursionError):
            return None

    def path(self, claim_uid: str) -> Path:
        """Return where the claim's file is."""
        return self.folder / f"{self.prefix}{claim_uid}.json"

    def made(self, claim_uid: str, document: Document) -> "ExpectedFile":
        """Return the claim's file with this document; write nothing."""
        objects = [document] if isinstance(document, Mapping) else document
        # Without indentation, which json would write in Python instead of C: four times as slow.
        content = "".join(f"{json.dumps(each)}\n" for each in objects).encode()
        path = self.path(claim_uid)
        return ExpectedFile(path, content, mode=self.mode, subject=f"{self.what} {path}")


@dataclass(frozen=True, slots=True)
class ExpectedFile:
    """A file as it should be.

    Attributes:
        subject: What error texts call it.
    """

    path: Path
    content: bytes
    mode: int
    subject: str


def differing(files: Iterable[ExpectedFile]) -> list[ExpectedFile]:
    """Return those of the files that are not as they should be.

    Raises:
        RetryableError: One cannot be read.
    """
    found = []
    for file in files:
        with errors(file.subject):
            if _content(file.path) != file.content:
                found.append(file)
    return found


def _differing_texts(needs: Needs) -> list[ExpectedFile]:
    """Return the texts of an enforcer that are not as they should be, or not readable for all."""
    texts = [
        ExpectedFile(Path(file.path), file.text.encode(), mode=0o644, subject=file.path)
        for file in needs.texts
    ]
    changed = differing(texts)
    for file in texts:
        if file not in changed and stat.S_IMODE(file.path.stat().st_mode) != file.mode:
            changed.append(file)
    return changed


def write(files: Iterable[ExpectedFile]) -> None:
    """Write files in this order. A reader sees an old file or the new one, never a part of one.

    Containers that have mounted an old file keep that one.

    Raises:
        RetryableError: One cannot be written.
    """
    for file in files:
        with errors(file.subject):
            try:
                # Without a flush: it is rewritten from the records (docs/adr/0055).
                atomic.write(file.path, file.content, mode=file.mode, durable=False)
            except (FileNotFoundError, IsADirectoryError):
                # There is no folder yet, or remove_unfinished() took the temporary file away.
                folders.make(file.path.parent)
                _clear(file.path)
                atomic.write(file.path, file.content, mode=file.mode, durable=False)


def cdi_specs(folder: Path) -> ClaimFiles:
    """Return the CDI specs in the CDI directory."""
    return ClaimFiles(folder=folder, what="CDI spec", prefix=names.CDI_FILE_PREFIX, mode=0o644)


def limits(root: Path) -> ClaimFiles:
    """Return the limits documents below tensor-fusion-root; only this driver may change them."""
    return ClaimFiles(folder=root / "claims", what="limits", prefix="", mode=0o444)


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


class HostFiles:
    """Files and folders of the host that an enforcer needs, under the same paths as on the host.

    A folder is never created or removed through a symbolic link at its own path: containers write
    into these folders, and a link would redirect those writes to another place on the host.
    """

    def __init__(self, root: Path) -> None:
        """Args:
        root: Folder with a folder for each enforcer, in which are those of namespaces and the
            parents of claims' folders.
        """
        self._root = root

    @staticmethod
    def missing(needs: Needs) -> str:
        """Return which file or socket is missing, and what was found there; "" if none is."""
        for file in needs.files:
            try:
                Path(file).stat()
            except OSError as error:
                return f"{file}: {error.strerror or error}"
        for socket in needs.sockets:
            if reason := unix_sockets.reason(socket):
                return f"{socket}: {reason}"
        return ""

    def has(self, needs: Needs) -> bool:
        """Return True if the folders and texts are there, so that provide() has nothing to do."""
        try:
            modes = [os.lstat(folder.path).st_mode for folder in needs.folders]
            expected = [stat.S_IFDIR | folder.mode for folder in needs.folders]
        except OSError:
            return False
        return modes == expected and not _differing_texts(needs)

    def provide(self, needs: Needs) -> None:
        """Create the folders, set their modes and write the texts.

        Raises:
            RetryableError: Something cannot be created; the text has its path.
        """
        for folder in needs.folders:
            with errors(folder.path):
                path = Path(folder.path)
                folders.make(path.parent)
                # Another thread may create it in the meantime; the check below covers that.
                if not path.is_symlink():
                    path.mkdir(exist_ok=True)
                found = path.lstat().st_mode
                if not stat.S_ISDIR(found):
                    raise RetryableError(f"{path}: found something else, expected a folder")
                if stat.S_IMODE(found) != folder.mode:
                    # Root in a container may have given it to another user: its own loss, and no
                    # other's.
                    with suppress(PermissionError):
                        path.chmod(folder.mode)
        write(_differing_texts(needs))

    def remove(self, folder: str) -> None:
        """Remove a folder with everything that containers wrote; do nothing if there is none.

        Raises:
            RetryableError: The folder is still at its path.
        """
        with errors(folder):
            folders.remove(Path(folder))

    def delete_removed(self) -> list[str]:
        """Continue the removals that remove() left unfinished; return why some cannot be."""
        return folders.delete_removed(self._root.glob(f"*/*/{folders.REMOVED}"))

    def names(self, root: str) -> frozenset[str]:
        """Return the names of the folders in this folder; none if it does not exist.

        Raises:
            RetryableError: It cannot be read.
        """
        with errors(root):
            try:
                return frozenset(path.name for path in Path(root).iterdir() if path.is_dir())
            except FileNotFoundError:
                return frozenset()


@contextmanager
def errors(subject: str | Path) -> Iterator[None]:
    """Translate errors of the file system; the text begins with what was read or written."""
    try:
        yield
    except OSError as error:
        raise RetryableError(f"{subject}: {error.strerror or error}") from error
