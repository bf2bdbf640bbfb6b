"""The script that brings HAMi-core's library to a node, run by the machine's sh."""

import os
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.daemonset import scripts
from tests.daemonset.scripts import Container

pytestmark = pytest.mark.process

INSTALL: Final = scripts.container("hami-core-install", "install")
LIBRARY: Final = b"\x7fELF" + bytes(range(256)) * 9000
OTHER: Final = b"\x7fELF another version"


class Node(Container):
    """The container on a node, with an image that has the library."""

    @property
    def folder(self) -> Path:
        return self.root / "usr" / "local" / "vgpu"

    @property
    def library(self) -> Path:
        return self.folder / "libvgpu.so.v1"

    @property
    def image(self) -> Path:
        return self.root / "image"

    def names(self) -> list[str]:
        """Return the files in the node's folder."""
        return [path.name for path in self.folder.iterdir()] if self.folder.exists() else []


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        Path(made).chmod(0o755)
        node = Node(of=INSTALL, root=Path(made))
        source = f"{node.image}/libvgpu.so*"
        node.given.update(FOLDER=str(node.folder), SOURCE=source, VERSION="v1")
        node.image.mkdir()
        (node.image / "libvgpu.so.v1").write_bytes(LIBRARY)
        yield node


def test_library_is_installed_readable_and_unchangeable(node: Node) -> None:
    status, output = node.run()

    assert (status, node.library.read_bytes()) == (0, LIBRARY), output
    assert stat.S_IMODE(node.library.stat().st_mode) == 0o555
    assert node.names() == ["libvgpu.so.v1"]


def test_second_run_changes_nothing(node: Node) -> None:
    node.run()
    before = [changes(path) for path in (node.library, node.folder)]

    status, output = node.run()

    assert (status, "is there already" in output) == (0, True)
    assert [changes(path) for path in (node.library, node.folder)] == before


def changes(path: Path) -> tuple[int, int, int]:
    """Return what tells a changed file from one that was only read."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def test_other_content_under_the_same_name_is_kept_and_an_error(node: Node) -> None:
    node.run()
    (node.image / "libvgpu.so.v1").write_bytes(OTHER)

    status, output = node.run()

    assert status == 1
    assert (
        f"{node.library}: found another content than that of {node.image}/libvgpu.so.v1" in output
    )
    assert node.library.read_bytes() == LIBRARY


def test_another_version_is_a_file_beside_the_first(node: Node) -> None:
    node.run()
    (node.image / "libvgpu.so.v1").write_bytes(OTHER)
    first = node.library.stat()

    node.given.update(VERSION="v2")

    status, output = node.run()

    assert status == 0, output
    assert node.library.with_name("libvgpu.so.v2").read_bytes() == OTHER
    assert (node.library.stat(), node.library.read_bytes()) == (first, LIBRARY)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (
            "dd",
            'case "$2" in of=*) head -c 9 "${1#if=}" >"${2#of=}"; kill -9 0;; esac; /bin/dd "$@"',
        ),
        ("ln", "kill -9 0"),
        ("chmod", "kill -9 0"),
    ],
    ids=["while it writes", "before the name", "before the mode"],
)
def test_interrupted_installation_leaves_no_library_and_the_next_one_succeeds(
    node: Node, program: str, text: str
) -> None:
    node.put_program(program, f"#!/bin/sh\n{text}\n")

    status, _ = node.run()
    assert status == -9
    assert [name[:14] for name in node.names()] == [".libvgpu.so.v1"]
    (node.root / "bin" / program).unlink()
    status, output = node.run()

    assert (status, node.library.read_bytes()) == (0, LIBRARY), output
    assert node.names() == ["libvgpu.so.v1"]


def test_two_at_once_never_leave_half_a_library(node: Node) -> None:
    with ThreadPoolExecutor(4) as pool:
        ended = [each.result() for each in [pool.submit(node.run) for _ in range(4)]]

    assert node.library.read_bytes() == LIBRARY, ended
    assert node.run()[0] == 0
    assert node.names() == ["libvgpu.so.v1"]


@pytest.mark.parametrize(
    ("has_library", "status", "text"),
    [(False, 1, "/usr/local/vgpu: cannot be written"), (True, 0, "is there already")],
)
def test_read_only_folder_is_an_error_unless_it_has_the_library(
    node: Node, has_library: bool, status: int, text: str
) -> None:
    node.folder.mkdir(parents=True)
    if has_library:
        node.run()
    node.folder.chmod(0o555)
    # Permissions do not restrict root.
    other_user = 65534 if os.geteuid() == 0 else None

    found, output = node.run(user=other_user)

    assert (found, text in output) == (status, True)


def test_full_disk_is_an_error_and_leaves_no_library(node: Node) -> None:
    refused = '#!/bin/sh\ncase "$2" in of=*) echo "no room" >&2; exit 1;; esac; exec /bin/dd "$@"\n'
    node.put_program("dd", refused)

    status, output = node.run()

    assert (status, "no room" in output, node.library.exists()) == (1, True, False)


@pytest.mark.parametrize("files", [{}, {"libvgpu.so.v1": LIBRARY, "libvgpu.so.v2": LIBRARY}])
def test_pattern_has_to_match_one_file(node: Node, files: dict[str, bytes]) -> None:
    (node.image / "libvgpu.so.v1").unlink()
    for name, content in files.items():
        (node.image / name).write_bytes(content)

    status, output = node.run()

    assert (status, "expected one file in the image" in output) == (1, True)
    assert node.names() == []


def test_file_that_is_no_library_is_refused(node: Node) -> None:
    (node.image / "libvgpu.so.v1").write_text("<html>not found</html>")

    status, output = node.run()

    assert (status, "found no shared library" in output) == (1, True)
    assert not node.library.exists()


def test_driver_looks_for_the_library_under_the_name_that_is_installed() -> None:
    env = scripts.variables(INSTALL)
    plugin = scripts.container("hami-core-install", "node-plugin")
    settings = {entry["name"]: entry.get("value") for entry in plugin["env"]}

    library = f"{env['FOLDER']}/libvgpu.so.{env['VERSION']}"
    assert settings["TENSORFUSION_DRA_HAMI_CORE_LIBRARY"] == library
