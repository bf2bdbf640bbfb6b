"""A power cut at every moment: a test double loses what was not flushed, contents and names."""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.state.claim_store import FOLDER
from tests.support.stores import GPU_1, opened, put, recorded_claim, remove

Names = dict[str, int]
"""Inode by name."""
Allowed = list[PreparedClaim | None]


class LossyDisk:
    """What of a folder would be there after a power cut.

    A flush of a file makes its content durable, a flush of the folder its names. Without one, of
    the changes of names since the last flush any first part may be there, and of a file's content
    nothing, a part, or all.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.at_every_step: Callable[[], None] = lambda: None
        self._possible: list[Names] = [{}]
        self._content: dict[int, bytes] = {}
        self._flushed: dict[int, bytes] = {}
        for name in ("rename", "unlink"):
            patch.setattr(os, name, self._with_names(getattr(os, name)))
        create, write, flush = os.open, os.write, os.fsync

        def created(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
            descriptor = create(path, flags, *arguments, **more)
            if flags & os.O_CREAT and Path(path).parent == self.folder:
                self._possible.append(self._names())
                self.at_every_step()
            return descriptor

        def written(descriptor: int, content: bytes) -> int:
            size = write(descriptor, content)
            self._names()  # the same, with another content
            self.at_every_step()
            return size

        def flushed(descriptor: int) -> None:
            flush(descriptor)
            self._note_flush(descriptor)

        patch.setattr(os, "open", created)
        patch.setattr(os, "write", written)
        patch.setattr(os, "fsync", flushed)

    def cuts(self) -> Iterator[dict[str, bytes]]:
        """Yield each possible content of the folder if the power is cut now."""
        for names in self._possible:
            for part in (0, 2, 1):
                yield {
                    name: self._flushed.get(
                        inode,
                        self._content[inode][: len(self._content[inode]) // part] if part else b"",
                    )
                    for name, inode in names.items()
                }

    def _with_names(self, change: Callable[..., None]) -> Callable[..., None]:
        def changed(*arguments: Any, **more: Any) -> None:
            change(*arguments, **more)
            if Path(arguments[-1]).parent == self.folder:
                self._possible.append(self._names())
                self.at_every_step()

        return changed

    def _names(self) -> Names:
        names = {}
        for path in self.folder.iterdir():
            names[path.name] = inode = path.stat().st_ino
            content = path.read_bytes()
            if self._content.get(inode) != content:  # another file has this inode now
                self._flushed.pop(inode, None)
            self._content[inode] = content
        return names

    def _note_flush(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        # A folder may get the inode of a file that was removed.
        if stat.S_ISREG(found.st_mode) and found.st_ino in self._content:
            self._flushed[found.st_ino] = os.pread(descriptor, found.st_size, 0)
        elif self.folder.exists() and os.path.samestat(found, self.folder.stat()):
            self._possible = [self._names()]
        else:
            return
        self.at_every_step()


def test_power_cut_at_any_moment_loses_nothing_that_was_answered_and_brings_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, cuts = LossyDisk(tmp_path / "live" / FOLDER, monkeypatch), 0
    a, b, c = recorded_claim("a"), recorded_claim("b", device=GPU_1), recorded_claim("c")
    may_be: dict[str, Allowed] = {uid: [None] for uid in ("a", "b", "c")}

    def check() -> None:
        nonlocal cuts
        disk.at_every_step = lambda: None
        for content in disk.cuts():
            cuts += 1
            after = tmp_path / f"cut-{cuts}"
            (after / FOLDER).mkdir(parents=True)
            for file, written in content.items():
                (after / FOLDER / file).write_bytes(written)
            with opened(after) as found:
                by_name = {claim.ref.name: claim for claim in found.claims()}
                assert found.damaged() == {}
            for name, allowed in may_be.items():
                assert by_name.get(name) in allowed, (name, sorted(content))
        disk.at_every_step = check

    with opened(tmp_path / "live") as store:
        disk.at_every_step = check
        for name, claim in (
            *(("a", a), ("b", b), ("a", replace(a, sequence=7)), ("a", None)),
            # In the room of the removed claim, by a new claim and by one of the same UID.
            *(("c", c), ("a", replace(a, sequence=8)), ("c", None), ("a", None)),
        ):
            may_be[name].append(claim)  # either is right during the call, but not after it
            if claim:
                put(store, claim)
            else:
                remove(store, f"uid-{name}")
            may_be[name] = [claim]
        check()

    assert cuts > 100
