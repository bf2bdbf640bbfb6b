"""The ledger between processes: one is killed, two write at the same time."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tests.support.ledgers import GPU_0, holders, opened, put, recorded_claim, remove, uids

ROOT = Path(__file__).parents[2]


@contextmanager
def child(verb: str, folder: Path, name: str = "child") -> Iterator[subprocess.Popen[str]]:
    """Run another process on the ledger; kill it at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.state.ledger_child", verb, str(folder), name],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def resume(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_killed_process_loses_no_record_that_it_reported(tmp_path: Path) -> None:
    with child("record", tmp_path) as process:
        reported = [line(process) for _ in range(25)]
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert process.stdout is not None
        reported += process.stdout.read().split()

    with opened(tmp_path) as ledger:
        recorded = uids(ledger)
        held = holders(ledger, GPU_0)
    assert set(reported) <= set(recorded)
    assert len(recorded) <= len(reported) + 1
    assert len(held) == len(recorded)


def test_two_processes_never_allocate_the_same_capacity_twice(tmp_path: Path) -> None:
    with child("admit", tmp_path, "x") as x, child("admit", tmp_path, "y") as y:
        assert line(x) == line(y) == "ready"
        resume(x)
        resume(y)
        answers = [process.communicate()[0].splitlines() for process in (x, y)]

    admitted = [uid for lines in answers for uid in lines[:-1]]
    with opened(tmp_path) as ledger:
        assert sorted(admitted) == uids(ledger)
    assert len(admitted) == 16
    assert all(
        "vram: found 5Gi plus 80Gi in use, expected at most 80Gi" in lines[-1] for lines in answers
    )


def test_two_processes_may_create_a_ledger_at_the_same_time(tmp_path: Path) -> None:
    answers = []
    with child("begin", tmp_path, "x") as x, child("begin", tmp_path, "y") as y:
        assert line(x) == line(y) == "ready"
        for _ in range(60):
            resume(x)
            resume(y)
            answers += [line(x), line(y)]

    assert answers == ["opened"] * 120


def test_ledger_locked_by_another_process_is_readable_but_refuses_changes(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, recorded_claim("a"))
    with opened(tmp_path) as ledger, child("hold", tmp_path) as other:
        assert line(other) == "held"
        assert uids(ledger) == ["uid-a"]
        with pytest.raises(RetryableError, match=r"ledger\.sqlite3: database is locked"):
            remove(ledger, "uid-a")

        resume(other)
        assert line(other) == "released"
        remove(ledger, "uid-a")
        assert uids(ledger) == ["uid-child"]
