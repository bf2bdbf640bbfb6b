"""Status writes of an API server in memory, and a running reporter."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Any, Final

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.devices.health import Sickness
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports.cluster import MissingRightError
from tensorfusion_dra.driver.status import StatusReporter
from tests.support.waiting import PATIENCE_SECONDS

Entries = list[dict[str, Any]]

ANSWER_SECONDS: Final = 0.3
"""Longer than any write in these tests takes."""


class StatusAtServer:
    """Statuses of claims as an API server stores them, with faults set by a test.

    Attributes:
        tries: Claim name of every write, including failed ones.
        faults: Errors of the next writes, one each; these writes store nothing.
        lasting: Error of every write.
        gone: Names of claims that do not exist.
        refused: Names of claims whose writes all fail.
        open: Writes hang until it is set.
    """

    def __init__(self) -> None:
        self.writes: list[tuple[str, Entries]] = []
        self.tries: list[str] = []
        self.faults: list[Exception] = []
        self.lasting: Exception | None = None
        self.gone: set[str] = set()
        self.refused: set[str] = set()
        self.open = Event()
        self.open.set()

    def write(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> bool:
        self.tries.append(ref.name)
        assert self.open.wait(PATIENCE_SECONDS)
        if self.faults:
            raise self.faults.pop(0)
        if self.lasting is not None:
            raise self.lasting
        if ref.name in self.refused:
            raise RetryableError("500")
        if ref.name in self.gone:
            return False
        self.writes.append((ref.name, [dict(device) for device in devices]))
        return True

    @property
    def written(self) -> list[str]:
        return [name for name, _ in self.writes]

    def has_writes(self, number: int) -> Callable[[], bool]:
        return lambda: len(self.writes) == number

    def vram_limits(self) -> list[int]:
        return [entries[0]["data"]["limits"]["vramBytes"] // 2**30 for _, entries in self.writes]


@contextmanager
def running_reporter(
    server: StatusAtServer,
    *,
    retry_seconds: float = 0.01,
    pause_seconds: float = 600,
    sick: Callable[[], Mapping[str, Sickness]] = dict,
) -> Iterator[StatusReporter]:
    minutes = itertools.count()
    reporter = StatusReporter(
        server,
        sick=sick,
        now=lambda: datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=next(minutes)),
        retry_seconds=retry_seconds,
        pause_seconds=pause_seconds,
    )
    thread = Thread(target=reporter.run)
    thread.start()
    try:
        yield reporter
    finally:
        reporter.stop()
        server.open.set()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def missing_right(name: str, right: str = "patch on resourceclaims/status") -> MissingRightError:
    return MissingRightError(f"claim default/{name}: PATCH: 403", right)
