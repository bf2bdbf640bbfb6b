"""Folders that other users can reach, and a tiny disk."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own folders are private to this user."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def tiny_disk() -> Iterator[Path]:
    """A disk of 256 KiB."""
    folder = Path(tempfile.mkdtemp())
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        if not mounted:
            pytest.skip("only root may mount a disk")
        yield folder
        subprocess.run(["umount", "-l", str(folder)], check=True)
    finally:
        folder.rmdir()
