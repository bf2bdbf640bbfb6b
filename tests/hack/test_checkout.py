"""Commands in hack: what they need of a machine, what they refuse, and what they leave behind."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hypervisor import node
from tests.guard import sitecustomize as path_guard
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
COMMANDS = [
    file.name
    for file in sorted((ROOT / "hack").iterdir())
    if file.is_file() and file.read_bytes().startswith(b"#!/usr/bin/env python3\n")
]
NEED_NONE = {"new-provider", "release-files", "release-version"}
NEED_DEV = {"manifests", "mps-check", "status-screenshots"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without .venv."""
    shutil.copytree(ROOT / "hack", tmp_path / "hack", symlinks=True)
    (tmp_path / "tensorfusion_dra").symlink_to(ROOT / "tensorfusion_dra")
    return tmp_path


def run(checkout: Path, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    # -S hides installed packages.
    return subprocess.run(
        [sys.executable, "-S", f"hack/{command}", *arguments],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=path_guard.environment({"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}),
    )


@pytest.mark.parametrize("command", [each for each in COMMANDS if each not in NEED_NONE])
def test_command_without_its_packages_says_how_to_install_them(
    checkout: Path, command: str
) -> None:
    ended = run(checkout, command, "--help")

    packages = "dev" if command in NEED_DEV else "demo"
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"hack/{command}: {sys.executable} lacks ")
    assert f"(make -C {checkout} .venv/{packages}.stamp," in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", sorted(NEED_NONE))
def test_command_that_needs_no_packages_works_without(checkout: Path, command: str) -> None:
    ended = run(checkout, command, "--help")

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_needs_no_other_program(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [command, "--help"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "hack" / command), run_name="__main__")

    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


KUBECTL = """#!/bin/sh
echo "$1 $2" >> calls
[ "$1 $2" != "get deviceclass" ] || printf %s "$STORED"
"""


@pytest.mark.parametrize(
    ("stored", "changes"),
    [("", ["create -f", "delete deviceclass"]), ("deviceclass/tensor-fusion.ai", [])],
)
def test_hypervisor_check_leaves_cluster_and_node_as_they_were(
    stored: str, changes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("STORED", stored)
    monkeypatch.chdir(tmp_path)
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()

    def fail() -> None:
        with node.new_folders_removed([old, new]), node.device_class():
            (old / "file").touch()
            (new / "shm").mkdir(parents=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert (tmp_path / "calls").read_text().splitlines() == ["get deviceclass", *changes]
    assert (old / "file").exists()
    assert not new.exists()


def test_command_goes_on_with_the_python_in_venv(checkout: Path) -> None:
    python = checkout / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    python.chmod(0o755)

    ended = run(checkout, "gpu-check", "--out", "a folder")

    assert ended.stdout.splitlines() == ["hack/gpu-check", "--out", "a folder"]


def test_venv_that_lacks_the_packages_too_ends_the_command(checkout: Path) -> None:
    home = Path(sys.base_prefix) / "bin"
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/pyvenv.cfg").write_text(f"home = {home}\n")
    (checkout / ".venv/bin/python").symlink_to(home / f"python3.{sys.version_info.minor}")

    ended = run(checkout, "gpu-check", "--help")

    assert ended.returncode == 1
    assert f"{checkout}/.venv/bin/python lacks " in ended.stderr


NEEDED = ("bash", "dirname", "id", "sed", "uname")
"""Programs that the check itself uses."""


def checked(programs: Path, *, user: str, system: str, **env: str) -> tuple[int, str]:
    """Run the check with the programs of a folder, as a user and on a system with these names."""
    for name in NEEDED:
        (programs / name).symlink_to(shutil.which(name) or name)
    for name, answer in (("id", user), ("uname", system)):
        (programs / name).unlink()
        (programs / name).write_text(f"#!/bin/sh\n{answer}\n")
        (programs / name).chmod(0o755)
    ended = subprocess.run(
        [shutil.which("bash") or "bash", ROOT / "hack" / "image", "--check"],
        env={"PATH": str(programs), **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


ROOT_USER = "echo 0"
LINUX = '[ "$1" = -m ] && echo x86_64 || echo Linux'


def test_everything_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    status, said = checked(
        tmp_path,
        user='[ "$1" = -u ] && echo 1000 || echo ada',
        system='[ "$1" = -m ] && echo x86_64 || echo Darwin',
        ARCH="riscv64",
    )

    assert status == 1
    for line in (
        "system: found Darwin, expected Linux",
        "ARCH: found riscv64, expected amd64 or arm64",
        "user: found ada, expected root",
        "apt-get install buildah debootstrap git",
        "docker build --tag tensorfusion-dra:",
    ):
        assert line in said


def test_machine_that_has_everything_passes(tmp_path: Path) -> None:
    for name in ("buildah", "debootstrap", "git"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)

    assert checked(tmp_path, user=ROOT_USER, system=LINUX) == (0, "")


@pytest.mark.skipif(shutil.which("make") is None, reason="found no make on PATH")
def test_make_image_makes_no_environment_on_a_machine_that_lacks_something(tmp_path: Path) -> None:
    for name in ("Makefile", "hack", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)

    ended = subprocess.run(
        ["make", "image"],
        cwd=tmp_path,
        env={**os.environ, "ARCH": "riscv64"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert ended.returncode == 2
    assert "ARCH: found riscv64" in ended.stderr
    assert not (tmp_path / ".venv").exists()
