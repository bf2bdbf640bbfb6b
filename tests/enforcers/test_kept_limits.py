"""Limits that a process keeps for an enforcer: set, lent, taken back, and in which order."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.enforcer import AT_ONCE, Enforcer, NodeAccess, Records
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim
from tensorfusion_dra.core.devices.gpu import UNLIMITED
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.enforcers.nvidia.enforcer import LimitsClient, Nvidia
from tensorfusion_dra.enforcers.patience import HungEnforcerError
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.enforcers.tensor_fusion.shared_memory import WorkerMemory
from tensorfusion_dra.enforcers.tensor_fusion.workers import Workers
from tests.support.builders.prepared_claims import limit, prepared_claim, prepared_share
from tests.support.builders.stored_claims import stored_claim
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    Setup,
    put_claim,
    share_result,
    use_real_cards,
)
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.worker_node import WorkerPodsInMemory


class DriverInMemory(LimitsClient):
    """Limits by pod and card; it may be away, and lowers no limit of a pod that is busy."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.limits: dict[str, dict[str, int]] = {}
        self.reason = ""
        self.cannot = ""
        self.busy = ""

    def check(self, *, wait_seconds: float) -> Sequence[str]:
        return [self.cannot]

    def get(
        self, pod_uid: str, gpu_uuids: Iterable[str], *, wait_seconds: float
    ) -> Mapping[str, tuple[int, int] | str]:
        if self.reason:
            raise RetryableError(self.reason)
        own = self.limits[pod_uid]
        return {uuid: (own[uuid], 5) if uuid in own else "no limit" for uuid in gpu_uuids}

    def set(
        self,
        pod_uid: str,
        limits: Mapping[str, int],
        beside: Mapping[str, Mapping[str, int]],
        *,
        wait_seconds: float,
    ) -> Sequence[str]:
        if self.reason:
            raise RetryableError(self.reason)
        own = self.limits.get(pod_uid, {})
        changed = [uuid for uuid, limit in limits.items() if own.get(uuid) != limit]
        pods = {**beside, pod_uid: limits}
        if self.busy in pods and self.limits.get(self.busy, {}) not in ({}, pods[self.busy]):
            raise RetryableError(f"pod {self.busy}: still uses memory that was lent to it")
        for pod, wanted in pods.items():
            self.limits.setdefault(pod, {}).update(wanted)
        return changed


class Node(Setup):
    """A node with enforcer nvidia."""

    def __init__(self, folder: Path) -> None:
        self.driver = DriverInMemory()
        self.nvidia = Nvidia(root=str(folder / "nvidia"), client=self.driver)
        super().__init__(folder, enforcer=self.nvidia)
        self.enforcers["nvidia"] = self.nvidia
        self.use(required=self.nvidia.sign)
        use_real_cards(self)

    def apply(self, claim: PreparedClaim) -> None:
        """Have the claim's limits set again, as each check of the watch does."""
        self.nvidia.apply(claim, self.store.claims, time.monotonic() + PATIENCE_SECONDS)

    def put(
        self, name: str, vram: str, *, pod: str = "p", device: str = GPU_0, **annotations: str
    ) -> ClaimRef:
        claim = stored_claim(name, share_result(device, vram=vram))
        claim["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": pod}]
        ref = self.claims.put(claim)
        self.annotate(ref, **annotations)
        return ref


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_pod_has_the_sum_of_its_claims_until_they_are_unprepared(node: Node) -> None:
    first, second = node.put("a", "8Gi"), node.put("b", "4Gi")
    card = node.prepared(first).shares[0].gpu_uuid
    node.prepared(node.put("c", "2Gi", pod="q"))
    seen = []
    for act, ref in (
        *((node.prepare, first), (node.prepare, second)),
        *((node.unprepare, first), (node.unprepare, second)),
    ):
        act(ref)
        seen.append(node.driver.limits["p"][card])

    assert seen == [8 * GIB, 12 * GIB, 4 * GIB, UNLIMITED]
    assert node.driver.limits["q"] == {card: 2 * GIB}


def test_claim_waits_while_its_limit_cannot_be_set_and_keeps_what_it_reserved(node: Node) -> None:
    ref = node.put("a", "70Gi")
    node.driver.reason = "GPU-0: found 5 bytes, expected 4"

    assert node.refused(ref) == "GPU-0: found 5 bytes, expected 4"
    assert "vram: found 16Gi plus 70Gi" in node.refused(node.put("b", "16Gi"))

    node.driver.reason = ""
    node.prepared(ref)
    assert list(node.driver.limits["p"].values()) == [70 * GIB]

    node.driver.reason = "nobody listens"
    assert node.unprepare(ref) == {ref.uid: None}


def test_use_is_what_the_driver_counts_for_the_pod(node: Node) -> None:
    claim = node.prepared(node.put("a", "8Gi"))
    assert node.nvidia.used(claim) == {("p", claim.shares[0].gpu_uuid): 5}

    node.driver.limits["p"].clear()
    assert node.nvidia.used(claim) == {}
    node.driver.reason = "nobody listens"
    assert node.nvidia.used(claim) == {}


def test_lost_limits_are_set_again(node: Node) -> None:
    claim = node.prepared(node.put("a", "8Gi"))
    gone = node.prepared(node.put("b", "8Gi", pod="q", device=GPU_1))
    node.unprepare(gone.ref)
    node.driver.limits.clear()

    node.apply(claim)
    node.apply(gone)

    assert [list(each.values()) for each in node.driver.limits.values()] == [[8 * GIB]]
    node.driver.reason = "nobody listens"
    with pytest.raises(RetryableError, match="nobody listens"):
        node.apply(claim)


def test_parts_of_cards_wait_for_a_driver_that_can_limit_and_whole_cards_run(node: Node) -> None:
    node.driver.cannot = "NVIDIA driver: found 580.95.05, expected 615 or later"

    assert node.refused(node.put("a", "8Gi")).startswith(
        "claim default/a: nothing would enforce its limits: NVIDIA driver: found 580.95.05, "
        "expected 615 or later; run NVIDIA driver 615 or later on this node and the container "
        "memory-limits (chart value enforcers.nvidia.install=true), or choose another enforcer "
        "(setting enforcer; hami-core needs only a library on each node"
    )
    whole = node.prepared(put_claim(node, "whole", share_result(tflops="312", vram="80Gi")))
    assert whole.shares[0].limit is None
    assert node.driver.limits == {}


def test_lent_memory_is_taken_back_before_a_claim_gets_it(node: Node) -> None:
    borrower = node.prepared(node.put("a", "20Gi", vram_limit="60Gi"))
    card = borrower.shares[0].gpu_uuid
    node.driver.busy = "p"

    waiting = node.put("b", "30Gi", pod="q")

    assert node.refused(waiting) == "pod p: still uses memory that was lent to it"
    with pytest.raises(RetryableError, match="lent to it"):
        node.apply(borrower)
    assert node.driver.limits == {"p": {card: 60 * GIB}}

    node.driver.busy = ""
    node.prepared(waiting)
    assert node.driver.limits == {"p": {card: 50 * GIB}, "q": {card: 30 * GIB}}

    node.unprepare(waiting)
    node.apply(borrower)
    assert node.driver.limits == {"p": {card: 60 * GIB}, "q": {card: UNLIMITED}}


def test_hard_isolation_lends_nothing(node: Node) -> None:
    node.prepared(node.put("a", "20Gi", vram_limit="60Gi", isolation="hard"))

    assert [*node.driver.limits["p"].values()] == [20 * GIB]


# What was lent stays lent until it is free, though no limit is set under the store's lock. Two
# instances of an enforcer, as during a rolling update, read records that change meanwhile. Each
# record has a version as its limit, so that the order of writes shows which records they come from.


class Written:
    """The limits of one pod in the order in which they were written, in GiB."""

    def __init__(self) -> None:
        self.limits: list[int] = []
        self.before: Callable[[], object] = lambda: None  # called once, by the next write

    def write(self, vram_bytes: int) -> None:
        act, self.before = self.before, lambda: None
        act()
        self.limits.append(vram_bytes // GIB)


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


class Told(DriverInMemory):
    """memory-limits that notes what it is told."""

    written: Written

    def set(self, pod_uid: str, limits: Mapping[str, int], *_: Any, **__: Any) -> Sequence[str]:
        self.written.write(limits["GPU-0"])
        return ()


def nvidia(folder: Path, written: Written) -> Instance:
    client = Told()
    client.written = written
    return lambda _: Nvidia(root=str(folder), client=client)


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
    return request.param.__name__.replace("_", "-"), written, request.param(tmp_path, written)


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

    assert written.limits == [60, 50]


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

    assert written.limits == [60]


def test_what_waits_for_a_process_is_done_at_the_next_check_and_not_at_once(
    tmp_path: Path,
) -> None:
    """No other claim waits for it."""
    written, claim = Written(), versioned("nvidia", 60)
    enforcer = nvidia(tmp_path, written)(tuple)

    enforcer.apply(claim, unread, AT_ONCE)
    assert (written.limits, [*tmp_path.iterdir()]) == ([], [])

    apply(enforcer, claim, lambda: [claim], PATIENCE_SECONDS)
    assert written.limits == [60]
