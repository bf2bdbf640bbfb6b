"""The checkout that the commands of this folder belong to, and a Python that has its packages."""

import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parent.parent
_VENV: Final = _ROOT / ".venv"


def with_packages(name: str) -> str:
    """Return the checkout's folder, to import from; this Python has its packages.

    If it lacks some, the command starts again with the Python in .venv, or ends if that lacks them
    too.

    Args:
        name: List of packages in hack/requirements, without `.txt`.
    """
    if lacked := _lacked(name):
        python = _VENV / "bin/python"
        if python.exists() and not _VENV.samefile(sys.prefix):
            os.execv(python, [str(python), *sys.argv])
        sys.exit(
            f"{sys.argv[0]}: {sys.executable} lacks {len(lacked)} packages, such as {lacked[0]}:"
            f" expected those of hack/requirements/{name}.txt"
            f" (make -C {_ROOT} .venv/{name}.stamp, then run this command again)"
        )
    return str(_ROOT)


def _lacked(name: str) -> list[str]:
    lines = (_ROOT / f"hack/requirements/{name}.txt").read_text().splitlines()
    # The first line names the list that this one contains.
    contained = lines[0].removeprefix("-r ").removesuffix(".txt") if lines[0][:3] == "-r " else ""
    # Those with a condition, after a semicolon, are not needed everywhere.
    pinned = [line.split("==")[0] for line in lines if "==" in line and ";" not in line]
    below = _lacked(contained) if contained else []
    return [*below, *(package for package in pinned if not _has(package))]


def _has(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True
