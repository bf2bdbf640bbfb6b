"""Processes that find the packages of the image, and none that only development needs.

Some libraries load optional ones that they find: structlog loads rich and greenlet, 4 MB. The image
has neither.
"""

import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

import pytest

from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.app.simulate.plugin_process import Process
from tests.support import markdown, pod_login

_LOCK: Final = markdown.ROOT / "hack" / "requirements" / "run.txt"
MEMORY_BUDGET_BYTES: Final = (64 if sys.version_info < (3, 14) else 76) * 2**20
"""Of an idle node plugin. The image has Python 3.13; Python 3.14 needs 8 MiB more."""

_KEPT: Final = {"tensorfusion_dra", "_distutils_hack"}
"""The package itself, and what a .pth file of setuptools loads in each process."""
_ABSENT: Final = 'raise ModuleNotFoundError(f"{__name__} is not in the image", name=__name__)\n'


def require(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the other packages from all Python processes that the test starts from here on.

    Args:
        folder: An empty folder, for the modules that such a process finds instead.
    """
    for module in _others():
        (folder / f"{module}.py").write_text(_ABSENT, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


def start_as_in_a_pod(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start node plugins with the image's packages and a service account's login; see require().

    A forked process would share the memory of all modules that the test process has imported.
    """
    require(folder, monkeypatch)
    files = folder / "service-account"
    files.mkdir()

    def spawn(command: Sequence[str], log_file: Path) -> Process:
        flags = command[command.index("node-plugin") :]
        wrapper = (sys.executable, pod_login.__file__, str(files))
        return plugin_process.spawn_command([*wrapper, *flags], log_file)

    monkeypatch.setattr(plugin_process, "spawn", spawn)


def _others() -> set[str]:
    """Return the names of installed modules that no package of the image has."""
    text = _LOCK.read_text(encoding="utf-8")
    image = {_normal(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    assert image, f"{_LOCK} names no package"
    return {
        module
        for module, distributions in packages_distributions().items()
        if image.isdisjoint(map(_normal, distributions))
    } - _KEPT


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
