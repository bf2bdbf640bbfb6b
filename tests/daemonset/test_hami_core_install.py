"""The script that brings HAMi-core's library to a node, run by the machine's sh."""

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.daemonset import scripts
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

INSTALL: Final = scripts.container("hami-core-install", "install")
LIBRARY: Final = b"\x7fELF" + bytes(range(256)) * 9000
OTHER: Final = b"\x7fELF another version"
NOBODY: Final = 65534


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node's folder, an image's folder with the library, and programs before those of PATH."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.root / "usr" / "local" / "vgpu"

    @property
    def library(self) -> Path:
        return self.folder / "libvgpu.so.v1"

    @property
    def image(self) -> Path:
        return self.root / "image"

    def put_in_image(self, content: bytes, name: str = "libvgpu.so.v1") -> None:
        self.image.mkdir(exist_ok=True)
        (self.image / name).write_bytes(content)

    def environment(self) -> dict[str, str]:
        own = {"FOLDER": str(self.folder), "SOURCE": f"{self.image}/libvgpu.so*", "VERSION": "v1"}
        programs = {"PATH": scripts.path_with(self.root / "bin")}
        return {**os.environ, **scripts.variables(INSTALL), **own, **programs}

    def start(self, user: int | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            scripts.command(INSTALL),
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            user=user,
        )

    def install(self, user: int | None = None) -> tuple[int, str]:
        """Return the exit status and the output."""
        process = self.start(user)
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, output


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        Path(made).chmod(0o755)
        node = Node(root=Path(made))
        node.put_in_image(LIBRARY)
        yield node


def test_library_is_installed_readable_and_unchangeable(node: Node) -> None:
    status, output = node.install()

    assert (status, node.library.read_bytes()) == (0, LIBRARY), output
    assert stat.S_IMODE(node.library.stat().st_mode) == 0o555
    assert [path.name for path in node.folder.iterdir()] == ["libvgpu.so.v1"]


def test_second_run_changes_nothing(node: Node) -> None:
    node.install()
    before = [changes(path) for path in (node.library, node.folder)]

    status, output = node.install()

    assert (status, "is there already" in output) == (0, True)
    assert [changes(path) for path in (node.library, node.folder)] == before


def changes(path: Path) -> tuple[int, int, int]:
    """Return what tells a changed file from one that was only read."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def test_other_content_under_the_same_name_is_kept_and_an_error(node: Node) -> None:
    node.install()
    node.put_in_image(OTHER)

    status, output = node.install()

    assert status == 1
    assert (
        f"{node.library}: found another content than that of {node.image}/libvgpu.so.v1" in output
    )
    assert node.library.read_bytes() == LIBRARY


def test_another_version_is_a_file_beside_the_first(node: Node) -> None:
    node.install()
    node.put_in_image(OTHER)
    first = node.library.stat()

    done = scripts.run(scripts.command(INSTALL), {**node.environment(), "VERSION": "v2"})

    assert done.returncode == 0, done.stderr
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
    scripts.put_program(node.root / "bin", program, f"#!/bin/sh\n{text}\n")

    status, _ = node.install()
    assert status == -9
    left = [path.name for path in node.folder.iterdir()]
    assert [name[:14] for name in left] == [".libvgpu.so.v1"]
    (node.root / "bin" / program).unlink()
    status, output = node.install()

    assert (status, node.library.read_bytes()) == (0, LIBRARY), output
    assert [path.name for path in node.folder.iterdir()] == ["libvgpu.so.v1"]


def test_two_at_once_never_leave_half_a_library(node: Node) -> None:
    processes = [node.start() for _ in range(4)]
    outputs = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in processes]

    assert node.library.read_bytes() == LIBRARY, outputs
    assert node.install()[0] == 0
    assert [path.name for path in node.folder.iterdir()] == ["libvgpu.so.v1"]


def other_user() -> int | None:
    """Return a user that is not root, since permissions do not restrict root; None for this one."""
    return NOBODY if os.geteuid() == 0 else None


def test_read_only_folder_is_an_error_that_names_it(node: Node) -> None:
    node.folder.mkdir(parents=True)
    node.folder.chmod(0o555)

    status, output = node.install(other_user())

    assert (status, f"{node.folder}: cannot be written" in output) == (1, True)


def test_read_only_folder_that_has_the_library_is_fine(node: Node) -> None:
    node.install()
    node.folder.chmod(0o555)

    status, output = node.install(other_user())

    assert (status, "is there already" in output) == (0, True)


def test_full_disk_is_an_error_and_leaves_no_library(node: Node) -> None:
    refused = '#!/bin/sh\ncase "$2" in of=*) echo "no room" >&2; exit 1;; esac; exec /bin/dd "$@"\n'
    scripts.put_program(node.root / "bin", "dd", refused)

    status, output = node.install()

    assert (status, "no room" in output, node.library.exists()) == (1, True, False)


@pytest.mark.parametrize("files", [{}, {"libvgpu.so.v1": LIBRARY, "libvgpu.so.v2": LIBRARY}])
def test_pattern_has_to_match_one_file(node: Node, files: dict[str, bytes]) -> None:
    (node.image / "libvgpu.so.v1").unlink()
    for name, content in files.items():
        node.put_in_image(content, name)

    status, output = node.install()

    assert (status, "expected one file in the image" in output) == (1, True)
    assert not node.folder.exists() or not list(node.folder.iterdir())


def test_file_that_is_no_library_is_refused(node: Node) -> None:
    node.put_in_image(b"<html>not found</html>")

    status, output = node.install()

    assert (status, "found no shared library" in output) == (1, True)
    assert not node.library.exists()


def test_driver_looks_for_the_library_under_the_name_that_is_installed() -> None:
    env = scripts.variables(INSTALL)
    plugin = scripts.container("hami-core-install", "node-plugin")
    settings = {entry["name"]: entry.get("value") for entry in plugin["env"]}

    library = f"{env['FOLDER']}/libvgpu.so.{env['VERSION']}"
    assert settings["TENSORFUSION_DRA_HAMI_CORE_LIBRARY"] == library
