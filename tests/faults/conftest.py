"""Fixtures of the fault tests: node plugins that start quickly and can be killed at every step."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.discovery.nvml import nvml_machine
from tests.discovery.nvml.nvml_machine import Machine
from tests.faults import fault_points
from tests.faults.fault_points import FaultPoints
from tests.faults.node import Node
from tests.faults.stories import Lane, node_on
from tests.support.compiler import compiler
from tests.support.forks import Forks
from tests.support.tally import EFFORT

_LANES = 2 if EFFORT >= 1 else 1
"""Number of node plugins that run side by side.

A start is CPU-bound, so two at a time suit the smallest machines. For a sample, a second lane would
cost more to set up than it saves.
"""


@pytest.fixture(scope="session")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Lane]]:
    """Return the lanes that start and kill node plugins side by side."""
    compiler("the fault tests")
    folder = tmp_path_factory.mktemp("fault-points")
    library = fault_points.build(folder)
    every = [FaultPoints(folder / f"page-{number}", library) for number in range(_LANES)]
    with ExitStack() as until:
        forks = [until.enter_context(closing(Forks(points.environment))) for points in every]
        yield [Lane(*both) for both in zip(every, forks, strict=True)]


@pytest.fixture
def points(lanes: Sequence[Lane]) -> FaultPoints:
    """Return the fault points of the plugins on the fixture `node`."""
    return lanes[0].points


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the stand-in for NVML library and return its path."""
    return nvml_machine.build(tmp_path_factory.mktemp("nvml") / "library")


@pytest.fixture
def node(lanes: Sequence[Lane], nvml: Path) -> Iterator[Node]:
    """Return a node without a running plugin."""
    with node_on(lanes[0], nvml) as made:
        yield made


@pytest.fixture
def machine(tmp_path: Path, nvml: Path) -> Machine:
    """Return a machine with the stand-in for NVML; a test supplies the answers."""
    return Machine(folder=tmp_path, library=nvml)
