"""Folders for sockets."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path; pytest's own paths are too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="tf-") as path:
        yield Path(path)
