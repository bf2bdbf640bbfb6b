"""Removal of a claim's folder, whatever containers put into it."""

import os
from pathlib import Path

import pytest

from tensorfusion_dra.state import folders
from tests.support.capabilities import give_to_a_container, without_capabilities


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "claims"
    path.mkdir()
    return path


def removed(root: Path) -> list[Path]:
    return list(root.glob(folders.REMOVED))


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

    folders.remove(claim)

    assert list(root.iterdir()) == []
    assert (elsewhere / "kept").read_text() == "kept"


def test_removing_a_missing_folder_does_nothing(root: Path) -> None:
    folders.remove(root / "uid-a")
    folders.remove(root / "none" / "uid-a")

    assert list(root.iterdir()) == []


def test_link_in_place_of_the_folder_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (root / "uid-a").symlink_to(tmp_path / "kept")

    folders.remove(root / "uid-a")

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

    folders.remove(claim)
    assert folders.delete_removed(removed(root)) == []

    assert list(root.iterdir()) == []


def test_large_folder_leaves_its_path_at_once_and_is_deleted_later(root: Path) -> None:
    for _ in range(2):  # another one may be there by then
        claim = root / "uid-a"
        (claim / "deep").mkdir(parents=True)
        for number in range(800):
            (claim / f"{number}").touch()
            (claim / "deep" / f"{number}").touch()

        folders.remove(claim)

        assert not claim.exists()
    assert len(removed(root)) == 2

    assert folders.delete_removed(removed(root)) == []

    assert list(root.iterdir()) == []


def test_name_of_the_greatest_length_can_be_removed(root: Path) -> None:
    (root / ("a" * 255)).mkdir()

    folders.remove(root / ("a" * 255))

    assert list(root.iterdir()) == []


def test_all_is_deleted_but_what_a_container_locked(root: Path) -> None:
    for name, mode in (("read", 0o700), ("written", 0o755), ("empty", 0)):
        inner = root / "uid-a" / "theirs" / name
        inner.mkdir(parents=True)
        if name != "empty":
            (inner / "file").touch()
        give_to_a_container(inner, mode)
    for number in range(20):
        (root / "uid-a" / "ours" / f"{number}" / "deep").mkdir(parents=True)

    with without_capabilities():
        folders.remove(root / "uid-a")
        left = folders.delete_removed(removed(root))

    (folder,) = removed(root)
    assert left == [f"{folder}: Permission denied"]
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["file", "file"]
    assert not any(path.name in {"ours", "deep", "empty"} for path in folder.rglob("*"))


@pytest.mark.parametrize("inner", ["", "deep"])
def test_deletion_ends_although_a_container_adds_files(
    root: Path, inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = root / "uid-a" / inner
    folder.mkdir(parents=True)
    unlink = os.unlink

    def unlink_and_add(name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        os.close(os.open(f"{name}+"[-200:], os.O_CREAT, dir_fd=dir_fd))

    (folder / "file").touch()
    monkeypatch.setattr(os, "unlink", unlink_and_add)
    folders.remove(root / "uid-a")
    left = folders.delete_removed(removed(root))

    assert left == []
    assert len(removed(root)) == 1
