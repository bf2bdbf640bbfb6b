"""The stand-in for libnvidia-ml.so.1, compiled once."""

from pathlib import Path

import pytest

from tests.discovery.nvml.nvml_machine import Machine, build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a library with every function that discovery calls."""
    return build(tmp_path_factory.mktemp("nvml") / "now")


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a library without the functions that older drivers lack."""
    return build(tmp_path_factory.mktemp("nvml") / "old", "-DOLD_DRIVER")


@pytest.fixture(scope="session")
def eventless_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a library without the functions for events."""
    return build(tmp_path_factory.mktemp("nvml") / "eventless", "-DNO_EVENTS")


@pytest.fixture
def machine(tmp_path: Path, library: Path) -> Machine:
    """Return a machine with the full library; a test supplies the answers."""
    return Machine(folder=tmp_path, library=library)
