"""What all tests rely on: guards over paths and processes, and logs that are captured."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import structlog

from tests.guard import processes
from tests.guard import sitecustomize as path_guard
from tests.support import forks
from tests.support.logs import capture_logs
from tests.support.waiting import PATIENCE_SECONDS

OUTSIDE = "/var/lib/kubelet"


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate report for this test, so that the refused accesses do not fail it."""
    file = tmp_path / "report"
    monkeypatch.setenv(path_guard.REPORT_VARIABLE, str(file))
    return file


ACCESSES = (
    f"open('{OUTSIDE}/a')",
    f"os.stat('{OUTSIDE}')",
    f"os.path.exists('{OUTSIDE}')",
    f"os.path.islink(b'{OUTSIDE}')",
    f"os.statvfs('{OUTSIDE}')",
    f"os.access('{OUTSIDE}', os.R_OK)",
    f"os.listdir('{OUTSIDE}')",
    f"os.mkdir('{OUTSIDE}/a')",
    f"os.rename('/tmp/a', '{OUTSIDE}/a')",
    f"os.symlink('/tmp/a', '{OUTSIDE}/a')",
    f"os.readlink('{OUTSIDE}/a')",
    f"pathlib.Path('{OUTSIDE}').is_dir()",
    f"list(pathlib.Path('{OUTSIDE}').iterdir())",
    f"list(pathlib.Path('{OUTSIDE}').glob('*'))",
    f"sqlite3.connect('{OUTSIDE}/a')",
    f"ctypes.CDLL('{OUTSIDE}/a.so')",
    f"socket.socket(socket.AF_UNIX).connect('{OUTSIDE}/a.sock')",
    "(os.chdir('/tmp'), os.stat('../var/lib/kubelet'))",
)
SWALLOWING = """
import ctypes, os, pathlib, socket, sqlite3, sys
for code in sys.argv[1:]:
    try:
        eval(code)
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.process
def test_every_access_of_a_child_process_is_refused_and_reported(report: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SWALLOWING, *ACCESSES],
        env=path_guard.environment({"PATH": "/usr/bin:/bin"}),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert (ended.stdout.split(), ended.stderr) == (["OutsideError"] * len(ACCESSES), "")
    assert report.read_text().count("/var/lib/kubelet") >= len(ACCESSES)


@pytest.mark.parametrize("start", [lambda: subprocess.run(["true"], check=True), forks.run])
def test_process_of_a_test_without_the_marker_is_refused(
    start: Callable[[], object], process_guard: processes.Guard
) -> None:
    with pytest.raises(processes.ProcessError, match=r"expected pytest\.mark\.process"):
        start()

    assert len(process_guard.refused) == 1
    process_guard.refused.clear()


@pytest.mark.process
def test_python_process_without_the_guard_is_refused(report: Path) -> None:
    with pytest.raises(RuntimeError, match="without"):
        subprocess.run([sys.executable, "-c", "pass"], env={"PATH": "/usr/bin"}, check=True)

    assert "without" in report.read_text()


def test_thread_that_logs_as_a_capture_begins_or_ends_is_not_disturbed() -> None:
    log, processors = structlog.get_logger(), structlog.get_config()["processors"]
    is_logging, may_go_on = Event(), Event()

    def slow(_logger: object, _method: str, event: dict[str, Any]) -> dict[str, Any]:
        is_logging.set()
        assert may_go_on.wait(PATIENCE_SECONDS)
        return event

    processors.insert(1, slow)
    with ThreadPoolExecutor(1) as thread:
        earlier = thread.submit(log.info, "earlier", gpu="a")
        assert is_logging.wait(PATIENCE_SECONDS)
        with capture_logs() as logs:
            log.info("during", gpu="b")
            may_go_on.set()
            earlier.result(PATIENCE_SECONDS)
    processors.remove(slow)

    assert logs == [{"event": "during", "gpu": "b", "log_level": "info"}]
