"""Files that must exist on the host, and folders that are created there for a claim."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.enforcers.enforcer import Folder, Needs, TextFile
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state.host_files import HostFiles

FILES = HostFiles(Path("/nowhere"))


@pytest.fixture(params=[0o077, 0o000], ids=["narrow", "wide"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def folder(path: Path, mode: int = 0o777) -> Needs:
    return Needs(folders=(Folder(path=str(path), mode=mode),))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("wanted", [0o755, 0o777, 0o1777, 0o700])
def test_folder_gets_its_exact_mode_and_readable_parents(tmp_path: Path, wanted: int) -> None:
    FILES.provide(folder(tmp_path / "a" / "b" / "c", wanted))

    assert mode(tmp_path / "a" / "b" / "c") == wanted
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o755


def test_existing_folder_keeps_its_content_and_gets_its_mode(tmp_path: Path) -> None:
    (tmp_path / "claim").mkdir(mode=0o700)
    (tmp_path / "claim" / "gpu.cache").write_text("kept")

    FILES.provide(folder(tmp_path / "claim"))
    FILES.provide(folder(tmp_path / "claim"))

    assert mode(tmp_path / "claim") == 0o777
    assert (tmp_path / "claim" / "gpu.cache").read_text() == "kept"


def test_existing_parents_keep_their_mode(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root").chmod(0o711)

    FILES.provide(folder(tmp_path / "root" / "claim"))

    assert mode(tmp_path / "root") == 0o711


def test_required_files_may_be_of_any_kind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "control")
    (tmp_path / "library").write_bytes(b"")
    (tmp_path / "link").symlink_to("library")
    files = (tmp_path, tmp_path / "control", tmp_path / "library", tmp_path / "link")

    assert FILES.missing(Needs(files=tuple(map(str, files)))) == ""

    assert sorted(path.name for path in tmp_path.iterdir()) == ["control", "library", "link"]


def test_missing_file_is_named_with_its_path(tmp_path: Path) -> None:
    missing = tmp_path / "libvgpu.so.1"

    found = FILES.missing(Needs(files=(str(missing),)))

    assert found == f"{missing}: No such file or directory"


def test_link_in_place_of_a_folder_is_refused_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "claim").symlink_to("elsewhere")

    with pytest.raises(RetryableError, match="claim: found something else, expected a folder"):
        FILES.provide(folder(tmp_path / "claim"))
    FILES.remove(str(tmp_path / "claim"))

    assert mode(tmp_path / "elsewhere") == 0o700
    assert (tmp_path / "claim").is_symlink()


@pytest.mark.parametrize("place", ["claim", "claim/deeper"])
def test_file_in_place_of_a_folder_is_refused_and_kept(tmp_path: Path, place: str) -> None:
    (tmp_path / "claim").write_text("kept")

    with pytest.raises(RetryableError, match="claim"):
        FILES.provide(folder(tmp_path / place))
    FILES.remove(str(tmp_path / place))

    assert (tmp_path / "claim").read_text() == "kept"


def text(path: Path, content: str = "/limiter.so\n") -> Needs:
    return Needs(texts=(TextFile(path=str(path), text=content),))


@pytest.mark.usefixtures("umask")
def test_text_is_written_for_every_user_to_read_and_changed_when_it_differs(tmp_path: Path) -> None:
    file = tmp_path / "preload" / "ld.so.preload"

    FILES.provide(text(file, "/old.so\n"))
    FILES.provide(text(file))

    assert file.read_text() == "/limiter.so\n"
    assert (mode(file), mode(file.parent)) == (0o644, 0o755)
    assert [each.name for each in file.parent.iterdir()] == ["ld.so.preload"]


def test_text_that_is_right_is_not_written_again(tmp_path: Path) -> None:
    file = tmp_path / "ld.so.preload"
    FILES.provide(text(file))
    before = file.stat().st_ino

    FILES.provide(text(file))

    assert file.stat().st_ino == before
