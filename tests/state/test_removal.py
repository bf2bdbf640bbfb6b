"""A claim's own folder goes with the claim, whatever containers put into it."""

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


def taken_away(folder: Path) -> None:
    FILES.remove(str(folder))


def test_files_folders_and_links_go_and_what_links_point_to_stays(
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

    taken_away(claim)

    assert list(root.iterdir()) == []
    assert (elsewhere / "kept").read_text() == "kept"


def test_a_folder_that_is_not_there_is_fine(root: Path) -> None:
    taken_away(root / "uid-a")
    taken_away(root / "none" / "uid-a")

    assert list(root.iterdir()) == []


def test_a_link_in_the_place_of_the_folder_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (root / "uid-a").symlink_to(tmp_path / "kept")

    taken_away(root / "uid-a")

    assert (tmp_path / "kept").is_dir()


def test_a_tree_that_is_deeper_than_any_path_goes(root: Path) -> None:
    claim = root / "uid-a"
    claim.mkdir()
    here = os.open(claim, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d" * 10, dir_fd=here)
        inner = os.open("d" * 10, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)

    taken_away(claim)
    for _ in range(20):
        FILES.remove_unfinished(str(root))

    assert list(root.iterdir()) == []


def test_many_files_go_in_several_rounds_and_none_is_in_its_place_after_the_first(
    root: Path,
) -> None:
    claim = root / "uid-a"
    (claim / "deep").mkdir(parents=True)
    for number in range(1500):
        (claim / f"{number}").touch()
        (claim / "deep" / f"{number}").touch()

    taken_away(claim)
    (left,) = root.iterdir()
    mode = stat.S_IMODE(left.stat().st_mode)
    rounds = 0
    while removal.quarantined_in(root):
        FILES.remove_unfinished(str(root))
        rounds += 1

    assert not claim.exists()
    assert mode == 0o700
    assert 2 <= rounds <= 5


def test_a_folder_of_the_same_name_can_be_taken_away_while_one_is_being_removed(
    root: Path,
) -> None:
    for _ in range(2):
        (root / "uid-a").mkdir()
        for number in range(1500):
            (root / "uid-a" / f"{number}").touch()
        taken_away(root / "uid-a")

    assert len(removal.quarantined_in(root)) == 2


def test_what_is_being_removed_is_no_claims_folder(root: Path) -> None:
    for name in ("uid-a", ".uid-b.0123.removed"):
        (root / name).mkdir()
    (root / "file").touch()

    assert FILES.names(str(root)) == {"uid-a", ".uid-b.0123.removed"}
    assert FILES.names(str(root / "none")) == frozenset()
    assert removal.quarantined_in(root) == [root / ".uid-b.0123.removed"]
    assert removal.quarantined_in(root / "none") == []


def test_a_place_that_cannot_be_read_is_told_by_its_path(root: Path) -> None:
    (root / "file").touch()

    with pytest.raises(RetryableError, match="file"):
        FILES.names(str(root / "file"))
