"""What all tests share: the counts of what they really did."""

from collections import Counter
from typing import Any

import pytest

from tests.support.tally import EFFORT, Tally

_TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TALLY] = Counter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if EFFORT > 1:
        for item in items:
            item.add_marker(pytest.mark.timeout(120 * EFFORT))


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    """Where tests count what they did; the closing lines of the run show it."""
    return pytestconfig.stash[_TALLY]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that runs a part of the tests tells its counts to the one that began them all."""
    told = getattr(session.config, "workeroutput", None)
    counts = session.config.stash[_TALLY]
    if told is not None:
        told["tally"] = dict(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    config: pytest.Config = node.config
    config.stash[_TALLY].update(getattr(node, "workeroutput", {}).get("tally", {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    counts = config.stash[_TALLY]
    if counts:
        terminalreporter.section("what the fault tests did")
    for what, count in counts.items():
        terminalreporter.write_line(f"{count:>7} {what}")
    if counts and EFFORT == 1:
        terminalreporter.write_line("more, and at random: FAULT_EFFORT=20 make test")
