"""Removal of a claim's folder, whatever containers put into it."""

import os
import stat
from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import removal
from tensorfusion_dra.state.host_files import HostFiles

FILES = HostFiles()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "claims"
    path.mkdir()
    return path


def remove(folder: Path) -> None:
    FILES.remove(str(folder))


def test_files_folders_and_links_are_removed_but_not_the_targets_of_links(
    root: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("kept")
    claim = root / "uid-a"
    (claim / "deep" / "deeper").mkdir(parents=True)
    (claim / "gpu.cache").write_text("")
    (claim / "deep" / "deeper" / "file").write_text("")
    (claim / "link").symlink_to(elsewhere)
    (claim / "deep" / "link").symlink_to(elsewhere)
    os.mkfifo(claim / "pipe")

    remove(claim)

    assert list(root.iterdir()) == []
    assert (elsewhere / "kept").read_text() == "kept"


def test_removing_a_missing_folder_does_nothing(root: Path) -> None:
    remove(root / "uid-a")
    remove(root / "none" / "uid-a")

    assert list(root.iterdir()) == []


def test_link_in_place_of_the_folder_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (root / "uid-a").symlink_to(tmp_path / "kept")

    remove(root / "uid-a")

    assert (tmp_path / "kept").is_dir()


def test_tree_deeper_than_the_path_limit_is_removed(root: Path) -> None:
    claim = root / "uid-a"
    claim.mkdir()
    here = os.open(claim, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d" * 10, dir_fd=here)
        inner = os.open("d" * 10, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)

    remove(claim)
    for _ in range(20):
        FILES.remove_unfinished(str(root))

    assert list(root.iterdir()) == []


def test_large_folder_leaves_its_path_at_once_and_is_removed_in_several_rounds(
    root: Path,
) -> None:
    claim = root / "uid-a"
    (claim / "deep").mkdir(parents=True)
    for number in range(1500):
        (claim / f"{number}").touch()
        (claim / "deep" / f"{number}").touch()

    remove(claim)
    (left,) = root.iterdir()
    mode = stat.S_IMODE(left.stat().st_mode)
    rounds = 0
    while removal.quarantined_in(root):
        FILES.remove_unfinished(str(root))
        rounds += 1

    assert not claim.exists()
    assert mode == 0o700
    assert 2 <= rounds <= 5


def test_folder_of_the_same_name_can_be_removed_during_an_unfinished_removal(
    root: Path,
) -> None:
    for _ in range(2):
        (root / "uid-a").mkdir()
        for number in range(1500):
            (root / "uid-a" / f"{number}").touch()
        remove(root / "uid-a")

    assert len(removal.quarantined_in(root)) == 2


def test_quarantined_folders_are_recognised_by_name(root: Path) -> None:
    for name in ("uid-a", ".uid-b.0123.removed"):
        (root / name).mkdir()
    (root / "file").touch()

    assert FILES.names(str(root)) == {"uid-a", ".uid-b.0123.removed"}
    assert FILES.names(str(root / "none")) == frozenset()
    assert removal.quarantined_in(root) == [root / ".uid-b.0123.removed"]
    assert removal.quarantined_in(root / "none") == []


def test_unreadable_root_is_an_error_with_its_path(root: Path) -> None:
    (root / "file").touch()

    with pytest.raises(RetryableError, match="file"):
        FILES.names(str(root / "file"))
