"""Node plugins that start at once and can be killed at every step."""

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
from tests.support.forks import Forks
from tests.support.tally import EFFORT

_LANES = 2 if EFFORT >= 1 else 1
"""A start is bound by the processor; two of them at once suit the smallest machines.

For a sample a second lane would cost more to set up than it saves.
"""


@pytest.fixture(scope="session")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Lane]]:
    """What starts and kills node plugins side by side."""
    folder = tmp_path_factory.mktemp("fault-points")
    library = fault_points.build(folder)
    every = [FaultPoints(folder / f"page-{number}", library) for number in range(_LANES)]
    with ExitStack() as until:
        forks = [until.enter_context(closing(Forks(points.environment))) for points in every]
        yield [Lane(*both) for both in zip(every, forks, strict=True)]


@pytest.fixture
def points(lanes: Sequence[Lane]) -> FaultPoints:
    """The points of the fixture node's plugins."""
    return lanes[0].points


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake NVML library."""
    return nvml_machine.build(tmp_path_factory.mktemp("nvml") / "library")


@pytest.fixture
def node(lanes: Sequence[Lane], nvml: Path) -> Iterator[Node]:
    """A node on which nothing runs yet."""
    with ExitStack() as until:
        yield node_on(lanes[0], nvml, until)


@pytest.fixture
def machine(tmp_path: Path, nvml: Path) -> Machine:
    """A machine whose NVML says what a test lets it say."""
    return Machine(folder=tmp_path, library=nvml)
