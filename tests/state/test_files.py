"""Files, folders and sockets of a claim, which other programs and containers read and write."""

import json
import os
import re
import resource
import signal
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.claims.enforcer import Folder, Needs, TextFile
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import atomic, claim_files, folders, unix_sockets
from tensorfusion_dra.state.claim_files import ClaimFiles, HostFiles
from tensorfusion_dra.state.saved_state import CARDS, SavedState
from tests.state.child import running_child
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import claim_record
from tests.support.builders.gpus import gpu
from tests.support.builders.nodes import ENFORCER, node_facts
from tests.support.capabilities import give_to_a_container, without_capabilities
from tests.support.disk import read_only
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture(params=[0o077, 0o000], ids=["narrow", "wide"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_mode_does_not_depend_on_the_umask_or_the_old_file(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.json"
    for old in (b"", b"old"):
        atomic.write(path, old, mode=0o777)

    atomic.write(path, b"new", mode=mode)

    assert (names(tmp_path), path.read_bytes()) == (["a.json"], b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.process
def test_interrupted_write_keeps_the_old_file_and_leaves_only_an_ignored_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    with running_child("write_and_die", path, "new") as process:
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL

    (unfinished,) = atomic.unfinished(tmp_path, prefix="a", suffix=".json")
    assert re.fullmatch(r"\..*\.tmp", unfinished.name)
    assert (path.read_bytes(), unfinished.read_bytes()) == (b"old", b"new")
    assert sorted(tmp_path.iterdir()) == [unfinished, path]
    atomic.write(path, b"newer", mode=0o644)
    assert path.read_bytes() == b"newer"


@pytest.mark.process
def test_full_disk_leaves_only_the_old_file(tiny_disk: Path) -> None:
    path = tiny_disk / "a.json"
    atomic.write(path, b"old", mode=0o644)

    with pytest.raises(OSError, match="No space left"):
        atomic.write(path, b"n" * 1_000_000, mode=0o644)

    assert (names(tiny_disk), path.read_bytes()) == (["a.json"], b"old")


def test_link_is_replaced_but_not_its_target(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "a.json"
    target.write_bytes(b"target")
    link.symlink_to(target)

    atomic.write(link, b"new", mode=0o644)

    assert not link.is_symlink()
    assert (link.read_bytes(), target.read_bytes()) == (b"new", b"target")


NODE = node_facts(gpu())

(DEVICE,) = NODE.devices

UID = "uid-a"

FILE = "tensor-fusion.ai-vgpu_uid-a.json"


def spec(number: int = 1) -> dict[str, Any]:
    found = cdi.spec(claim_record("a", allocation(DEVICE, number), on=NODE), ENFORCER)
    assert found is not None
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def ensure(files: ClaimFiles, claim_uid: str, document: claim_files.Document) -> bool:
    """Write a claim's file unless it is as it should be; return True if it was written."""
    differing = claim_files.differing([files.made(claim_uid, document)])
    claim_files.write(differing)
    return bool(differing)


def test_spec_is_written_if_it_differs_and_removed(tmp_path: Path) -> None:
    specs = claim_files.cdi_specs(tmp_path)
    assert ensure(specs, UID, spec(2))
    assert ensure(specs, UID, spec())
    before = (tmp_path / FILE).stat()

    assert not ensure(specs, UID, spec())

    after = (tmp_path / FILE).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert (names(tmp_path), [*specs.claim_uids()]) == ([FILE], [UID])
    assert json.loads((tmp_path / FILE).read_text()) == spec()
    for _ in range(2):
        specs.remove(UID)
        assert names(tmp_path) == []


def test_only_our_files_are_counted_and_only_our_unfinished_ones_are_removed(
    tmp_path: Path,
) -> None:
    others = [
        *("nvidia.yaml", "tensor-fusion.ai-other_x.json", "uid-a.json", ".json", f".{FILE}"),
        *(FILE.replace("json", "yaml"), f"{FILE}.tmp", f".{FILE}.swp", ".nvidia.json.x1.tmp"),
    ]
    for name in (FILE, f".{FILE}.x1y2z3a4.tmp", *others):
        (tmp_path / name).write_text(name)
    specs = claim_files.cdi_specs(tmp_path)

    claim_files.cdi_specs(tmp_path / "missing").remove_unfinished()
    specs.remove_unfinished()

    assert names(tmp_path) == sorted([FILE, *others])
    assert specs.claim_uids() == {UID}
    specs.remove(UID)
    assert names(tmp_path) == sorted(others)
    assert all((tmp_path / name).read_text() == name for name in others)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(
    ("files", "mode"),
    [
        (claim_files.cdi_specs, 0o644),
        (claim_files.limits, 0o444),
        (claim_files.device_metadata, 0o644),
    ],
)
def test_files_and_their_new_folder_have_modes_for_their_readers(
    tmp_path: Path, files: Callable[[Path], ClaimFiles], mode: int
) -> None:
    folder = tmp_path / "new"
    assert files(folder).claim_uids() == frozenset()

    ensure(files(folder), UID, spec())

    (file,) = files(folder).folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == mode
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o755


def test_read_only_folder_fails_until_it_is_writable(reachable: Path) -> None:
    specs = claim_files.cdi_specs(reachable)
    ensure(specs, UID, spec(1))

    with read_only(reachable):
        with pytest.raises(RetryableError, match=f"CDI spec {reachable / FILE}: Permission denied"):
            ensure(specs, UID, spec(2))
        with pytest.raises(RetryableError, match="Permission denied"):
            specs.remove(UID)
        assert not ensure(specs, UID, spec(1))

    assert ensure(specs, UID, spec(2))


@pytest.mark.parametrize(
    "call", [lambda specs: ensure(specs, UID, {}), lambda s: s.remove(UID), ClaimFiles.claim_uids]
)
def test_file_in_place_of_the_folder_fails_every_call_with_the_path(
    tmp_path: Path, call: Callable[[ClaimFiles], object]
) -> None:
    (tmp_path / "cdi").write_text("")

    with pytest.raises(RetryableError, match=r"CDI spec .*cdi"):
        call(claim_files.cdi_specs(tmp_path / "cdi"))


@pytest.mark.parametrize("act", [lambda specs: ensure(specs, UID, {}), lambda s: s.remove(UID)])
def test_only_an_empty_folder_or_a_link_at_the_path_is_replaced(
    tmp_path: Path, act: Callable[[ClaimFiles], None]
) -> None:
    specs, file = claim_files.cdi_specs(tmp_path), tmp_path / FILE
    for kind in ("folder", "loop"):
        file.mkdir() if kind == "folder" else file.symlink_to(file)
        act(specs)
        assert file.is_file() or names(tmp_path) == []
        file.unlink(missing_ok=True)

    (file / "something").mkdir(parents=True)
    with pytest.raises(RetryableError, match=f"CDI spec {file}: Directory not empty"):
        act(specs)


FILES = HostFiles(Path("/nowhere"))


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


@pytest.mark.usefixtures("umask")
def test_text_is_written_for_every_user_to_read_and_changed_when_it_differs(tmp_path: Path) -> None:
    file = tmp_path / "preload" / "ld.so.preload"
    inodes = []
    for text in ("/old.so\n", "/limiter.so\n", "/limiter.so\n"):
        FILES.provide(Needs(texts=(TextFile(path=str(file), text=text),)))
        inodes.append(file.stat().st_ino)

    assert inodes[1] == inodes[2]
    assert (names(file.parent), file.read_text()) == (["ld.so.preload"], "/limiter.so\n")
    assert (mode(file), mode(file.parent)) == (0o644, 0o755)
    file.chmod(0o600)
    assert not FILES.has(Needs(texts=(TextFile(path=str(file), text=text),)))
    FILES.provide(Needs(texts=(TextFile(path=str(file), text=text),)))
    assert mode(file) == 0o644


def test_existing_folder_keeps_its_content_and_its_parents_their_modes(tmp_path: Path) -> None:
    parent, claim = tmp_path / "root", tmp_path / "root" / "claim"
    claim.mkdir(mode=0o700, parents=True)
    (claim / "gpu.cache").write_text("kept")
    parent.chmod(0o711)

    FILES.provide(folder(claim))

    assert (mode(parent), mode(claim)) == (0o711, 0o777)
    assert (claim / "gpu.cache").read_text() == "kept"


def test_required_files_may_be_of_any_kind_and_a_missing_one_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "control")
    (tmp_path / "library").write_bytes(b"")
    (tmp_path / "link").symlink_to("library")
    files = (str(tmp_path), *(str(path) for path in tmp_path.iterdir()))
    missing = str(tmp_path / "libvgpu.so.1")

    assert FILES.missing(Needs(files=files)) == ""
    assert FILES.missing(Needs(files=(*files, missing))) == f"{missing}: No such file or directory"
    assert names(tmp_path) == ["control", "library", "link"]


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
    elsewhere, claim = tmp_path / "elsewhere", root / "uid-a"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (claim / "deep" / "deeper").mkdir(parents=True)
    (claim / "gpu.cache").touch()
    (claim / "deep" / "deeper" / "file").touch()
    for link in (claim / "link", claim / "deep" / "link", root / "uid-b"):
        link.symlink_to(elsewhere)
    os.mkfifo(claim / "pipe")

    for path in (claim, root / "uid-b", root / "missing", root / "none" / "uid-c"):
        folders.remove(path)

    assert (names(root), names(elsewhere)) == (["uid-b"], ["kept"])


@pytest.fixture
def few_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_open_files")
def test_tree_deeper_than_the_limits_on_paths_and_open_files_is_removed(root: Path) -> None:
    claim = root / "uid-a"
    claim.mkdir()
    here = os.open(claim, os.O_RDONLY)
    for _ in range(1100):  # beyond the recursion limit of Python too
        os.mkdir("d" * 10, dir_fd=here)
        inner = os.open("d" * 10, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)

    folders.remove(claim)
    assert folders.delete_removed(removed(root)) == []

    assert list(root.iterdir()) == []


def test_large_folder_leaves_its_path_at_once_and_is_deleted_later(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_MAX_AT_ONCE", 10)
    for _ in range(2):  # another one may be there by then
        claim = root / ("a" * 255)  # the longest name
        (claim / "deep").mkdir(parents=True)
        for number in range(8):
            (claim / f"{number}").touch()
            (claim / "deep" / f"{number}").touch()

        folders.remove(claim)

        assert not claim.exists()
    assert len(removed(root)) == 2

    assert folders.delete_removed(removed(root)) == []

    assert list(root.iterdir()) == []


def test_all_is_deleted_but_what_a_container_locked(root: Path) -> None:
    theirs = root / "uid-a" / "theirs"
    for name, mode in (("read", 0o700), ("written", 0o755), ("empty", 0)):
        (theirs / name).mkdir(parents=True)
        if name != "empty":
            (theirs / name / "file").touch()
        give_to_a_container(theirs / name, mode)
    for number in range(20):
        (root / "uid-a" / "ours" / f"{number}" / "deep").mkdir(parents=True)

    with without_capabilities():
        folders.remove(root / "uid-a")
        left = folders.delete_removed(removed(root))

    (folder,) = removed(root)
    assert left == [f"{folder}: Permission denied"]
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    assert paths == [
        *("theirs", "theirs/read", "theirs/read/file", "theirs/written", "theirs/written/file")
    ]


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
    monkeypatch.setattr(folders, "_MAX_LATER", 200)
    monkeypatch.setattr(os, "unlink", unlink_and_add)
    folders.remove(root / "uid-a")

    assert folders.delete_removed(removed(root)) == []
    assert len(removed(root)) == 1


def test_saved_state_is_loaded_by_the_next_process(tmp_path: Path) -> None:
    first, folder = SavedState(tmp_path / "new", CARDS), tmp_path / "new"
    assert first.load() is None

    first.save({"cards": []})

    assert SavedState(folder, CARDS).load() == {"cards": []}
    assert mode(folder / CARDS) == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_damaged_file_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CARDS).write_bytes(content)

    assert SavedState(tmp_path, CARDS).load() is None


def test_failed_write_is_a_retryable_error(tmp_path: Path) -> None:
    (tmp_path / "folder").touch()

    with pytest.raises(RetryableError, match="saved state"):
        SavedState(tmp_path / "folder", CARDS).save({})


CONNECTED = pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])


@pytest.fixture
def control() -> Iterator[Path]:
    """Yield a path for a socket in a folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        yield Path(made) / "control"


@contextmanager
def listening(path: Path, kind: socket.SocketKind, *, queue: int = 8) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(str(path))
        server.listen(queue)
        yield server


@CONNECTED
def test_only_a_listening_process_is_enough_and_gets_no_byte(
    control: Path, kind: socket.SocketKind
) -> None:
    needs = Needs(sockets=(str(control),))
    with listening(control, kind) as server:
        assert FILES.missing(needs) == ""

        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b""

    assert control.is_socket()
    assert FILES.missing(needs).startswith(f"{control}: found a socket of an ended process")


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, os.mkfifo])
def test_other_kinds_of_files_are_no_sockets(control: Path, make: Callable[[Path], None]) -> None:
    make(control)

    assert "found no socket, expected one" in unix_sockets.reason(str(control))


@CONNECTED
def test_hung_process_with_a_full_queue_is_refused_without_waiting(
    control: Path, kind: socket.SocketKind
) -> None:
    with listening(control, kind, queue=0), socket.socket(socket.AF_UNIX, kind) as waiting:
        waiting.connect(str(control))
        reason = unix_sockets.reason(str(control))

    assert "found a process that accepts no connections" in reason


def test_datagram_socket_accepts_no_connections(control: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(control))

        assert "found a datagram socket" in unix_sockets.reason(str(control))


def test_path_beyond_the_kernels_limit_is_an_error(tmp_path: Path) -> None:
    long = tmp_path / ("a" * 120)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        folder = os.open(tmp_path, os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{folder}/s")
        finally:
            os.close(folder)
    (tmp_path / "s").rename(long)

    assert unix_sockets.reason(str(long)) == "AF_UNIX path too long"
