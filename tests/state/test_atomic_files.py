"""Atomic file replacement, through crashes and on full or read-only disks."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from tensorfusion_dra.state import atomic
from tests.support.threads import running

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask 000", "umask 022", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_mode_does_not_depend_on_the_umask_or_the_old_file(
    tmp_path: Path, umask: int, mode: int
) -> None:
    path = tmp_path / "a.json"
    for old in (b"", b"old"):
        atomic.write(path, old, mode=0o777)

    atomic.write(path, b"new", mode=mode)

    assert content(tmp_path) == {"a.json": b"new"}
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.process
def test_interrupted_write_keeps_the_old_file_and_leaves_only_an_ignored_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    killed = subprocess.run(
        [sys.executable, "-m", "tests.state.writer_child", str(path), "new"], cwd=ROOT, check=False
    )

    assert killed.returncode == -signal.SIGKILL
    left = content(tmp_path)
    assert left.pop("a.json") == b"old"
    assert list(left.values()) == [b"new"]
    assert all(name.startswith(".") and name.endswith(".tmp") for name in left)
    unfinished = atomic.unfinished(tmp_path, prefix="a", suffix=".json")
    assert [file.name for file in unfinished] == list(left)
    atomic.write(path, b"newer", mode=0o644)
    assert path.read_bytes() == b"newer"


def test_reader_never_sees_a_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    whole = {bytes([letter]) * 100_000 for letter in b"ab"}
    atomic.write(path, b"a" * 100_000, mode=0o644)
    seen: set[bytes] = set()
    done = Event()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_bytes())

    with running(read, stop=done.set):
        for _ in range(20):
            for text in sorted(whole):
                atomic.write(path, text, mode=0o644)

    assert seen <= whole


@pytest.mark.process
def test_full_disk_leaves_only_the_old_file(tiny_disk: Path) -> None:
    path = tiny_disk / "a.json"
    atomic.write(path, b"old", mode=0o644)

    with pytest.raises(OSError, match="No space left"):
        atomic.write(path, b"n" * 1_000_000, mode=0o644)

    assert content(tiny_disk) == {"a.json": b"old"}


def test_link_is_replaced_but_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"target")
    (tmp_path / "a.json").symlink_to(tmp_path / "target")

    atomic.write(tmp_path / "a.json", b"new", mode=0o644)

    assert not (tmp_path / "a.json").is_symlink()
    assert content(tmp_path) == {"a.json": b"new", "target": b"target"}
