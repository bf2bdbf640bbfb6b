"""Idle compute and spare memory that HAMi-core's files lend, and how both come back."""

import errno
import mmap
import os
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import AT_ONCE, NodeAccess
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.enforcers import written_files
from tensorfusion_dra.enforcers.hami_core import cache, lending
from tensorfusion_dra.enforcers.hami_core.enforcer import HamiCore
from tensorfusion_dra.enforcers.hami_core.lending import (
    IDLE_SECONDS,
    ROUND_SECONDS,
    ClaimFolders,
    LendingLoop,
    WriteBudget,
)
from tensorfusion_dra.enforcers.patience import node_lock
from tests.support import enforcer_files
from tests.support.builders.prepared_claims import (
    admin_share,
    limit,
    prepared_claim,
    prepared_share,
)
from tests.support.logs import capture_logs
from tests.support.ports import PodsInMemory
from tests.support.threads import running
from tests.support.waiting import eventually
from tests.support.worker_node import WorkerPodsInMemory

MEMORY_LIMITS: Final = slice(1_600, 1_728)
SWITCH: Final = slice(2_008_900, 2_008_904)
LAUNCHED: Final = slice(2_008_912, 2_008_920)
PROCESSES: Final = slice(2_008_896, 2_008_900)
USED: Final = slice(1_856 + 8 + 32, 1_856 + 8 + 40)
"""Memory of the first card that the first process has allocated."""
VERSION: Final = slice(8, 12)
ON: Final = b"\1\0\0\0"
OFF: Final = bytes(4)
REQUEST: Final = limit(25, 20)


def share(card: int = 0, vram: int = 20, *, wants: int = 0, **changes: Any) -> PreparedShare:
    """Return a share of 25 percent that may use its card while that is idle.

    Args:
        card: Its number.
        vram: Memory limit in GiB; the request is 20.
        wants: Memory limit in GiB that it wants.
        changes: Set other attributes.
    """
    given: dict[str, Any] = {
        "consumed": {"tflops": quantity.parse("78"), "vram": quantity.parse("20Gi")},
        "requested_sm_percent": 25,
        "wanted_sm_percent": 100,
        "wanted_vram_bytes": max(vram, wants) * GIB,
        "granted": REQUEST,
        "divides_memory": True,
        "idle_compute": True,
        "total": limit(100, 80),
    }
    return prepared_share(card, limit(25, vram), **{**given, **changes})


def claim(name: str, *shares: PreparedShare, **changes: Any) -> PreparedClaim:
    ref = ClaimRef(namespace="team-a", name=name, uid=f"uid-{name}")
    return prepared_claim(*(shares or (share(),)), ref=ref, **{"enforcer": "hami-core", **changes})


def unlimited(each: PreparedClaim) -> PreparedClaim:
    """Return the claim as it is if an administrator turned its limiter off."""
    none: dict[str, Any] = {
        "limit": None,
        "granted": None,
        "divides_memory": False,
        "idle_compute": False,
    }
    return replace(each, shares=tuple(replace(share, **none) for share in each.shares))


class Node:
    """A node with files as HAMi-core writes them, and a clock that a test moves."""

    def __init__(self, folder: Path) -> None:
        (folder / "libvgpu.so.1").touch()
        self.hami = HamiCore(library=str(folder / "libvgpu.so.1"), root=str(folder / "hami-core"))
        self.folders = ClaimFolders(self.hami.root)
        self.unreadable = ""
        self.claims: list[PreparedClaim] = []
        self.damaged: dict[str, frozenset[str] | None] = {}
        self.observed: set[str] | None = set()
        self.seconds = 0.0
        self.steps: list[Callable[[], object]] = []
        self.loop = self.new_loop()

    def new_loop(self) -> LendingLoop:
        """Return the loop of a further process."""
        access = NodeAccess(
            self.records,
            PodsInMemory(),
            WorkerPodsInMemory(),
            damaged=lambda: self.damaged,
            working=lambda: self.observed,
            wait_for_stop=self.next_step,
        )
        return LendingLoop(
            self.folders, access, clock=lambda: self.seconds, wall_clock=self.wall_clock
        )

    def records(self) -> Sequence[PreparedClaim]:
        if self.unreadable:
            raise RetryableError(self.unreadable)
        return self.claims

    def run(self, *steps: Callable[[], object]) -> None:
        """Run the loop; do one of the steps before each of its rounds, and stop it after them."""
        self.steps = [*steps]
        self.loop.run()
        assert not self.steps

    def next_step(self, seconds: float) -> bool:
        self.seconds += seconds
        if self.steps:
            self.steps.pop(0)()
            return False
        return True

    def wall_clock(self) -> float:
        return 1_700_000_000 + self.seconds

    def path(self, of: PreparedClaim, request: str = "gpu") -> Path:
        return Path(self.folders.of_claim(of)) / f"{request}.cache"

    def add(self, *claims: PreparedClaim, **content: Any) -> None:
        """Add claims whose containers run; `content` is for enforcer_files.hami_cache()."""
        for each in claims:
            self.claims = [other for other in self.claims if other.ref != each.ref] + [each]
            for request in {share.request for share in each.shares}:
                path = self.path(each, request)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(enforcer_files.hami_cache([REQUEST] * 16, **content))

    def write(self, of: PreparedClaim, where: slice, content: bytes) -> None:
        """Write into a claim's file, as its tenant does."""
        with self.path(of).open("r+b") as file:
            file.seek(where.start)
            file.write(content)

    def read(self, of: PreparedClaim, where: slice) -> bytes:
        with self.path(of).open("rb") as file:
            file.seek(where.start)
            return file.read(where.stop - where.start)

    def launch(self, *claims: PreparedClaim) -> None:
        """Have processes of these claims launch a kernel."""
        for each in claims:
            self.write(each, LAUNCHED, int(self.wall_clock()).to_bytes(8, "little"))

    def use_memory(self, of: PreparedClaim, gib: int) -> None:
        self.write(of, USED, (gib * GIB).to_bytes(8, "little"))

    def limits(self, of: PreparedClaim, request: str = "gpu") -> list[float]:
        """Return the memory limits in a claim's file, in GiB."""
        found = self.path(of, request).read_bytes()[MEMORY_LIMITS]
        return [size / GIB for size in struct.unpack("<16Q", found)]

    def lifted(self) -> set[str]:
        """Return the names of the claims in whose files the compute limits are lifted."""
        return {
            each.ref.name
            for each in self.claims
            if self.path(each).is_file() and self.read(each, SWITCH) == OFF
        }

    def round(self, *working: PreparedClaim, seconds: float = ROUND_SECONDS) -> set[str]:
        """Have these claims launch kernels, let time pass, and do a round; return lifted()."""
        self.seconds += seconds
        self.launch(*working)
        self.loop.check()
        return self.lifted()

    def settle(self, *working: PreparedClaim) -> set[str]:
        """Do rounds until all claims but these are idle; return lifted()."""
        found = self.round(*working)
        for _ in range(int(IDLE_SECONDS / 2) + 1):
            found = self.round(*working, seconds=2)
        return found


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


A: Final = claim("a")
B: Final = claim("b")
NEVER: Final = float("inf")

Change = Callable[[Node], object]


def beside(other: PreparedClaim, **content: Any) -> Change:
    """Return a change of the node: another tenant beside A."""
    return lambda node: node.add(other, **content)


def observed(*uids: str) -> Change:
    def change(node: Node) -> None:
        node.add(B)
        node.observed = set(uids)

    return change


def unknown_use(node: Node) -> None:
    node.add(B)
    node.observed = None


def damaged(devices: frozenset[str] | None) -> Change:
    return lambda node: node.damaged.update({"uid-c": devices})


def without_file(node: Node) -> None:
    node.claims.append(B)


def in_place_of_file(make: Callable[[Path], object]) -> Change:
    def change(node: Node) -> None:
        node.add(B)
        node.path(B).unlink()
        make(node.path(B))

    return change


def exited(node: Node) -> None:
    """Have a process exit while NVML still showed utilization of it."""
    node.add(B, sm_percent=50, host_pid=0)
    node.write(B, slice(1_856, 1_860), bytes(4))


@pytest.mark.parametrize(
    ("change", "is_lifted"),
    [
        pytest.param(lambda _: None, True, id="alone"),
        pytest.param(beside(B), True, id="beside an idle tenant"),
        pytest.param(beside(claim("b", share(idle_compute=False))), True, id="that never borrows"),
        pytest.param(without_file, True, id="that has not started"),
        pytest.param(beside(B, processes=0), True, id="without a process"),
        pytest.param(exited, True, id="whose process exited"),
        pytest.param(beside(B, processes=64), True, id="with 64 idle processes"),
        pytest.param(
            beside(claim("b", admin_share(), enforcer="none")), True, id="beside admin access"
        ),
        pytest.param(beside(claim("b", share(1)), sm_percent=9), True, id="work on another card"),
        pytest.param(observed("uid-a"), True, id="observed itself"),
        pytest.param(damaged(frozenset({"gpu-1"})), True, id="damaged record on another card"),
        pytest.param(beside(B, sm_percent=1), False, id="utilization"),
        pytest.param(beside(B, host_pid=0, used=1), False, id="no PID on the host"),
        pytest.param(beside(B, host_pid=0), True, id="process without memory, such as nvidia-smi"),
        pytest.param(beside(B, processes=65), False, id="more than 64 processes"),
        pytest.param(beside(B, processes=-1), True, id="negative number of processes"),
        pytest.param(beside(B, launched_at=1_800_000_000), False, id="launch in the future"),
        pytest.param(beside(B, version=(1, 1)), False, id="version 1.1"),
        pytest.param(beside(unlimited(B)), False, id="limiter turned off"),
        pytest.param(beside(replace(B, enforcer="tensor-fusion")), False, id="other enforcer"),
        pytest.param(beside(replace(B, enforcer="none")), False, id="no enforcer"),
        pytest.param(beside(claim("b", share(), share(1)), sm_percent=9), False, id="two cards"),
        pytest.param(observed("uid-b"), False, id="observed by NVML"),
        pytest.param(unknown_use, False, id="use not known"),
        pytest.param(damaged(frozenset({"gpu-0"})), False, id="damaged record on the card"),
        pytest.param(damaged(None), False, id="damaged record on unknown cards"),
        pytest.param(in_place_of_file(Path.mkdir), False, id="folder"),
        pytest.param(in_place_of_file(os.mkfifo), False, id="pipe"),
        pytest.param(in_place_of_file(lambda path: path.symlink_to("/dev/null")), False, id="link"),
    ],
)
def test_tenant_that_works_has_its_card_while_all_others_are_known_to_be_idle(
    node: Node, change: Change, *, is_lifted: bool
) -> None:
    node.add(A)
    change(node)
    node.settle(A)

    assert (node.read(A, SWITCH) == OFF) is is_lifted
    assert node.hami.raised().get("uid-a") == (100 if is_lifted else None)


@pytest.mark.parametrize(
    ("borrower", "is_lifted"),
    [
        pytest.param(claim("a", share(), share(1)), True, id="two cards"),
        pytest.param(claim("a", share(), admin_share(1)), True, id="and admin access to another"),
        pytest.param(claim("a", share(), share(1, idle_compute=False)), False, id="one at request"),
        pytest.param(claim("a", share(idle_compute=False)), False, id="limit is the request"),
        pytest.param(claim("a", share(device_nodes=())), False, id="simulated card"),
        pytest.param(unlimited(A), False, id="without limit"),
        pytest.param(replace(A, enforcer="mps"), False, id="of another enforcer"),
        pytest.param(claim("a", admin_share(request="gpu")), False, id="admin access alone"),
    ],
)
def test_only_limits_above_the_request_on_real_cards_are_lifted(
    node: Node, borrower: PreparedClaim, *, is_lifted: bool
) -> None:
    node.add(borrower, B)

    assert node.settle(borrower) == ({"a"} if is_lifted else set())
    assert lending.may_borrow(borrower) is is_lifted


def test_claim_over_two_cards_has_both_or_none(node: Node) -> None:
    both, other = claim("a", share(), share(1)), claim("b", share(1))
    node.add(both, other)
    assert node.settle(both) == {"a"}

    assert node.round(both, other) == set()
    assert node.settle(both, other) == set()
    assert node.settle(other) == {"b"}


def test_use_by_nvml_alone_is_work(node: Node) -> None:
    """CUDA graphs set no launch time."""
    node.add(A, B)
    node.observed = {"uid-a"}

    assert node.settle() == {"a"}


def test_idle_tenant_borrows_nothing(node: Node) -> None:
    node.add(A)

    assert node.settle() == set()


def test_new_tenant_works_until_it_is_known_to_be_idle(node: Node) -> None:
    node.add(A)
    assert node.settle(A) == {"a"}
    without_file(node)

    assert node.round(A) == set()
    assert node.settle(A) == {"a"}
    node.add(B, launched_at=5)
    assert node.round(A) == set()


def test_limits_hold_in_the_round_after_a_launch_and_for_ten_seconds(node: Node) -> None:
    node.add(A, B)
    assert node.settle(A) == {"a"}

    assert node.round(A, B) == set()
    assert node.round(A, seconds=IDLE_SECONDS - 1) == set()
    assert node.round(A, seconds=1) == {"a"}
    # A pause of the borrower matters as late.
    assert node.round(seconds=IDLE_SECONDS - 1) == {"a"}
    assert node.round(seconds=1) == set()


def test_owner_has_its_share_back_within_two_seconds() -> None:
    """The time between two rounds, HAMi-core's 120 ms, and a launch time of whole seconds."""
    assert ROUND_SECONDS + 0.12 + 1 < 2
    assert 1 / ROUND_SECONDS >= 2


def test_lifted_limits_follow_the_work_from_tenant_to_tenant(node: Node) -> None:
    node.add(A, B)

    assert node.settle(A) == {"a"}
    assert node.settle(B) == {"b"}
    assert node.settle(A, B) == set()
    assert node.settle() == set()


CARDS: Final = st.sets(st.integers(0, 2), min_size=1)
TENANTS: Final = st.lists(st.tuples(CARDS, st.booleans(), st.booleans()), max_size=6)


@given(TENANTS, st.none() | st.sets(st.sampled_from(["gpu-0", "gpu-1", "gpu-2"])))
def test_at_most_one_tenant_of_a_card_is_lifted_and_only_beside_idle_ones(
    tenants: list[tuple[set[int], bool, bool]], damaged: set[str] | None
) -> None:
    claims = [
        claim(str(number), *(share(card, idle_compute=may) for card in cards))
        for number, (cards, may, _) in enumerate(tenants)
    ]
    works = {each.ref.uid: works for each, (_, _, works) in zip(claims, tenants, strict=True)}
    working = {uid for uid, is_working in works.items() if is_working}

    found = lending.borrowers(claims, working, damaged)

    for device in ("gpu-0", "gpu-1", "gpu-2"):
        at = {each.ref.uid for each in claims if device in {s.device for s in each.shares}}
        assert len(found & at) <= 1
        if found & at:
            assert working & at == found & at
            assert damaged is not None
            assert device not in damaged
    for each, (_, may, is_working) in zip(claims, tenants, strict=True):
        devices = {share.device for share in each.shares}
        others = {c.ref.uid for c in claims if devices & {s.device for s in c.shares}} - {
            each.ref.uid
        }
        is_sound = damaged is not None and damaged.isdisjoint(devices)
        assert (each.ref.uid in found) == (may and is_working and is_sound and not working & others)


@given(st.data())
def test_at_most_one_file_of_a_card_is_off_whoever_launches_when(data: st.DataObject) -> None:
    tenants = [A, B, claim("c", share(1)), claim("d", share(), share(1))]
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder))
        node.add(*tenants)
        for _ in range(data.draw(st.integers(1, 8))):
            working = data.draw(st.lists(st.sampled_from(tenants), unique_by=id))
            lifted = node.round(*working, seconds=data.draw(st.sampled_from([0.4, 4, 11])))
            for device in ("gpu-0", "gpu-1"):
                at = {c.ref.name for c in tenants if device in {s.device for s in c.shares}}
                at_work = {c.ref.name for c in working} & at
                assert len(lifted & at) <= 1
                assert at_work <= lifted & at or not lifted & at


# The files


def test_only_switch_and_memory_limits_are_ever_written(node: Node) -> None:
    """Not the recent kernel, for example, with which launches would wait."""
    a = claim("a", share(vram=60, wants=60))
    node.add(a, B, used=GIB, sm_percent=0)
    before = node.path(a).read_bytes()
    seen = set()

    for working in ([a], [a, B], [], [a]):
        node.settle(*working)
        node.claims[0] = replace(a, shares=(share(vram=40, wants=60),))
        node.settle(*working)
        content = bytearray(node.path(a).read_bytes())
        seen.add((bytes(content[SWITCH]), bytes(content[MEMORY_LIMITS])))
        for written in (SWITCH, MEMORY_LIMITS, LAUNCHED):  # the test wrote the last one
            content[written] = before[written]
        assert content == before

    assert len(seen) > 1


def full_file(path: Path) -> None:
    path.write_bytes(enforcer_files.hami_cache([limit(100, 80)] * 16, switch=0))


@pytest.mark.parametrize("size", [0, 1, 1_700, 1_727, 4_096, 2_007_040, 2_008_903])
def test_short_file_stays_as_it_is(node: Node, size: int) -> None:
    node.add(A, switch=0)
    os.truncate(node.path(A), size)
    before = node.path(A).read_bytes()

    node.settle()
    with node.path(A).open("r+b") as file, pytest.raises(OSError, match="too short"):
        cache.switch_compute_limits(file.fileno(), on=True)
    if size < MEMORY_LIMITS.stop:
        with pytest.raises(OSError, match="too short"):
            cache.set_memory_limits(str(node.path(A)), [GIB] * 16)

    assert node.path(A).read_bytes() == before


def test_file_that_is_cut_while_it_is_lifted_is_not_extended(node: Node) -> None:
    node.add(A, B)
    assert node.settle(A) == {"a"}
    os.truncate(node.path(A), 100)

    assert node.round(B) == set()
    assert node.path(A).stat().st_size == 100


@pytest.mark.parametrize("link", [Path.symlink_to, None])
def test_link_in_place_of_a_file_is_neither_read_nor_written(
    node: Node, tmp_path: Path, link: Callable[[Path, Path], None] | None
) -> None:
    full_file(tmp_path / "victim")
    before = (tmp_path / "victim").read_bytes()
    node.add(A, B)
    node.path(A).unlink()
    if link:
        link(node.path(A), tmp_path / "victim")
    else:
        os.mkfifo(node.path(A))
    node.observed = {"uid-a"}

    node.seconds += IDLE_SECONDS
    node.loop.check()
    node.seconds += IDLE_SECONDS
    node.loop.check()

    assert (tmp_path / "victim").read_bytes() == before
    assert "regular file" in cache.read(str(node.path(A))).reason or link


def test_file_that_its_tenant_removes_is_limited_again(node: Node) -> None:
    """Its processes still have it in their memory."""
    node.add(A, B)
    assert node.settle(A) == {"a"}
    with node.path(A).open("rb") as mapped:
        node.path(A).unlink()
        full_file(node.path(A))
        node.settle(B)
        mapped.seek(SWITCH.start)
        assert mapped.read(4) == ON

    assert node.lifted() == {"b"}
    assert node.limits(A) == [20] * 16


def test_lifted_claim_that_is_unprepared_is_limited_again(node: Node) -> None:
    node.add(A)
    assert node.settle(A) == {"a"}
    node.claims = []
    node.loop.check()

    assert node.read(A, SWITCH) == ON
    assert node.hami.raised() == {}


# Forgery


def reasons(node: Node, each: PreparedClaim) -> list[str]:
    return [found.reason for found in node.hami.judge(each, each.shares, (), is_new=False)]


def test_switch_that_a_tenant_turned_off_is_found_and_turned_on(node: Node) -> None:
    node.add(A, B)
    assert reasons(node, A) == ["LimiterActive"]
    node.write(A, SWITCH, OFF)

    (found,) = node.hami.judge(A, A.shares, (), is_new=False)
    assert (found.state, found.reason) == ("NotEnforced", "LimitsDiffer")
    assert "lifted though nothing is lent" in found.text

    assert node.round() == set()
    assert reasons(node, A) == ["LimiterActive"]
    # What is lent is not found, nor a switch that has no effect.
    assert node.settle(A) == {"a"}
    fixed = claim("c", share(2, idle_compute=False))
    node.add(fixed, switch=0)
    assert reasons(node, A) == ["IdleComputeLent"]
    assert reasons(node, fixed) == ["LimiterActive"]


@pytest.mark.parametrize("is_lifted_first", [False, True])
def test_limits_that_are_lifted_or_hold_again_while_they_are_judged_are_enforced(
    node: Node, monkeypatch: pytest.MonkeyPatch, *, is_lifted_first: bool
) -> None:
    node.add(A, B)
    node.settle(A)
    if not is_lifted_first:
        node.round(A, B)
        node.seconds += IDLE_SECONDS
    act = Event()
    read = os.pread

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        if not act.is_set():
            act.set()
            before = read(descriptor, size, offset)
            node.round(*([A, B] if is_lifted_first else [A]))
            return before if is_lifted_first else read(descriptor, size, offset)
        return read(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert reasons(node, A) == ["IdleComputeLent"]
    assert node.lifted() == (set() if is_lifted_first else {"a"})


def test_tenant_that_looks_busy_takes_nothing_that_is_reserved(node: Node) -> None:
    node.add(A, sm_percent=100)
    node.add(B)
    assert node.settle() == {"a"}

    assert node.round(B) == set()
    assert node.settle(B) == set()
    assert (node.limits(A), node.limits(B)) == ([20] * 16, [20] * 16)


def test_tenant_that_looks_idle_gets_no_more_than_its_request(node: Node) -> None:
    node.add(A, B)

    assert node.settle(B) == {"b"}
    assert (node.read(A, SWITCH), node.limits(A)) == (ON, [20] * 16)


@pytest.mark.parametrize("forged", [0, 80, 1 << 33])
def test_memory_limit_that_a_tenant_wrote_is_found_and_written_again(
    node: Node, forged: int
) -> None:
    node.add(A)
    node.write(A, MEMORY_LIMITS, struct.pack("<16Q", *[forged * GIB] * 16))
    assert reasons(node, A) == ["LimitsDiffer"]

    node.round()
    assert node.limits(A) == [20] * 16
    assert reasons(node, A) == ["IdleComputeLent"]


@pytest.mark.parametrize("processes", [1, 65, 1 << 30])
@pytest.mark.parametrize("forged", [21, 1 << 33])
def test_tenant_that_was_never_lent_memory_keeps_nobody_waiting(
    node: Node, forged: int, processes: int
) -> None:
    node.add(A)
    node.add(B)
    node.use_memory(A, forged)
    node.write(A, PROCESSES, processes.to_bytes(4, "little"))

    node.hami.apply(B, lambda: node.claims, NEVER)
    assert node.limits(A) == node.limits(B) == [20] * 16


@pytest.mark.parametrize("processes", [1, 65])
def test_tenant_that_forges_its_use_has_at_most_what_it_was_lent(
    node: Node, processes: int
) -> None:
    b = claim("b", share(vram=20, wants=60))
    node.add(claim("a", share(vram=60, wants=60)), b)
    node.round()
    a = node.claims[0] = claim("a", share(vram=20, wants=60))
    node.write(a, MEMORY_LIMITS, struct.pack("<16Q", *[80 * GIB] * 16))
    node.use_memory(a, 80)
    node.write(a, PROCESSES, processes.to_bytes(4, "little"))
    node.round()
    assert max(node.limits(a)) == 60

    with pytest.raises(RetryableError, match="team-a/a using more memory"):
        node.hami.apply(B, lambda: node.claims, NEVER)
    node.use_memory(a, 1)
    node.write(a, PROCESSES, b"\1\0\0\0")
    node.hami.apply(B, lambda: node.claims, NEVER)
    assert node.limits(a) == [20] * 16


# Starts, stops and two instances


def test_start_takes_back_what_a_killed_process_lent(node: Node) -> None:
    node.add(A, B)
    assert node.settle(A) == {"a"}
    node.unreadable = "no lock"
    node.write(A, VERSION, b"\1\0\0\0")  # a tenant cannot keep it by this
    node.new_loop().begin()

    assert node.read(A, SWITCH) == ON
    assert node.hami.raised() == {}


def test_start_of_the_enforcers_loops_takes_back(node: Node) -> None:
    node.add(A, B)
    assert node.settle(A) == {"a"}
    access = NodeAccess(lambda: (), PodsInMemory(), WorkerPodsInMemory())

    assert [*node.hami.loops(access)] == ["hami-core-lending"]
    assert node.lifted() == set()


def test_start_on_a_node_without_claims_writes_nothing(node: Node) -> None:
    node.loop.begin()
    node.run(*[lambda: None] * 3)

    assert not Path(node.hami.root).exists()


def test_start_beside_an_instance_that_lends_changes_nothing(node: Node) -> None:
    node.add(A, B)
    assert node.settle(A) == {"a"}
    with node_lock(Path(node.hami.root) / "lending.lock", wait_seconds=0), capture_logs() as logs:
        node.new_loop().begin()

    assert node.lifted() == {"a"}
    assert logs == []


def later(node: Node) -> None:
    """Let every tenant but A become idle."""
    node.seconds += IDLE_SECONDS
    node.launch(A)


def test_stop_takes_everything_back(node: Node) -> None:
    node.add(A, B)
    seen = []

    node.run(
        *[lambda: later(node)] * 4,
        lambda: seen.append((node.lifted(), {*node.hami.raised()})),
    )

    assert seen == [({"a"}, {"uid-a"})]
    assert node.lifted() == set()
    assert node.hami.raised() == {}


def test_records_that_cannot_be_read_take_everything_back(node: Node) -> None:
    node.add(A, B)
    seen = []

    def read_records(reason: str) -> None:
        seen.append(node.lifted())
        node.unreadable = reason

    node.run(
        *[lambda: later(node)] * 4,
        lambda: read_records("no lock"),
        lambda: read_records(""),
        *[lambda: later(node)] * 3,
        lambda: read_records(""),
    )

    assert seen == [{"a"}, set(), {"a"}]
    assert node.lifted() == set()


@pytest.mark.parametrize("is_lifted_before", [False, True])
def test_nothing_is_lifted_that_cannot_be_recorded(node: Node, *, is_lifted_before: bool) -> None:
    c = claim("c", share(1))
    node.add(A, B, c)
    node.settle(*([A] if is_lifted_before else []))
    record = Path(node.hami.root) / "lifted"
    record.unlink(missing_ok=True)
    (record / "in the way").mkdir(parents=True)

    for _ in range(3):
        with suppress(RetryableError):
            node.round(A, c, seconds=IDLE_SECONDS)
    assert node.lifted() <= {"a"}
    assert "c" not in node.lifted()
    with suppress(RetryableError):
        node.round(B)
    assert node.lifted() == set()


def test_file_is_recorded_from_before_it_is_lifted_until_after_it_is_limited(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = claim("a", share(), share(1, request="second"))
    node.add(a, B)
    seen = []
    write = written_files.write

    def written(descriptor: int, content: bytes, at: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        before = path in node.folders.lifted_files()
        write(descriptor, content, at)
        seen.append((Path(path).name, content, before, path in node.folders.lifted_files()))

    monkeypatch.setattr(written_files, "write", written)
    for working in ([a], [a], [B]):
        node.observed = {each.ref.uid for each in working}
        node.seconds += IDLE_SECONDS
        node.loop.check()
        node.seconds += IDLE_SECONDS
        node.loop.check()

    assert {name for name, *_ in seen} == {"gpu.cache", "second.cache"}
    assert [content for _, content, *_ in seen] == [OFF, OFF, ON, ON, OFF]
    assert all(before and after for _, _, before, after in seen)
    assert node.hami.raised() == {"uid-b": 100}


def test_of_two_instances_one_lends_and_the_other_takes_over(node: Node) -> None:
    node.add(A, B)
    node.observed = {"uid-a"}
    rounds = {"first": 0, "second": 0}
    stops = {"first": Event(), "second": Event()}

    def instance(name: str) -> LendingLoop:
        def records() -> Sequence[PreparedClaim]:
            rounds[name] += 1
            node.seconds += IDLE_SECONDS
            return node.claims

        access = NodeAccess(
            records,
            PodsInMemory(),
            WorkerPodsInMemory(),
            working=lambda: node.observed,
            wait_for_stop=lambda _: stops[name].wait(0.001),
        )
        return LendingLoop(
            node.folders, access, clock=lambda: node.seconds, wall_clock=node.wall_clock
        )

    with (
        capture_logs() as logs,
        running(instance("second").run, stop=stops["second"].set),
        running(instance("first").run, stop=stops["first"].set),
    ):
        assert eventually(lambda: node.lifted() == {"a"})
        lender, other = sorted(rounds, key=rounds.__getitem__, reverse=True)
        before = rounds[lender]
        assert eventually(lambda: rounds[lender] > before + 10)
        assert rounds[other] == 0
        stops[lender].set()
        assert eventually(lambda: rounds[other] > 10)
        assert eventually(lambda: node.lifted() == {"a"})
    assert node.lifted() == set()
    assert logs == []


# Memory


def test_memory_limit_is_lowered_to_what_is_used_and_others_wait(node: Node) -> None:
    """CUDA would report an error for a limit below what is in use."""
    a, b = claim("a", share(vram=60, wants=60)), claim("b", share(vram=20, wants=60))
    elsewhere = claim("c", share(1, vram=30, wants=30))
    node.add(a, b, elsewhere)
    node.round()
    assert (node.limits(a), node.limits(elsewhere)) == ([60] * 16, [30] * 16)
    node.use_memory(a, 55)
    lower, higher = claim("a", share(vram=20, wants=60)), claim("b", share(vram=60, wants=60))
    node.claims = [lower, higher, claim("c", share(1, vram=40, wants=40))]

    node.round()
    assert node.limits(a) == [55, *[20] * 15]
    assert node.limits(b) == [20] * 16
    assert node.limits(elsewhere) == [40] * 16
    node.use_memory(a, 50)
    node.round()
    assert (node.limits(a)[0], node.limits(b)[0]) == (50, 20)
    with pytest.raises(RetryableError, match=r"a using more memory .* to be free again"):
        node.hami.apply(higher, lambda: node.claims, NEVER)
    node.hami.apply(higher, lambda: node.claims, AT_ONCE)  # waits for nobody
    node.hami.apply(lower, lambda: node.claims, NEVER)  # nor does the one that is waited for

    node.use_memory(a, 20)
    node.hami.apply(higher, lambda: node.claims, NEVER)
    assert (node.limits(a), node.limits(b)) == ([20] * 16, [60] * 16)


def test_limit_of_zero_which_is_none_is_replaced_also_while_nothing_is_raised(node: Node) -> None:
    a = claim("a", share(vram=60, wants=60))
    node.add(a, B)
    node.round()
    node.use_memory(a, 55)
    node.write(B, MEMORY_LIMITS, bytes(128))
    node.claims[0] = claim("a", share(vram=20, wants=60))
    node.round()

    assert (node.limits(a)[0], node.limits(B)) == (55, [20] * 16)


def test_limit_follows_what_was_allocated_while_it_was_lowered(node: Node) -> None:
    a = claim("a", share(vram=60, wants=60))
    node.add(a)
    node.round()
    node.use_memory(a, 30)
    node.claims = [claim("a", share(vram=20, wants=60))]
    node.round()
    assert node.limits(a)[0] == 30

    node.use_memory(a, 35)
    node.round()
    assert node.limits(a)[0] == 35


def test_no_limit_is_raised_before_another_one_is_lowered(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = claim("b", share(vram=60, wants=60)), claim("a", share(vram=20, wants=60))
    node.add(a, b)
    node.round()
    node.claims = [claim("a", share(vram=60, wants=60)), claim("b", share(vram=20, wants=60))]
    totals = []
    write = written_files.write

    def written(descriptor: int, content: bytes, at: int) -> None:
        write(descriptor, content, at)
        totals.append(node.limits(a)[0] + node.limits(b)[0])

    monkeypatch.setattr(written_files, "write", written)
    node.round()

    assert totals == [40, 80]


def test_use_on_one_card_keeps_limits_of_a_claim_over_two_cards(node: Node) -> None:
    """Also if a claim on the other card is applied."""
    both = claim("b", share(0, vram=20, wants=60), share(1, vram=20, wants=60))
    a, c = claim("a", share(0)), claim("c", share(1, vram=60, wants=60))
    node.add(a, both, c)
    node.round()
    node.use_memory(c, 50)
    raised = claim("b", share(0, vram=20, wants=60), share(1, vram=60, wants=60))
    node.claims = [a, raised, claim("c", share(1, vram=20, wants=60))]

    node.hami.apply(a, lambda: node.claims, NEVER)

    assert (node.limits(raised)[:2], node.limits(c)[0]) == ([20, 20], 50)


def test_use_on_the_second_card_of_a_claim_keeps_limits_of_its_tenants(node: Node) -> None:
    both, c = claim("b", share(0), share(1, vram=60, wants=60)), claim("c", share(1))
    node.add(both, c)
    node.round()
    second = slice(USED.start + 64, USED.stop + 64)
    node.write(both, second, (50 * GIB).to_bytes(8, "little"))
    node.claims = [
        claim("b", share(0), share(1, wants=60)),
        claim("c", share(1, vram=60, wants=60)),
    ]

    node.round()
    assert (node.limits(both)[:2], node.limits(c)[0]) == ([20, 50], 20)
    node.write(both, second, bytes(8))
    node.round()
    assert (node.limits(both)[:2], node.limits(c)[0]) == ([20, 20], 60)


def test_cards_have_their_limits_at_their_index_and_all_others_the_smallest(node: Node) -> None:
    node.add(claim("a", share(1, vram=30, wants=30), share(0, vram=50, wants=50)))
    node.round()

    assert node.limits(A) == [50, 30] + [30] * 14


def test_requests_of_a_claim_have_equal_limits(node: Node) -> None:
    """A container that uses both counts in the file of one of them, at any index."""
    a = claim("a", share(vram=50, wants=50), share(1, vram=30, wants=30, request="second"))
    node.add(a)
    node.round()

    assert node.limits(a) == node.limits(a, "second") == [30] * 16
    assert reasons(node, a) == ["IdleComputeLent"] * 2


def test_old_record_keeps_its_memory_and_never_borrows(node: Node) -> None:
    fixed = {"divides_memory": False, "idle_compute": False}
    a = claim("a", share(vram=20, wants=60, **fixed))
    node.add(a, B)
    node.write(a, MEMORY_LIMITS, struct.pack("<16Q", *[19 * GIB] * 16))

    assert node.settle(a) == set()
    assert node.limits(a) == [19] * 16


# Use that is above what a tenant has now


def restarted(node: Node) -> None:
    """Have another process go on, which knows only what is on the disk."""
    node.folders = ClaimFolders(node.hami.root)
    node.loop = node.new_loop()
    node.hami = replace(node.hami)


LESS: Final = [
    pytest.param(30, 30, id="resize to less"),
    pytest.param(40, 80, id="lower lending-factor"),
    pytest.param(20, 80, id="overcommit-limits off"),
]


@pytest.mark.parametrize("between", [lambda _: None, restarted], ids=["running", "restarted"])
@pytest.mark.parametrize(("vram", "wants"), LESS)
def test_limit_is_never_below_use_whatever_made_it_less(
    node: Node, between: Change, vram: int, wants: int
) -> None:
    b = claim("b", share(wants=60))
    node.add(claim("a", share(vram=80, wants=80)), b)
    node.round()
    node.use_memory(A, 55)
    between(node)
    node.claims[0] = claim("a", share(vram=vram, wants=wants))

    for used in (55, 50):
        node.use_memory(A, used)
        node.round()
        assert node.limits(A)[0] == used
        with pytest.raises(RetryableError, match="team-a/a using more memory"):
            node.hami.apply(b, lambda: node.claims, NEVER)
        between(node)
    node.use_memory(A, 10)
    node.hami.apply(b, lambda: node.claims, NEVER)
    assert node.limits(A)[0] == vram


def test_use_is_remembered_while_the_record_cannot_be_read(node: Node) -> None:
    node.add(claim("a", share(vram=60, wants=60)), B)
    node.round()
    node.use_memory(A, 55)
    node.claims = [B]
    node.round()
    restarted(node)

    node.claims = [claim("a", share(wants=60)), B]
    node.round()

    assert node.limits(A)[0] == 55


def removed(node: Node, _: pytest.MonkeyPatch) -> None:
    node.path(A).unlink()


def folder_instead(node: Node, patch: pytest.MonkeyPatch) -> None:
    removed(node, patch)
    node.path(A).mkdir()


def other_version(node: Node, _: pytest.MonkeyPatch) -> None:
    node.write(A, VERSION, b"\3\0\0\0")


def cut(node: Node, _: pytest.MonkeyPatch) -> None:
    os.truncate(node.path(A), 5_000)


def refused(node: Node, patch: pytest.MonkeyPatch) -> None:
    """Refuse to open the file, as the kernel does by its mode for all but root."""
    opens = os.open

    def refuse(path: str, *args: Any, **options: Any) -> int:
        if path == str(node.path(A)):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opens(path, *args, **options)

    patch.setattr(os, "open", refuse)


@pytest.mark.parametrize("hide", [removed, folder_instead, other_version, cut, refused])
@pytest.mark.parametrize("is_lent", [True, False])
def test_tenant_that_hides_its_use_keeps_others_waiting_only_for_what_it_was_lent(
    node: Node, monkeypatch: pytest.MonkeyPatch, hide: Callable[..., None], *, is_lent: bool
) -> None:
    lent, b = claim("a", share(vram=60, wants=60)), claim("b", share(vram=60, wants=60))
    less = claim("a", share(vram=20, wants=60))
    node.add(lent if is_lent else less, claim("b", share(vram=20, wants=60)))
    node.round()
    hide(node, monkeypatch)
    node.round()

    node.claims = [lent, b]
    node.hami.apply(b, lambda: node.claims, NEVER)  # it has what it may have
    node.claims = [less, b]
    if is_lent:
        with pytest.raises(RetryableError, match="team-a/a using more memory"):
            node.hami.apply(b, lambda: node.claims, NEVER)
    else:
        node.hami.apply(b, lambda: node.claims, NEVER)
        assert node.limits(b)[0] == 60


def test_claim_that_has_not_used_its_card_yet_has_been_lent_nothing(node: Node) -> None:
    node.claims = [claim("a", share(vram=60, wants=60))]
    node.round()
    node.add(B)
    node.claims[0] = claim("a", share(vram=20, wants=60))

    node.hami.apply(B, lambda: node.claims, NEVER)


def test_limit_that_cannot_be_written_is_not_lent(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent, less = claim("a", share(vram=60, wants=60)), claim("a", share(vram=20, wants=60))
    node.add(lent, B)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "set_memory_limits", failing_write)
        node.round()
    node.use_memory(A, 55)
    node.claims[0] = less

    node.hami.apply(B, lambda: node.claims, NEVER)


def failing_write(path: str, limits: Sequence[int]) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", path)


@pytest.mark.parametrize("index", [0, 1, 2, 15])
def test_forged_use_of_a_claim_that_was_never_lent_memory_keeps_nobody_waiting(
    node: Node, index: int
) -> None:
    a = claim("a", share(0, wants=80), share(1, wants=80))
    others = [claim(f"b{card}", share(card, vram=60, wants=60)) for card in (0, 1)]
    node.add(a, *others)
    at = slice(USED.start + 64 * index, 0)
    node.write(a, at, (60 * GIB).to_bytes(8, "little"))

    for other in others:
        node.hami.apply(other, lambda: node.claims, NEVER)
    assert [node.limits(other)[0] for other in others] == [60, 60]
    assert node.limits(a) == [20] * 16


@pytest.mark.parametrize("index", [2, 15])
def test_use_at_an_index_that_the_container_lacks_is_none(node: Node, index: int) -> None:
    node.add(claim("a", share(0, vram=60, wants=60), share(1, vram=60, wants=60)), B)
    node.round()
    node.write(A, slice(USED.start + 64 * index, 0), (60 * GIB).to_bytes(8, "little"))
    node.claims[0] = claim("a", share(0, wants=60), share(1, wants=60))

    node.hami.apply(B, lambda: node.claims, NEVER)
    assert node.limits(A) == [20] * 16


def test_use_of_one_card_keeps_nobody_waiting_on_another_one(node: Node) -> None:
    first, second = (claim(f"b{card}", share(card)) for card in (0, 1))
    node.add(claim("a", share(0, vram=60, wants=60), share(1, vram=60, wants=60)), first, second)
    node.round()
    node.use_memory(A, 55)
    node.claims[0] = claim("a", share(0, wants=60), share(1, wants=60))

    node.hami.apply(second, lambda: node.claims, NEVER)
    with pytest.raises(RetryableError, match="GPU-0: found claim team-a/a"):
        node.hami.apply(first, lambda: node.claims, NEVER)


# A tenant that gets in the way of writes


def test_writes_of_a_tenant_that_hold_the_lock_of_its_file_stop_no_round(node: Node) -> None:
    """A write that waits for the lock waits for at least one of theirs."""
    node.add(A, B)
    node.round()
    stop, started = Event(), [Event() for _ in range(4)]
    longest = [bytes(1 << 22)] * 16
    counts = Counter[int]()

    def write_much(number: int) -> None:
        with node.path(A).open("r+b") as file:
            while not stop.is_set():
                started[number].set()
                os.pwritev(file.fileno(), longest, 4 << 20)
                counts[number] += 1

    threads = [Thread(target=write_much, args=[number]) for number in range(4)]
    with node.path(A).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        for thread in threads:
            thread.start()
        for each in started:
            each.wait()
        try:
            before = counts.total()
            for _ in range(20):
                mapped[SWITCH], mapped[MEMORY_LIMITS] = OFF, bytes(128)
                node.loop.check()
                assert mapped[SWITCH] == ON
                assert mapped[MEMORY_LIMITS] == struct.pack("<16Q", *[20 * GIB] * 16)
            done = counts.total() - before
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    assert done < 20


def test_claim_has_sixty_four_writes_and_one_more_each_minute() -> None:
    seconds = 0.0
    budget = WriteBudget(lambda: seconds)

    def writes(uid: str) -> int:
        return [budget.take(uid) for _ in range(100)].count(True)

    assert (writes("a"), writes("b")) == (64, 64)
    seconds += 59
    assert writes("a") == 0
    seconds += 1
    assert writes("a") == 1
    seconds += 150
    assert writes("a") == 2
    seconds += 30
    assert writes("a") == 1
    seconds += 86_400
    assert writes("a") == 64
    budget.renew("a")
    assert (writes("a"), writes("b")) == (64, 64)
    budget.keep_only({"b"})
    assert (writes("a"), writes("b")) == (64, 0)


def test_limits_that_a_tenant_changes_are_written_within_its_budget(node: Node) -> None:
    node.add(A)
    node.settle()
    node.folders._budget = WriteBudget(lambda: 0)
    forged = struct.pack("<16Q", *[80 * GIB] * 16)
    written = 0
    for _ in range(100):
        node.write(A, MEMORY_LIMITS, forged)
        node.round()
        written += node.limits(A) == [20] * 16

    assert written == WriteBudget.MAX
    node.claims = [claim("a", share(vram=30, wants=30))]
    node.round()
    assert node.limits(A) == [30] * 16


@pytest.mark.parametrize(
    ("is_working", "vram"),
    [
        pytest.param(False, 20, id="switch"),
        pytest.param(True, 20, id="lifted switch"),
        pytest.param(False, 60, id="memory that is lent"),
    ],
)
def test_files_that_a_tenant_replaces_each_round_get_no_more_pages_than_its_budget(
    node: Node, monkeypatch: pytest.MonkeyPatch, vram: int, *, is_working: bool
) -> None:
    """It keeps the old ones, whose pages are charged to the process that wrote them."""
    node.folders._budget = WriteBudget(lambda: 0)
    a = claim("a", share(vram=vram, wants=vram))
    node.add(a)
    node.settle()
    node.observed = {"uid-a"} if is_working else set()
    node.loop.check()
    write, pages = written_files.write, set()

    def counted(descriptor: int, content: bytes, at: int) -> None:
        write(descriptor, content, at)
        pages.add((os.fstat(descriptor).st_ino, at // 4096))

    monkeypatch.setattr(written_files, "write", counted)
    head = enforcer_files.hami_cache([REQUEST] * 16)[:4096]
    for number in range(200):
        path = node.path(a)
        path.rename(path.with_suffix(f".{number}"))
        path.write_bytes(head)
        os.truncate(path, LAUNCHED.stop)
        node.loop.check()

    assert 10 < len(pages) <= WriteBudget.MAX


# What is said to be lent


def test_nothing_is_lent_without_a_file(node: Node) -> None:
    node.claims = [A]
    node.observed = {"uid-a"}
    for _ in range(30):
        node.seconds += 1
        node.loop.check()

    assert node.hami.raised() == {}
    assert "IdleComputeLent" not in reasons(node, A)


def test_new_file_in_place_of_a_lifted_one_is_lifted_in_the_next_round(node: Node) -> None:
    node.add(A, B)
    node.observed = {"uid-a"}
    assert node.settle(A) == {"a"}
    node.path(A).unlink()
    node.loop.check()
    assert node.hami.raised() == {}

    node.add(A)
    node.loop.check()
    assert node.hami.raised() == {"uid-a": 100}
    assert node.lifted() == {"a"}
    node.add(A)  # the same file, made anew
    node.loop.check()
    assert node.lifted() == {"a"}


def test_nothing_is_lent_by_a_file_that_is_cut(node: Node) -> None:
    node.add(A, B)
    node.observed = {"uid-a"}
    assert node.settle(A) == {"a"}
    os.truncate(node.path(A), 100)
    node.loop.check()

    assert node.hami.raised() == {}
    assert node.folders.lifted_files() == set()
    node.add(A)
    node.loop.check()
    assert node.hami.raised() == {"uid-a": 100}


# Cost


def test_a_round_needs_few_system_calls_a_file(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = [claim(str(number), share(number % 8, vram=4)) for number in range(128)]
    node.add(*claims, processes=8)
    node.round()
    node.round()
    counts: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def count(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return call(*args, **options)

        return count

    for name in ("open", "fstat", "stat", "pread", "preadv", "close", "rename", "scandir"):
        monkeypatch.setattr(os, name, counted(name))
    node.loop.check()

    assert counts["preadv"] == counts["rename"] == counts["scandir"] == 0
    assert sum(counts.values()) <= 10 * len(claims) + 10, counts
