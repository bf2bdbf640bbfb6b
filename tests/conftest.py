"""Shared setup of all tests: guards over paths and processes, and counts of work done."""

import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tensorfusion_dra.app.simulate import plugin_process
from tests.guard import processes
from tests.guard import sitecustomize as path_guard
from tests.support import forks, logs
from tests.support.tally import EFFORT, Tally, examples

_TALLY = pytest.StashKey[Tally]()
_OUTSIDE = pytest.StashKey[list[str]]()
_PROCESSES = processes.Guard()


class _Report:
    """Outside paths that this process and its children have used since the last call of new()."""

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
logs.install()
# A shell ignores SIGINT for the commands that its scripts start in the background, and every child
# inherits that. Tests interrupt processes, so their children get the default again.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A test's result depends neither on the duration of an example nor on findings of earlier runs.
settings.register_profile(
    "tests",
    max_examples=examples(100),
    deadline=None,
    database=None,
    derandomize=EFFORT <= 1,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("tests")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which examples the tests generate, so that a failure can be repeated."""
    seed = f"--hypothesis-seed={config.getoption('hypothesis_seed')}"
    return f"generated examples: {'the same in every run' if EFFORT <= 1 else seed}"


@pytest.hookimpl(tryfirst=True)  # hypothesis reads its option afterwards
def pytest_configure(config: pytest.Config) -> None:
    if EFFORT > 1 and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.randrange(1 << 32))
    config.stash[_TALLY] = Counter()
    config.stash[_OUTSIDE] = []
    # End-to-end tests use a real cluster, which is outside the allowed paths.
    folder = config.invocation_params.dir
    paths = [folder / argument.partition("::")[0] for argument in config.args]
    if not all(path.is_relative_to(_END_TO_END) for path in paths):
        os.environ["TMPDIR"] = tempfile.gettempdir()
        os.environ[path_guard.REPORT_VARIABLE] = str(_REPORT.file)
        os.environ.update(path_guard.environment())
        path_guard.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The slowest files run first, so that no worker process is left with one of them at the end.
    items.sort(key=lambda item: "tests/faults/" not in item.nodeid)
    if EFFORT > 1:
        for item in items:
            item.add_marker(pytest.mark.timeout(900 * EFFORT))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with _PROCESSES.around(item):
        return (yield)


@pytest.fixture(autouse=True)
def _guards() -> Iterator[None]:
    """Fail a test that a guard refused something, even if the code under test caught the error."""
    yield
    if _PROCESSES.refused:
        pytest.fail(
            f"started without pytest.mark.process: {', '.join(_PROCESSES.refused)}", pytrace=False
        )
    outside = _REPORT.new()
    if outside:
        pytest.fail(f"a path of this machine was used: {outside}", pytrace=False)


@pytest.fixture
def process_guard() -> processes.Guard:
    """Return the guard over processes, for its own tests."""
    return _PROCESSES


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    """Counter of the tests' work, which the summary of the run shows."""
    return pytestconfig.stash[_TALLY]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass counts, and paths used after the last test, to the process that started the session."""
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
        terminalreporter.section("work of the fault tests")
    for what, count in counts.items():
        terminalreporter.write_line(f"{count:>7} {what}")
    if counts and EFFORT < 1:
        terminalreporter.write_line("A fixed sample. All of it: make test-faults")
    if counts and EFFORT <= 1:
        terminalreporter.write_line("More, and at random: FAULT_EFFORT=20 make test-faults")
