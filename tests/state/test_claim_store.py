"""The ledger on a real disk: records, transactions, restarts, other releases and processes."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError, FatalError, RetryableError
from tensorfusion_dra.state import ledger_reading
from tensorfusion_dra.state.ledger import RESERVE_NAME, Ledger
from tensorfusion_dra.state.ledger_file import FILE_NAME, VERSION
from tests.support.builders.allocations import allocation, exclusive_allocation
from tests.support.builders.claims import allocated_claim, claim_admission, claim_record
from tests.support.disk import read_only
from tests.support.stores import (
    GPU_0,
    GPU_1,
    NODE,
    edited,
    existing,
    holders,
    opened,
    put,
    recorded_claim,
    remove,
    uids,
)


def put_and_admit(ledger: Ledger, known: PreparedClaim, claim: AllocatedClaim) -> None:
    with ledger.transaction() as transaction:
        transaction.put(known)
        transaction.put(
            claim_admission(claim, on=NODE, beside=transaction.claims_on([GPU_0, GPU_1])).record
        )


def durable(folder: Path) -> dict[str, bytes]:
    """Return the files that survive a power cut: without SQLite's shared memory and the copies."""
    paths = (path for path in folder.iterdir() if path.is_file())
    return {path.name: path.read_bytes() for path in paths if not path.name.endswith("-shm")}


def test_records_survive_a_restart(tmp_path: Path) -> None:
    a, b = recorded_claim("a"), recorded_claim("b", device=GPU_1)
    with opened(tmp_path) as ledger:
        put(ledger, a)
        put(ledger, b)

    with opened(tmp_path) as ledger:
        assert ledger.claims() == [a, b]
        assert holders(ledger, GPU_0, GPU_1) == ["a", "b"]
        assert holders(ledger, GPU_1) == ["b"]


def test_record_replaces_an_older_one_and_removing_an_unknown_one_writes_nothing(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, claim_record("a", allocation(GPU_0, 1), allocation(GPU_1, 2), on=NODE))
        put(ledger, recorded_claim("a", device=GPU_1))
        before = durable(tmp_path)

        remove(ledger, "uid-unknown")

        assert durable(tmp_path) == before
        assert uids(ledger) == ["uid-a"]
        assert (holders(ledger, GPU_0), holders(ledger, GPU_1)) == ([], ["a"])


def test_claims_on_devices_are_found_once_each(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(
            ledger,
            claim_record(
                "a", allocation(GPU_0, 1), allocation(GPU_0, 2), allocation(GPU_1, 3), on=NODE
            ),
            claim_record("b", exclusive_allocation(GPU_1, admin_access=True), on=NODE),
        )

        assert holders(ledger, GPU_0, GPU_0) == ["a"]
        assert holders(ledger, GPU_1) == ["a", "b"]
        assert holders(ledger, GPU_0, GPU_1) == ["a", "b"]
        assert holders(ledger, "gpu-other") == []


def test_unchanged_records_are_not_decoded_again(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger, opened(tmp_path) as other:
        put(ledger, recorded_claim("b"))
        first = ledger.claims()

        put(ledger, recorded_claim("a", number=2))
        own = ledger.claims()
        remove(other, "uid-a")
        put(other, recorded_claim("c", number=3))

        assert own[1] is first[0]
        assert [claim.ref.uid for claim in own] == ["uid-a", "uid-b"]
        assert uids(ledger) == ["uid-b", "uid-c"]


def test_transaction_sees_its_own_changes(tmp_path: Path) -> None:
    a, b = recorded_claim("a"), recorded_claim("b", number=2)
    with opened(tmp_path) as ledger:
        put(ledger, a)

        with ledger.transaction() as transaction:
            assert transaction.get("uid-a") == a
            transaction.remove("uid-a")
            transaction.put(b)

            assert transaction.get("uid-a") is None
            assert transaction.get("uid-b") == b
            assert transaction.claims_on([GPU_0]) == [b]


def test_failed_transaction_adds_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, recorded_claim("a"))

        with pytest.raises(ClaimError):
            put_and_admit(
                ledger,
                recorded_claim("b", number=2),
                allocated_claim("c", exclusive_allocation(GPU_0)),
            )

        assert uids(ledger) == ["uid-a"]
        put(ledger, recorded_claim("b", number=2))
        assert uids(ledger) == ["uid-a", "uid-b"]


def test_records_survive_a_power_cut(tmp_path: Path) -> None:
    rebooted = tmp_path / "rebooted"
    rebooted.mkdir()
    with opened(tmp_path / "running") as ledger:
        put(ledger, recorded_claim("a"))

        for name, content in durable(tmp_path / "running").items():
            (rebooted / name).write_bytes(content)

    with opened(rebooted) as ledger:
        assert uids(ledger) == ["uid-a"]


def test_ledger_in_a_read_only_folder_opens_once_it_is_writable(reachable: Path) -> None:
    folder = reachable / "plugin"
    with opened(folder) as ledger:
        put(ledger, recorded_claim("a"))

    with read_only(folder), pytest.raises(RetryableError, match=str(folder / FILE_NAME)):
        Ledger(folder)

    with opened(folder) as ledger:
        assert uids(ledger) == ["uid-a"]


def test_file_in_place_of_the_folder_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "plugin").write_text("")

    with pytest.raises(RetryableError, match=r"plugin.*File exists"):
        Ledger(tmp_path / "plugin")


def fill(ledger: Ledger, folder: Path) -> int:
    """Record claims until there is no room; return how many were recorded."""
    with pytest.raises(RetryableError, match=str(folder / FILE_NAME)):
        put_one_by_one(ledger, 10_000)
    return len(uids(ledger))


def put_one_by_one(ledger: Ledger, count: int) -> None:
    for number in range(count):
        put(ledger, recorded_claim(f"{number:04}", number=number))


def test_full_disk_refuses_records_until_there_is_room(tiny_disk: Path) -> None:
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(b"\0" * 100_000)
    with opened(tiny_disk) as ledger:
        recorded = fill(ledger, tiny_disk)

        ballast.unlink()
        put(ledger, recorded_claim("last", device=GPU_1))

    with opened(tiny_disk) as ledger:
        assert len(uids(ledger)) == recorded + 1 > 1


@pytest.mark.parametrize("journal", ["wal", "delete"])
@pytest.mark.parametrize("newer", [4, 99, 2**31 - 1])
def test_ledger_of_a_newer_release_is_refused_and_left_unchanged(
    tmp_path: Path, journal: str, newer: int
) -> None:
    path = existing(tmp_path)
    before = edited(path, f"PRAGMA journal_mode = {journal}", f"PRAGMA user_version = {newer}")

    with pytest.raises(FatalError, match=f"found version {newer}, expected at most 3"):
        Ledger(tmp_path)

    assert path.read_bytes() == before
    found = sorted(file.name for file in tmp_path.glob("ledger*"))
    assert found == ["ledger.lock", RESERVE_NAME, FILE_NAME]


def test_reading_a_ledger_changes_nothing(tmp_path: Path) -> None:
    path = existing(tmp_path)
    before = path.read_bytes()

    assert len(ledger_reading.claims(tmp_path)) == 40

    assert path.read_bytes() == before
    assert ledger_reading.claims(tmp_path / "missing") == []


@pytest.mark.parametrize(
    "change", ["UPDATE claims SET record = '{'", f"PRAGMA user_version = {VERSION - 1}"]
)
def test_reading_a_damaged_or_older_ledger_reports_who_repairs_it(
    tmp_path: Path, change: str
) -> None:
    before = edited(existing(tmp_path), change)

    with pytest.raises(RetryableError, match="the node plugin repairs it when it starts"):
        ledger_reading.claims(tmp_path)

    assert (tmp_path / FILE_NAME).read_bytes() == before


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


def test_facts_of_a_ledger_are_read_while_its_owner_writes(tmp_path: Path) -> None:
    missing = ledger_reading.facts(tmp_path / "none")
    with opened(tmp_path) as ledger:
        put(ledger, recorded_claim("a"), recorded_claim("b", number=2))
        with ledger.transaction() as step:
            step.put(recorded_claim("c", number=3))

            facts = ledger_reading.facts(tmp_path)

    assert (missing.exists, (tmp_path / "none").exists()) == (False, False)
    assert facts.claims == {"uid-a": "default/a", "uid-b": "default/b"}
    assert (facts.version, facts.damage, facts.trouble) == (VERSION, "", "")
    assert facts.size_bytes > 0


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda file: file.write_text("no database, " * 100), "file is not a database"),
        (lambda file: edited(file, "DROP TABLE claims"), "no such table: claims"),
        (
            lambda file: edited(file, "UPDATE claims SET record = '{}' WHERE uid = 'uid-01'"),
            "record of b'uid-01'",
        ),
    ],
)
def test_facts_of_a_damaged_ledger_name_the_damage_and_change_nothing(
    tmp_path: Path, damage: Callable[[Path], object], text: str
) -> None:
    file = existing(tmp_path, 2)
    damage(file)
    before = file.read_bytes()

    assert text in ledger_reading.facts(tmp_path).damage
    assert file.read_bytes() == before
