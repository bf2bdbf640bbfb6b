"""What was lent stays lent until it is free, though no limit is set under the store's lock.

Two instances of an enforcer, as during a rolling update, read records that change meanwhile. Each
record has a version as its limit, so that the order of writes shows which records they come from.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.enforcer import AT_ONCE, Enforcer, NodeAccess, Records
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.enforcers.nvidia import LimitsClient, Nvidia
from tensorfusion_dra.enforcers.patience import HungEnforcerError
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.enforcers.tensor_fusion.shared_memory import WorkerMemory
from tensorfusion_dra.enforcers.tensor_fusion.workers import Workers
from tests.support.builders.prepared_claims import limit, prepared_claim, prepared_share
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.worker_node import WorkerPodsInMemory


class Written:
    """The limits of one pod in the order in which they were written, in bytes."""

    def __init__(self) -> None:
        self.limits: list[int] = []
        self.before: Callable[[], object] = lambda: None  # called once, by the next write

    def write(self, vram_bytes: int) -> None:
        act, self.before = self.before, lambda: None
        act()
        self.limits.append(vram_bytes)


class Client(LimitsClient):
    """memory-limits that notes what it is told."""

    def __init__(self, written: Written) -> None:
        super().__init__("/nowhere")
        self.written = written

    def set(
        self,
        pod_uid: str,
        limits: Mapping[str, int],
        beside: Mapping[str, Mapping[str, int]],
        *,
        wait_seconds: float,
    ) -> Sequence[str]:
        self.written.write(limits["GPU-0"])
        return ()


class Memory(WorkerMemory):
    """The shared memory of a registered pod."""

    def __init__(self, root: Path, written: Written) -> None:
        super().__init__(root)
        self.written = written

    def is_kept(self, pod: PodRef, gpu_ids: tuple[str, ...]) -> bool:
        return True

    def set_limits(self, pod: PodRef, limits: Mapping[str, Limit]) -> bool:
        self.written.write(limits["GPU-0"].vram_bytes)
        return False


Instance = Callable[[Records], Enforcer]


def nvidia(folder: Path, written: Written) -> Instance:
    return lambda _: Nvidia(root=str(folder), client=Client(written))


def tensor_fusion(folder: Path, written: Written) -> Instance:
    def made(records: Records) -> Enforcer:
        found, pods = TensorFusion(root=str(folder)), WorkerPodsInMemory()
        access = NodeAccess(records, pods, pods)
        plugin: Any = None  # nothing is registered here
        found.workers = Workers(access, plugin, Memory(folder, written))
        return found

    return made


@pytest.fixture(params=[nvidia, tensor_fusion], ids=lambda each: each.__name__)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Written, Instance]:
    written = Written()
    name = request.param.__name__.replace("_", "-")
    return name, written, request.param(tmp_path, written)


def versioned(enforcer: str, version: int) -> PreparedClaim:
    return prepared_claim(prepared_share(0, limit(25, version)), enforcer=enforcer)


def apply(enforcer: Enforcer, claim: PreparedClaim, records: Records, seconds: float) -> None:
    enforcer.apply(claim, records, time.monotonic() + seconds)


def test_call_that_waits_reads_the_records_after_the_one_before_has_written(
    made: tuple[str, Written, Instance],
) -> None:
    name, written, instance = made
    claim = versioned(name, 60)
    present = [claim]
    first, second = (instance(present.copy) for _ in range(2))
    is_writing, may_go_on = Event(), Event()

    def between() -> None:
        is_writing.set()
        assert may_go_on.wait(PATIENCE_SECONDS)

    written.before = between
    with ThreadPoolExecutor(2) as pool:
        older = pool.submit(apply, first, claim, present.copy, PATIENCE_SECONDS)
        assert is_writing.wait(PATIENCE_SECONDS)
        present[:] = [versioned(name, 50)]  # another claim took back what was lent
        newer = pool.submit(apply, second, claim, present.copy, PATIENCE_SECONDS)
        assert written.limits == []
        may_go_on.set()
        older.result()
        newer.result()

    assert written.limits == [60 * GIB, 50 * GIB]


def unread() -> Sequence[PreparedClaim]:
    raise AssertionError


def test_call_whose_time_is_over_reads_nothing(tmp_path: Path) -> None:
    written, claim = Written(), versioned("nvidia", 60)
    first, second = (nvidia(tmp_path, written)(tuple) for _ in range(2))

    def meanwhile() -> None:
        with pytest.raises(HungEnforcerError):
            apply(second, claim, unread, 0.1)

    written.before = meanwhile
    apply(first, claim, lambda: [claim], PATIENCE_SECONDS)

    assert written.limits == [60 * GIB]


def test_what_waits_for_a_process_is_not_done_at_once() -> None:
    """It follows at the next check, so that no other claim waits for it."""
    Nvidia(root="/nowhere").apply(versioned("nvidia", 60), unread, AT_ONCE)
