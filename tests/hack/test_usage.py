"""Scripts in hack answer --help, and refuse an unknown option, before they do anything."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guard import sitecustomize as path_guard
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    file.name
    for file in sorted((ROOT / "hack").iterdir())
    if file.is_file() and os.access(file, os.X_OK)
]
SHELL = [
    name for name in SCRIPTS if (ROOT / "hack" / name).read_text().startswith("#!/usr/bin/env bash")
]
LINKED = ("tensorfusion_dra", "dra_simulator", "tests", "daemonset", "proto", "pyproject.toml")
TOOLS = (
    "bash",
    "env",
    "dirname",
    "awk",
    "sed",
    "cat",
    "mkdir",
    "mktemp",
    "rm",
    "cp",
    "uname",
    "id",
)


class Machine:
    """A copy of the scripts, and a machine that has nothing but a shell, Python and these tools."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.home, self.programs = (
            folder / name for name in ("checkout", "home", "bin")
        )
        shutil.copytree(ROOT / "hack", self.checkout / "hack", symlinks=True)
        for name in LINKED:
            (self.checkout / name).symlink_to(ROOT / name)
        (self.checkout / "dist/upgrade").mkdir(parents=True)
        self.home.mkdir()
        self.programs.mkdir()
        for name in TOOLS:
            (self.programs / name).symlink_to(str(shutil.which(name)))
        python = self.programs / "python3"
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a script, and check that it leaves no file and removes none."""
        before = self._files()
        environment = {
            "PATH": str(self.programs),
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        ended = subprocess.run(
            [f"hack/{script}", *arguments],
            cwd=self.checkout,
            env=path_guard.environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert self._files() == before
        return ended

    def _files(self) -> dict[str, int]:
        return {
            str(file): file.lstat().st_mtime_ns
            for folder in (self.checkout, self.home)
            for file in (folder, *folder.rglob("*"))
        }


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_the_usage(script: str, machine: Machine) -> None:
    for flag in ("--help", "-h"):
        helped = machine.run(script, flag)

        assert (helped.returncode, helped.stderr) == (0, "")
        assert f"hack/{script}" in helped.stdout or helped.stdout.startswith("usage: ")


@pytest.mark.parametrize("script", [name for name in SHELL if name != "bare-machine"])
def test_help_is_the_usage_after_any_other_argument(script: str, machine: Machine) -> None:
    for flag in ("--help", "-h"):
        helped = machine.run(script, "cluster-up", "--bin", "folder", flag, "other")

        assert (helped.returncode, helped.stderr) == (0, "")
        assert f"hack/{script}" in helped.stdout


@pytest.mark.parametrize(
    ("typed", "printed"),
    [("--as root --help", "usage: hack/bare-machine"), ("cat --help", "Usage: cat")],
)
def test_help_after_a_command_on_a_bare_machine_is_the_commands(
    typed: str, printed: str, machine: Machine
) -> None:
    ended = machine.run("bare-machine", *typed.split())

    assert ended.returncode == 0
    assert printed in ended.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_unknown_option_is_refused(script: str, machine: Machine) -> None:
    refused = machine.run(script, "--hlep")

    # The options of lock are those of uv, which this machine does not have.
    assert (refused.returncode, refused.stdout) == (1 if script == "lock" else 2, "")
    assert refused.stderr
