"""Which folder `make` uses for the Python that PYTHON names."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_SECONDS

MAKEFILE = Path(__file__).parents[2] / "Makefile"
OWN = f"python{sys.version_info.major}.{sys.version_info.minor}"
OWN_FOLDER = f".venv-{OWN.removeprefix('python')}"


def make(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `make --dry-run types`, which prints the command with its interpreter."""
    shutil.copy(MAKEFILE, folder)
    return subprocess.run(
        ["make", "--dry-run", "types", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )


@pytest.mark.parametrize(
    ("version_of_venv", "python", "used"),
    [
        (None, None, ".venv"),
        (None, sys.executable, ".venv"),
        (OWN, sys.executable, ".venv"),
        ("python3.10", None, ".venv"),
        ("python3.10", sys.executable, OWN_FOLDER),
    ],
)
def test_python_of_another_version_has_a_folder_of_its_own(
    tmp_path: Path, version_of_venv: str | None, python: str | None, used: str
) -> None:
    if version_of_venv:
        (tmp_path / ".venv/bin").mkdir(parents=True)
        (tmp_path / ".venv/bin/python").touch()
        (tmp_path / ".venv/lib" / version_of_venv).mkdir(parents=True)

    ended = make(tmp_path, *([f"PYTHON={python}"] if python else []))

    assert ended.stdout == f"{used}/bin/python -m mypy\n"


def test_python_that_does_not_start_is_an_error_and_no_other_is_used(tmp_path: Path) -> None:
    ended = make(tmp_path, "PYTHON=/nonexistent/python3")

    assert ended.returncode != 0
    assert ended.stdout == ""
    assert "PYTHON=/nonexistent/python3: expected Python 3.11 or later" in ended.stderr
