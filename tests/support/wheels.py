"""Installation of a package from a folder, without a network, as an author would do it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.guard import sitecustomize as path_guard
from tests.support.forks import ROOT, Ended
from tests.support.waiting import PATIENCE_SECONDS

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def install(source: Path, target: Path) -> None:
    """Install the package of a folder into a folder for PYTHONPATH.

    This is what pip does without isolation and dependencies: it calls the package's build backend
    and unpacks the wheel. pip itself also reads files of the machine.
    """
    wheels = target.parent / f"{source.name}-wheel"
    wheels.mkdir()
    python("-c", BUILD, str(wheels), home=wheels, folder=source)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)


def python(
    *arguments: str, home: Path, folder: Path = ROOT, path: str = "", **variables: str
) -> Ended:
    """Run Python, and fail unless it succeeds; return what it printed.

    Args:
        home: A folder of the test, in place of the user's.
        folder: Working folder.
        path: PYTHONPATH.
        variables: Further environment.
    """
    environment = path_guard.environment(
        {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PYTHONPATH": path,
            **variables,
        }
    )
    ended = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended
