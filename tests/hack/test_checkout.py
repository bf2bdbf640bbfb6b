"""Commands in hack that are started with a Python that lacks their packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guard import sitecustomize as path_guard
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
COMMANDS = [
    file.name
    for file in sorted((ROOT / "hack").iterdir())
    if file.is_file() and file.read_bytes().startswith(b"#!/usr/bin/env python3\n")
]
NEED_NONE = {"new-provider", "release-version"}
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
