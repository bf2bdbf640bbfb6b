"""The example packages, installed once."""

import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.support import wheels
from tests.support.forks import ROOT

EXAMPLES: Final = ("nvlink-island", "rack-label")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the examples from copies of their folders, since a build writes into its folder."""
    folder = tmp_path_factory.mktemp("examples")
    target = folder / "site"
    for name in EXAMPLES:
        copy = folder / name
        shutil.copytree(ROOT / "hack" / "examples" / name, copy)
        wheels.install(copy, target)
    return target
