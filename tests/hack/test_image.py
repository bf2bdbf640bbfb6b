"""hack/image says at once what a machine lacks, before anything is made."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.markdown import ROOT
from tests.support.waiting import PATIENCE_SECONDS

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
        tmp_path, user='[ "$1" = -u ] && echo 1000 || echo ada', system=LINUX, ARCH="riscv64"
    )

    assert status == 1
    assert "ARCH: found riscv64, expected amd64 or arm64" in said
    assert "user: found ada, expected root" in said
    assert "apt-get install buildah debootstrap git" in said
    assert "docker build --tag tensorfusion-dra:" in said


def test_another_system_is_named(tmp_path: Path) -> None:
    status, said = checked(
        tmp_path, user=ROOT_USER, system='[ "$1" = -m ] && echo x86_64 || echo Darwin'
    )

    assert (status, "system: found Darwin, expected Linux" in said) == (1, True)


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
