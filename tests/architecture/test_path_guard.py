"""The guard that keeps the tests from using paths that only some machines have."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.guard import sitecustomize as path_guard
from tests.support.waiting import PATIENCE_SECONDS

OUTSIDE = "/var/lib/kubelet"


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate report for this test, so that the refused accesses do not fail it."""
    file = tmp_path / "report"
    monkeypatch.setenv(path_guard.REPORT_VARIABLE, str(file))
    return file


def run(code: str, report: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code],
        env=path_guard.environment({"PATH": "/usr/bin:/bin"}),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    "code",
    [
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
        "os.chdir('/tmp'); os.stat('../var/lib/kubelet')",
    ],
)
def test_access_of_a_child_process_is_refused_and_reported(code: str, report: Path) -> None:
    modules = "import ctypes, os, pathlib, socket, sqlite3"
    swallowing = f"{modules}\ntry: {code}\nexcept Exception as error: print(type(error).__name__)"

    ended = run(swallowing, report)

    assert (ended.stdout.strip(), ended.stderr) == ("OutsideError", "")
    assert "/var/lib/kubelet" in report.read_text()


def test_python_process_without_the_guard_is_refused(report: Path) -> None:
    with pytest.raises(RuntimeError, match="without"):
        subprocess.run([sys.executable, "-c", "pass"], env={"PATH": "/usr/bin"}, check=True)

    assert "without" in report.read_text()
