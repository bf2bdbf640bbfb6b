"""What all tests share: the guard against this machine's paths, and counts of what was done."""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tensorfusion_dra.app.simulate import plugin_process
from tests.guard import sitecustomize as path_guard
from tests.support import forks
from tests.support.tally import EFFORT, Tally, examples

_TALLY = pytest.StashKey[Tally]()
_OUTSIDE = pytest.StashKey[list[str]]()


class _Report:
    """The paths outside that were used since the last look, by this process and its children."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="guard-"))
        self.file = self.folder / "report"
        self.file.touch()
        self._read_bytes = 0

    def new(self) -> str:
        with self.file.open("rb") as file:
            file.seek(self._read_bytes)
            found = file.read()
        self._read_bytes += len(found)
        return found.decode(errors="replace")


_REPORT = _Report()
_END_TO_END = Path(__file__).parent / "e2e"
plugin_process.spawn = forks.spawn

# Neither how long an example takes nor what an earlier run found decides whether a test passes.
settings.register_profile(
    "tests",
    max_examples=examples(100),
    deadline=None,
    database=None,
    derandomize=EFFORT <= 1,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TALLY] = Counter()
    config.stash[_OUTSIDE] = []
    # A real cluster lies on some machine, and its tests have to go there.
    folder = config.invocation_params.dir
    if not all(is_end_to_end(argument, folder) for argument in config.args):
        _guard_paths()


def is_end_to_end(argument: str, folder: Path) -> bool:
    """Return whether pytest's argument, given in this folder, names end-to-end tests alone."""
    return (folder / argument.partition("::")[0]).is_relative_to(_END_TO_END)


def _guard_paths() -> None:
    os.environ["TMPDIR"] = tempfile.gettempdir()
    os.environ[path_guard.REPORT_VARIABLE] = str(_REPORT.file)
    os.environ.update(path_guard.environment())
    path_guard.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest files first, so that no process is left with one of them at the end.
    items.sort(key=lambda item: "tests/faults/" not in item.nodeid)
    if EFFORT > 1:
        for item in items:
            item.add_marker(pytest.mark.timeout(900 * EFFORT))


@pytest.fixture(autouse=True)
def _no_path_of_this_machine() -> Iterator[None]:
    """Fail the test during which a path outside was used, even if its code caught the error."""
    yield
    outside = _REPORT.new()
    if outside:
        pytest.fail(f"a path of this machine was used: {outside}", pytrace=False)


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    """Where tests count what they did; the closing lines of the run show it."""
    return pytestconfig.stash[_TALLY]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand counts, and paths used after the last test, to the process that began the session."""
    output = getattr(session.config, "workeroutput", None)
    counts, outside = session.config.stash[_TALLY], session.config.stash[_OUTSIDE]
    outside.append(_REPORT.new())
    shutil.rmtree(_REPORT.folder)
    if output is not None:
        output["tally"] = dict(counts)
        output["outside"] = "".join(outside)
    elif any(outside):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    config: pytest.Config = node.config
    counts, outside = config.stash[_TALLY], config.stash[_OUTSIDE]
    output = getattr(node, "workeroutput", {})
    counts.update(output.get("tally", {}))
    outside.append(output.get("outside", ""))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    outside = config.stash[_OUTSIDE]
    if any(outside):
        terminalreporter.section("paths of this machine used after the last test")
        terminalreporter.write_line("".join(outside))
    counts = config.stash[_TALLY]
    if counts:
        terminalreporter.section("what the fault tests did")
    for what, count in counts.items():
        terminalreporter.write_line(f"{count:>7} {what}")
    if counts and EFFORT < 1:
        terminalreporter.write_line("A fixed sample. All of it: make test-faults")
    if counts and EFFORT <= 1:
        terminalreporter.write_line("More, and at random: FAULT_EFFORT=20 make test-faults")
