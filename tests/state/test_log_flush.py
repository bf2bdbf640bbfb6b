"""Group commit: one flush makes all commits before it durable, and a failed one makes none."""

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state.log_flush import LogFlush
from tests.support.ledgers import opened, put, recorded_claim, uids
from tests.support.waiting import PATIENCE_SECONDS, eventually


class Disk:
    """Stands in for os.fdatasync: counts the flushes, and blocks or fails them."""

    def __init__(self) -> None:
        self.flushes = 0
        self.failure: OSError | None = None
        self.entered = Event()
        self.open = Event()
        self.open.set()

    def flush(self, _descriptor: int) -> None:
        self.flushes += 1
        self.entered.set()
        assert self.open.wait(PATIENCE_SECONDS)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk()
    monkeypatch.setattr(os, "fdatasync", found.flush)
    return found


@pytest.fixture
def log(disk: Disk, tmp_path: Path) -> Iterator[LogFlush]:
    path = tmp_path / "log"
    path.touch()
    flush = LogFlush(path)
    disk.flushes = 0
    yield flush
    disk.open.set()
    if disk.failure is None:
        flush.close()


def started(act: Callable[[], None]) -> Thread:
    thread = Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_commit_is_flushed_once(disk: Disk, log: LogFlush) -> None:
    commit = log.count_commit()

    log.wait_durable(commit)
    log.wait_durable(commit)

    assert disk.flushes == 1


def test_commits_made_during_a_flush_share_the_next_one(disk: Disk, log: LogFlush) -> None:
    disk.open.clear()
    first = log.count_commit()
    threads = [started(lambda: log.wait_durable(first))]
    assert disk.entered.wait(PATIENCE_SECONDS)
    later = [log.count_commit() for _ in range(7)]
    threads += [started(partial(log.wait_durable, commit)) for commit in later]

    disk.open.set()

    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert disk.flushes == 2


def test_failed_flush_fails_every_commit_it_should_have_covered(disk: Disk, log: LogFlush) -> None:
    disk.failure = OSError(errno.EIO, "Input/output error")
    commits = [log.count_commit() for _ in range(3)]
    for commit in commits:
        with pytest.raises(OSError, match="Input/output error"):
            log.wait_durable(commit)

    assert disk.flushes == 1


def test_close_flushes_what_is_committed(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    flush = LogFlush(path)
    disk.flushes = 0
    commit = flush.count_commit()

    flush.close()
    flush.wait_durable(commit)

    assert disk.flushes == 1


def test_concurrent_transactions_share_flushes(disk: Disk, tmp_path: Path) -> None:
    claims = [recorded_claim(f"{number}", number=number) for number in range(8)]
    with opened(tmp_path) as ledger:
        disk.flushes = 0
        disk.entered.clear()
        disk.open.clear()
        first = started(lambda: put(ledger, claims[0]))
        assert disk.entered.wait(PATIENCE_SECONDS)
        together = Barrier(len(claims))

        def put_one(number: int) -> None:
            together.wait(PATIENCE_SECONDS)
            put(ledger, claims[number])

        threads = [started(partial(put_one, number)) for number in range(1, 8)]
        together.wait(PATIENCE_SECONDS)
        assert eventually(lambda: len(uids(ledger)) == len(claims))  # while the flush is blocked
        disk.open.set()
        for thread in (first, *threads):
            thread.join(PATIENCE_SECONDS)

        assert disk.flushes <= 3


def test_ledger_is_opened_anew_after_a_failed_flush(disk: Disk, tmp_path: Path) -> None:
    a, b = recorded_claim("a"), recorded_claim("b", number=2)
    with opened(tmp_path) as ledger:
        put(ledger, a)
        disk.failure = OSError(errno.EIO, "Input/output error")
        with pytest.raises(RetryableError, match="Input/output error"):
            put(ledger, b)
        with pytest.raises(RetryableError, match="Input/output error"):
            ledger.claims()

        disk.failure = None

        assert uids(ledger) == ["uid-a", "uid-b"]  # not acknowledged, but it was committed
        put(ledger, b)
