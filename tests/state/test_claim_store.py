"""The store on a real disk: records, transactions, restarts, damage, power cuts, other releases."""

import errno
import itertools
import os
import random
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.lending import Devices
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError, FatalError, NoRoomError, RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.state import claim_records, claim_store
from tensorfusion_dra.state.claim_records import DamageError
from tensorfusion_dra.state.claim_store import FOLDER, LOCK, ClaimStore
from tests.state.child import line, running_child
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import allocated_claim, claim_admission, claim_record
from tests.support.builders.nodes import RULES
from tests.support.builders.policies import share_policy
from tests.support.disk import read_only
from tests.support.stores import (
    GPU_0,
    GPU_1,
    NODE,
    file_of,
    opened,
    put,
    recorded_claim,
    remove,
    uids,
)
from tests.support.tally import portion
from tests.support.waiting import PATIENCE_SECONDS, eventually

FORMAT_1 = Path(__file__).parent / "format_1"
"""Records that commit 7b482ca8 wrote, with its store."""


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / FOLDER).iterdir()}


def test_records_survive_a_restart(tmp_path: Path) -> None:
    pods = (PodRef(namespace="default", name="b", uid="uid-of-b"),)
    a, b = replace(recorded_claim("a"), pods=pods), recorded_claim("b", device=GPU_1)
    with opened(tmp_path) as store:
        put(store, a, b)

    with opened(tmp_path) as store:
        assert store.claims() == [a, b]
    assert sorted(files(tmp_path)) == ["uid-a.json", "uid-b.json"]


def test_record_replaces_an_older_one_and_removing_an_unknown_one_writes_nothing(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as store:
        put(store, claim_record("a", allocation(GPU_0, 1), allocation(GPU_1, 2), on=NODE))
        put(store, recorded_claim("a", device=GPU_1))
        before = files(tmp_path)

        remove(store, "uid-unknown")

        assert files(tmp_path) == before
        (kept,) = store.claims()
        assert [share.device for share in kept.shares] == [GPU_1]


def test_only_changed_records_of_another_instance_are_decoded_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store, opened(tmp_path) as other:
        put(store, recorded_claim("b"))
        first = store.claims()

        put(store, recorded_claim("a", number=2))
        own = store.claims()
        remove(other, "uid-a")
        put(other, recorded_claim("c", number=3))

        assert own[1] is first[0]
        assert [claim.ref.uid for claim in own] == ["uid-a", "uid-b"]
        assert uids(store) == ["uid-b", "uid-c"]


def test_transaction_sees_its_own_changes(tmp_path: Path) -> None:
    b = recorded_claim("b", number=2)
    with opened(tmp_path) as store:
        put(store, recorded_claim("a"))

        with store.transaction() as records:
            records.remove("uid-a")
            records.put(b)

            assert (records.get("uid-a"), records.get("uid-b"), [*records.by_uid.values()]) == (
                None,
                b,
                [b],
            )


def test_failed_transaction_changes_nothing(tmp_path: Path) -> None:
    a, b = recorded_claim("a"), recorded_claim("b", number=2)
    with opened(tmp_path) as store:
        put(store, a)
        before = files(tmp_path)

        with suppress(ClaimError), store.transaction() as records:
            records.remove("uid-a")
            records.put(b)
            raise ClaimError("no room")

        assert (store.claims(), files(tmp_path)) == ([a], before)
        put(store, b)
        assert store.claims() == [a, b]


def test_changed_limits_of_others_are_known_and_only_the_one_record_is_written(
    tmp_path: Path,
) -> None:
    a, b = (
        allocated_claim(name, allocation(GPU_0, number, tflops="1", vram="10Gi"))
        for number, name in enumerate("ab")
    )
    with opened(tmp_path) as store, opened(tmp_path) as other:
        put(store, claim_admission(a, on=NODE, policy=share_policy(vram="80Gi")))
        before = files(tmp_path)

        with store.transaction() as records:
            records.put(claim_admission(b, on=NODE, beside=records.by_uid.values()))
        changed = [claim.ref.name for claim in records.changed()]
        with store.transaction() as records:
            records.get("uid-a")

        assert (changed, records.changed()) == (["a"], [])
        assert files(tmp_path).items() >= before.items()
        assert other.claims() == store.claims()


def test_store_in_a_read_only_folder_opens_once_it_is_writable(reachable: Path) -> None:
    folder = reachable / "plugin"
    with opened(folder) as store:
        put(store, recorded_claim("a"))

    with read_only(folder), pytest.raises(RetryableError, match=str(folder / FOLDER)):
        ClaimStore(folder, rules=RULES)

    with opened(folder) as store:
        assert uids(store) == ["uid-a"]


@pytest.mark.process
def test_full_disk_refuses_records_and_still_removes_them(tiny_disk: Path) -> None:
    def fill(store: ClaimStore) -> None:
        for number in itertools.count():
            put(store, recorded_claim(f"{number:04}", number=number))

    with opened(tiny_disk) as store:
        with pytest.raises(NoRoomError, match=str(tiny_disk / FOLDER)):
            fill(store)
        recorded = uids(store)
    with opened(tiny_disk) as store:
        remove(store, recorded[0])
        remove(store, recorded[1])
        put(store, recorded_claim("last", device=GPU_1))

    with opened(tiny_disk) as store:
        assert uids(store) == [*recorded[2:], "uid-last"]


def test_next_release_reads_this_ones_records_and_this_one_refuses_the_nexts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = recorded_claim("a"), recorded_claim("b", number=2)
    refusal = r"uid-b\.json: found format 2, expected at most 1: a newer release"
    with opened(tmp_path) as store:
        put(store, a)
        with monkeypatch.context() as next_release:
            next_release.setitem(claim_records.READERS, 2, PreparedClaim.from_json)
            with opened(tmp_path) as newer:
                assert newer.claims() == [a]
                put(newer, b)
        before = files(tmp_path)

        with pytest.raises(FatalError, match=refusal):
            store.claims()
        with pytest.raises(FatalError, match=refusal):
            claim_store.read(tmp_path)
        with pytest.raises(FatalError, match=refusal):
            ClaimStore(tmp_path, rules=RULES)

    assert files(tmp_path) == before


def test_records_that_the_first_build_of_format_1_wrote_are_written_back_as_they_were(
    tmp_path: Path,
) -> None:
    """Of lent and fixed limits, whole cards, admin access, with device metadata and without."""
    before = {path.name: path.read_bytes() for path in FORMAT_1.iterdir()}
    shutil.copytree(FORMAT_1, tmp_path / claim_store.FOLDER)

    for name, content in before.items():
        assert claim_records.content(claim_records.read(FORMAT_1 / name)) == content
    with opened(tmp_path) as store:
        claims = store.claims()
        put(store, *claims)
        assert store.claims() == claims
    assert files(tmp_path) == before


def test_reading_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, *(recorded_claim(f"{number}", number=number) for number in range(9)))
        before = files(tmp_path), (tmp_path / LOCK).stat().st_size

        assert len(claim_store.read(tmp_path).claims) == 9

    assert (files(tmp_path), (tmp_path / LOCK).stat().st_size) == before
    assert claim_store.read(tmp_path / "missing") == claim_records.FoundRecords()
    assert not (tmp_path / "missing").exists()


def test_store_locked_by_another_instance_is_readable_but_refuses_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_store, "_WAIT_SECONDS", 0.05)
    with opened(tmp_path) as store, opened(tmp_path) as other:
        put(store, recorded_claim("a"))
        with other.transaction() as records:
            records.put(recorded_claim("b", number=2))
            assert uids(store) == ["uid-a"]
            with pytest.raises(
                RetryableError, match=r"claims: held by another instance for 0.05 s"
            ):
                remove(store, "uid-a")

        remove(store, "uid-a")
        assert uids(store) == ["uid-b"]


def test_two_instances_never_allocate_the_same_capacity_twice(tmp_path: Path) -> None:
    def admit(name: str) -> tuple[list[str], str]:
        """Admit claims for a sixteenth of the card until one is refused."""
        admitted: list[str] = []
        with opened(tmp_path) as store:
            while True:
                number = ord(name) * 1000 + len(admitted)
                wanted = allocation(GPU_0, number, tflops="1", vram="5Gi")
                claim = allocated_claim(f"{name}-{number}", wanted)
                try:
                    with store.transaction() as records:
                        records.put(claim_admission(claim, on=NODE, beside=records.by_uid.values()))
                except ClaimError as error:
                    return admitted, str(error)
                admitted.append(claim.ref.uid)

    with ThreadPoolExecutor(2) as instances:
        (of_x, error_x), (of_y, error_y) = instances.map(admit, "xy")

    with opened(tmp_path) as store:
        assert sorted(of_x + of_y) == uids(store)
    assert len(of_x + of_y) == 16
    full = "vram: found 5Gi plus 80Gi in use, expected at most 80Gi"
    assert (full in error_x, full in error_y) == (True, True)


def test_two_instances_may_create_a_store_at_the_same_time(tmp_path: Path) -> None:
    together = Barrier(2, timeout=PATIENCE_SECONDS)

    def begin(_: int) -> None:
        for number in range(60):
            together.wait()
            ClaimStore(tmp_path / str(number), rules=RULES).close()

    with ThreadPoolExecutor(2) as instances:
        assert list(instances.map(begin, range(2))) == [None, None]


# Flushes


class Disk:
    """Stands in for os.fsync: counts the flushes, and blocks or fails them."""

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
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()
    monkeypatch.setattr(os, "fsync", found.flush)
    yield found
    found.open.set()


@contextmanager
def flushing(disk: Disk, act: Callable[[], None]) -> Iterator[Thread]:
    """Run the block while the flush of an action in another thread waits; then end it."""
    disk.open.clear()
    disk.entered.clear()
    thread = Thread(target=act, daemon=True)
    thread.start()
    assert disk.entered.wait(PATIENCE_SECONDS)
    yield thread
    disk.open.set()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_put_flushes_file_and_folder_a_removal_the_folder_and_reading_nothing(
    tmp_path: Path, disk: Disk
) -> None:
    counts = []
    with opened(tmp_path) as store:
        for act in (
            lambda: put(store, recorded_claim("a")),
            lambda: uids(store),
            lambda: remove(store, "uid-a"),
            lambda: remove(store, "uid-a"),  # another call's may not be flushed yet
        ):
            disk.flushes = 0
            act()
            counts.append(disk.flushes)

    assert counts == [2, 0, 1, 1]


def test_record_is_visible_while_it_is_flushed_and_others_do_not_wait(
    tmp_path: Path, disk: Disk
) -> None:
    with (
        opened(tmp_path) as store,
        opened(tmp_path) as other,
        flushing(disk, lambda: put(store, recorded_claim("a"))) as thread,
    ):
        with other.transaction() as records:
            seen = [claim.ref.uid for claim in records.by_uid.values()]
        assert (seen, uids(store), thread.is_alive()) == (["uid-a"], ["uid-a"], True)
        assert sorted(files(tmp_path)) == ["uid-a.new"]

    assert sorted(files(tmp_path)) == ["uid-a.json"]


def test_call_that_reads_another_instances_record_is_answered_after_its_flush(
    tmp_path: Path, disk: Disk
) -> None:
    answered = Event()
    with opened(tmp_path) as store, opened(tmp_path) as other:

        def answer() -> None:
            with other.transaction() as records:
                assert records.get("uid-a") is not None
            answered.set()

        with flushing(disk, lambda: put(store, recorded_claim("a"))):
            disk.entered.clear()
            Thread(target=answer, daemon=True).start()
            assert disk.entered.wait(PATIENCE_SECONDS)
            assert not answered.is_set()
        assert answered.wait(PATIENCE_SECONDS)


def test_record_that_was_replaced_during_its_flush_is_flushed_as_it_is_now(
    tmp_path: Path, disk: Disk
) -> None:
    newer = recorded_claim("a", device=GPU_1)
    with opened(tmp_path) as store:
        with flushing(disk, lambda: put(store, recorded_claim("a"))):
            second = Thread(target=lambda: put(store, newer), daemon=True)
            second.start()
            assert eventually(lambda: store.claims() == [newer])
        second.join(PATIENCE_SECONDS)

        assert claim_store.read(tmp_path).unflushed == set()
    with opened(tmp_path) as store:
        assert store.claims() == [newer]


def test_record_whose_flush_failed_is_not_there_and_can_be_put_again(
    tmp_path: Path, disk: Disk
) -> None:
    old = recorded_claim("a")
    with opened(tmp_path) as store:
        put(store, old)
        disk.failure = OSError(errno.EIO, os.strerror(errno.EIO))
        for claim in (replace(old, sequence=9), recorded_claim("b", number=2)):
            with pytest.raises(RetryableError, match="Input/output error"):
                put(store, claim)
        disk.failure = None

        assert store.claims() == [old]
        put(store, recorded_claim("b", number=2))
        assert uids(store) == ["uid-a", "uid-b"]


# Other processes


@pytest.mark.process
def test_killed_process_loses_no_record_that_it_reported_and_stops_no_other(
    tmp_path: Path,
) -> None:
    with (
        opened(tmp_path) as store,
        running_child("record_claims", tmp_path, "x") as x,
        running_child("record_claims", tmp_path, "y") as y,
    ):
        reported = [line(process) for _ in range(20) for process in (x, y)]
        for killed in (x, y):
            killed.send_signal(signal.SIGKILL)
            assert killed.wait() == -signal.SIGKILL
            assert killed.stdout is not None
            reported += killed.stdout.read().split()
            if killed is x:
                reported += [line(y) for _ in range(20)]
        beside = uids(store)

    with opened(tmp_path) as store:
        recorded = uids(store)
    assert beside == recorded
    assert set(reported) <= set(recorded)
    assert len(recorded) <= len(set(reported)) + 2
    assert all(name.endswith(".json") for name in files(tmp_path))


# Damage: it never frees a share, and is repaired from memory or by the next put


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of two claims on the same card."""
    with opened(tmp_path) as store:
        put(store, recorded_claim("a"), recorded_claim("b", number=2))
    return tmp_path


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "text": lambda file: file.write_bytes(b"garbage"),
    "zeros": lambda file: file.write_bytes(b"\0" * 3000),
    "deep": lambda file: file.write_bytes(b"[" * 100_000),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-200]),
    "another amount": lambda file: file.write_bytes(file.read_bytes().replace(b"80", b"81", 1)),
    "another's": lambda file: file.write_bytes(file.with_name("uid-b.json").read_bytes()),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_record_counts_with_its_devices_until_it_is_removed(
    folder: Path, damage: Callable[[Path], object]
) -> None:
    damage(file_of(folder, "uid-a"))

    with opened(folder, devices_of=lambda _: {GPU_0}) as store:
        assert (uids(store), store.damaged()) == (["uid-b"], {"uid-a": {GPU_0}})
        assert list(claim_store.read(folder).damaged) == ["uid-a"]
        remove(store, "uid-a")
        assert store.damaged() == {}


def test_folder_in_place_of_a_record_is_damage(folder: Path) -> None:
    file_of(folder, "uid-a").unlink()
    file_of(folder, "uid-a").mkdir()

    with opened(folder) as store:
        assert (uids(store), store.damaged()) == (["uid-b"], {"uid-a": None})


@pytest.mark.parametrize("damage", [Path.unlink, *DAMAGES.values()], ids=["missing", *DAMAGES])
def test_check_writes_again_what_this_process_knows(
    folder: Path, damage: Callable[[Path], object]
) -> None:
    with opened(folder) as store:
        before = files(folder)
        damage(file_of(folder, "uid-a"))

        store.check()
        store.check()

        assert files(folder) == before
        assert (uids(store), store.restored) == (["uid-a", "uid-b"], 1)


def limits(store: ClaimStore) -> list[float]:
    shares = [share for claim in store.claims() for share in claim.shares]
    return [share.limit.vram_bytes / GIB for share in shares if share.limit]


@pytest.mark.parametrize(
    ("devices", "lent"), [({GPU_0}, [10, 60]), ({GPU_1}, [60, 10]), (None, [10, 10])]
)
def test_nothing_is_lent_beside_a_damaged_record_until_it_is_put_again(
    tmp_path: Path, devices: Devices, lent: list[float]
) -> None:
    damaged = recorded_claim("b", number=7)
    borrowers = [
        claim_record(
            f"a{number}",
            allocation(device, number, tflops="1", vram="10Gi"),
            on=NODE,
            policy=share_policy(vram="60Gi"),
        )
        for number, device in enumerate((GPU_0, GPU_1))
    ]
    with opened(tmp_path) as store:
        put(store, *borrowers, damaged)
    file_of(tmp_path, "uid-b").write_text("{")

    with opened(tmp_path, devices_of=lambda _: devices) as store:
        assert limits(store) == lent
        with store.transaction() as records:
            records.put(recorded_claim("c", device=GPU_1, number=9))
            records.remove("uid-c")
        assert limits(store) == lent

        put(store, damaged)
        assert limits(store)[:2] == [60, 60]
        assert (store.damaged(), store.restored) == ({}, 1)


@pytest.mark.parametrize("devices", [{GPU_0}, None])
def test_new_claim_is_refused_beside_a_damaged_record_but_not_the_claim_of_one(
    devices: Devices,
) -> None:
    a, c = (allocated_claim(name, allocation(GPU_0, 1)) for name in "ac")

    with pytest.raises(RetryableError, match=rf"{GPU_0}: found the record of claim uid-b damaged"):
        claim_admission(c, on=NODE, damaged={"uid-b": devices})
    claim_admission(a, on=NODE, damaged={"uid-b": devices, "uid-a": {GPU_0}})


def test_unanswered_record_that_a_power_cut_left_in_part_does_not_count(folder: Path) -> None:
    before = files(folder)
    file_of(folder, "uid-a").with_suffix(".new").write_bytes(before["uid-a.json"][:100])
    file_of(folder, "uid-c").with_suffix(".new").touch()

    with opened(folder) as store:
        assert (uids(store), store.damaged()) == (["uid-a", "uid-b"], {})

    assert files(folder) == before


def test_no_flipped_bit_makes_another_record_or_a_newer_format(folder: Path) -> None:
    file = file_of(folder, "uid-a")
    content, claim = file.read_bytes(), claim_records.read(file)
    chance, tries, same = random.Random(1), portion(10_000, least=1_000), 0

    for _ in range(tries):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        with suppress(DamageError):
            assert claim_records.read(file) == claim
            same += 1  # the case of a \\u escape, or whitespace

    assert same < tries / 100


# A power cut at every moment: a test double loses what was not flushed, contents and names

Names = dict[str, int]
"""Inode by name."""
Allowed = list[PreparedClaim | None]


class LossyDisk:
    """What of a folder would be there after a power cut.

    A flush of a file makes its content durable, a flush of the folder its names. Without one, of
    the changes of names since the last flush any first part may be there, and of a file's content
    nothing, a part, or all.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.at_every_step: Callable[[], None] = lambda: None
        self._possible: list[Names] = [{}]
        self._content: dict[int, bytes] = {}
        self._flushed: dict[int, bytes] = {}
        for name, note in (
            *(("open", self._opened), ("write", self._written), ("fsync", self._flushed_one)),
            *(("rename", self._named), ("unlink", self._named)),
        ):
            patch.setattr(os, name, self._noting(getattr(os, name), note))

    def cuts(self) -> Iterator[dict[str, bytes]]:
        """Yield each possible content of the folder if the power is cut now."""
        for names in self._possible:
            for part in (0, 2, 1):
                yield {
                    name: self._flushed.get(
                        inode,
                        self._content[inode][: len(self._content[inode]) // part] if part else b"",
                    )
                    for name, inode in names.items()
                }

    def _noting(self, call: Callable[..., Any], note: Callable[..., bool]) -> Callable[..., Any]:
        """Return the call, which is a step if the disk may differ after it."""

        def noted(*arguments: Any, **more: Any) -> Any:
            found = call(*arguments, **more)
            if note(*arguments):
                self.at_every_step()
            return found

        return noted

    def _named(self, *paths: Any) -> bool:
        is_here = Path(paths[-1]).parent == self.folder
        if is_here:
            self._possible.append(self._names())
        return is_here

    def _opened(self, path: Any, flags: int, *_: Any) -> bool:
        return bool(flags & os.O_CREAT) and self._named(path)

    def _written(self, *_: Any) -> bool:
        self._names()  # the same, with another content
        return True

    def _flushed_one(self, descriptor: int) -> bool:
        found = os.fstat(descriptor)
        # A folder may get the inode of a file that was removed.
        if stat.S_ISREG(found.st_mode) and found.st_ino in self._content:
            self._flushed[found.st_ino] = os.pread(descriptor, found.st_size, 0)
            return True
        is_here = self.folder.exists() and os.path.samestat(found, self.folder.stat())
        if is_here:
            self._possible = [self._names()]
        return is_here

    def _names(self) -> Names:
        names = {}
        for path in self.folder.iterdir():
            names[path.name] = inode = path.stat().st_ino
            content = path.read_bytes()
            if self._content.get(inode) != content:  # another file has this inode now
                self._flushed.pop(inode, None)
            self._content[inode] = content
        return names


def test_power_cut_at_any_moment_loses_nothing_that_was_answered_and_brings_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, cuts = LossyDisk(tmp_path / "live" / FOLDER, monkeypatch), 0
    a, b, c = recorded_claim("a"), recorded_claim("b", device=GPU_1), recorded_claim("c")
    may_be: dict[str, Allowed] = {uid: [None] for uid in ("a", "b", "c")}

    def check() -> None:
        nonlocal cuts
        disk.at_every_step = lambda: None
        for content in disk.cuts():
            cuts += 1
            after = tmp_path / f"cut-{cuts}"
            (after / FOLDER).mkdir(parents=True)
            for file, written in content.items():
                (after / FOLDER / file).write_bytes(written)
            with opened(after) as found:
                by_name = {claim.ref.name: claim for claim in found.claims()}
                assert found.damaged() == {}
            for name, allowed in may_be.items():
                assert by_name.get(name) in allowed, (name, sorted(content))
        disk.at_every_step = check

    with opened(tmp_path / "live") as store:
        disk.at_every_step = check
        for name, claim in (
            *(("a", a), ("b", b), ("a", replace(a, sequence=7)), ("a", None)),
            # In the room of the removed claim, by a new claim and by one of the same UID.
            *(("c", c), ("a", replace(a, sequence=8)), ("c", None), ("a", None)),
        ):
            may_be[name].append(claim)  # either is right during the call, but not after it
            if claim:
                put(store, claim)
            else:
                remove(store, f"uid-{name}")
            may_be[name] = [claim]
        check()

    assert cuts > 100
