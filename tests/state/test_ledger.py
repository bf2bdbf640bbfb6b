"""The ledger on a real disk: crashes, second processes, full and damaged files."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.state.ledger import Ledger
from tensorfusion_dra.state.ledger_file import FILE_NAME
from tests.support.builders.allocations import allocation, exclusive_allocation
from tests.support.builders.claims import allocated_claim, claim_fit, fitted_claim
from tests.support.disk import no_room_after, read_only
from tests.support.ledgers import (
    GPU_0,
    GPU_1,
    NODE,
    holders,
    opened,
    put,
    recorded_claim,
    remove,
    uids,
)

ROOT = Path(__file__).parents[2]


@contextmanager
def child(verb: str, folder: Path, name: str = "child") -> Iterator[subprocess.Popen[str]]:
    """Another process on the ledger; it is gone when the block is left."""
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


def proceed(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def put_and_admit(ledger: Ledger, known: PreparedClaim, claim: AllocatedClaim) -> None:
    with ledger.transaction() as step:
        step.put(known)
        step.put(claim_fit(claim, on=NODE, beside=step.claims_on([GPU_0, GPU_1])).claim)


def remove_and_admit(ledger: Ledger, claim_uid: str, claim: AllocatedClaim) -> None:
    with ledger.transaction() as step:
        step.remove(claim_uid)
        step.put(claim_fit(claim, on=NODE).claim)


def durable(folder: Path) -> dict[str, bytes]:
    """What a power cut leaves: neither the index that processes share in memory, nor copies."""
    paths = (path for path in folder.iterdir() if path.is_file())
    return {path.name: path.read_bytes() for path in paths if not path.name.endswith("-shm")}


def test_a_new_ledger_is_empty(tmp_path: Path) -> None:
    with opened(tmp_path / "plugins" / "driver") as ledger:
        assert ledger.claims() == []
        assert ledger.get("uid-a") is None
        assert holders(ledger, GPU_0) == []


def test_records_survive_a_restart(tmp_path: Path) -> None:
    a, b = recorded_claim("a"), recorded_claim("b", device=GPU_1)
    with opened(tmp_path) as ledger:
        put(ledger, a)
        put(ledger, b)

    with opened(tmp_path) as ledger:
        assert ledger.get("uid-a") == a
        assert ledger.claims() == [a, b]
        assert holders(ledger, GPU_0, GPU_1) == ["a", "b"]
        assert holders(ledger, GPU_1) == ["b"]


def test_a_removed_record_stays_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, recorded_claim("a"), recorded_claim("b", number=2))
        remove(ledger, "uid-a")

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ["uid-b"]
        assert holders(ledger, GPU_0) == ["b"]


def test_removing_an_unknown_claim_is_fine_and_writes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, recorded_claim("a"))
        before = durable(tmp_path)

        remove(ledger, "uid-unknown")

        assert durable(tmp_path) == before


def test_a_record_takes_the_place_of_an_older_one_with_all_it_held(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, fitted_claim("a", allocation(GPU_0, 1), allocation(GPU_1, 2), on=NODE))

        put(ledger, recorded_claim("a", device=GPU_1))

        assert uids(ledger) == ["uid-a"]
        assert holders(ledger, GPU_0) == []
        assert holders(ledger, GPU_1) == ["a"]


def test_every_claim_on_a_device_is_found_once_and_no_other(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(
            ledger,
            fitted_claim(
                "a", allocation(GPU_0, 1), allocation(GPU_0, 2), allocation(GPU_1, 3), on=NODE
            ),
            fitted_claim("b", exclusive_allocation(GPU_1, admin_access=True), on=NODE),
        )

        assert holders(ledger, GPU_0, GPU_0) == ["a"]
        assert holders(ledger, GPU_1) == ["a", "b"]
        assert holders(ledger, GPU_0, GPU_1) == ["a", "b"]
        assert holders(ledger, "gpu-other") == []


def test_a_transaction_sees_what_it_has_put_and_removed(tmp_path: Path) -> None:
    a, b = recorded_claim("a"), recorded_claim("b", number=2)
    with opened(tmp_path) as ledger:
        put(ledger, a)

        with ledger.transaction() as step:
            assert step.get("uid-a") == a
            step.remove("uid-a")
            step.put(b)

            assert step.get("uid-a") is None
            assert step.get("uid-b") == b
            assert step.claims_on([GPU_0]) == [b]


def test_a_transaction_that_fails_takes_nothing_away(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, recorded_claim("a"))

        with pytest.raises(ClaimError):
            remove_and_admit(ledger, "uid-a", allocated_claim("b", allocation("gpu-gone", 1)))

        assert uids(ledger) == ["uid-a"]
        assert holders(ledger, GPU_0) == ["a"]


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
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


def test_all_threads_may_use_it_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger, ThreadPoolExecutor(8) as threads:
        claims = [recorded_claim(f"{number:02}", number=number) for number in range(40)]

        list(threads.map(lambda claim: put(ledger, claim), claims))

        assert ledger.claims() == claims
        list(threads.map(lambda uid: remove(ledger, uid), uids(ledger)))
        assert ledger.claims() == []


def test_a_killed_process_loses_nothing_that_it_had_said(tmp_path: Path) -> None:
    with child("record", tmp_path) as process:
        said = [line(process) for _ in range(25)]
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert process.stdout is not None
        said += process.stdout.read().split()

    with opened(tmp_path) as ledger:
        recorded = uids(ledger)
        held = holders(ledger, GPU_0)
    assert set(said) <= set(recorded)
    assert len(recorded) <= len(said) + 1
    assert len(held) == len(recorded)


def test_what_was_recorded_is_on_the_disk_and_not_in_the_process(tmp_path: Path) -> None:
    rebooted = tmp_path / "rebooted"
    rebooted.mkdir()
    with opened(tmp_path / "running") as ledger:
        put(ledger, recorded_claim("a"))

        for name, content in durable(tmp_path / "running").items():
            (rebooted / name).write_bytes(content)

    with opened(rebooted) as ledger:
        assert uids(ledger) == ["uid-a"]


def test_two_processes_never_give_the_same_capacity_twice(tmp_path: Path) -> None:
    with child("admit", tmp_path, "x") as x, child("admit", tmp_path, "y") as y:
        assert line(x) == line(y) == "ready"
        proceed(x)
        proceed(y)
        answers = [process.communicate()[0].splitlines() for process in (x, y)]

    admitted = [uid for lines in answers for uid in lines[:-1]]
    with opened(tmp_path) as ledger:
        assert sorted(admitted) == uids(ledger)
    assert len(admitted) == 16
    assert all(
        "vram: found 5Gi plus 80Gi in use, expected at most 80Gi" in lines[-1] for lines in answers
    )


def test_two_processes_that_begin_a_ledger_at_once_both_open_it(tmp_path: Path) -> None:
    answers = []
    with child("begin", tmp_path, "x") as x, child("begin", tmp_path, "y") as y:
        assert line(x) == line(y) == "ready"
        for _ in range(60):
            proceed(x)
            proceed(y)
            answers += [line(x), line(y)]

    assert answers == ["opened"] * 120


def test_a_ledger_that_another_process_holds_can_be_read_and_refuses_changes(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, recorded_claim("a"))
    with opened(tmp_path) as ledger, child("hold", tmp_path) as other:
        assert line(other) == "held"
        assert uids(ledger) == ["uid-a"]
        with pytest.raises(RetryableError, match=r"ledger\.sqlite3: database is locked"):
            remove(ledger, "uid-a")

        proceed(other)
        assert line(other) == "released"
        remove(ledger, "uid-a")
        assert uids(ledger) == ["uid-child"]


def test_a_folder_that_is_read_only_can_become_writable(reachable: Path) -> None:
    folder = reachable / "plugin"
    with opened(folder) as ledger:
        put(ledger, recorded_claim("a"))

    with read_only(folder), pytest.raises(RetryableError, match=str(folder / FILE_NAME)):
        Ledger(folder)

    with opened(folder) as ledger:
        assert uids(ledger) == ["uid-a"]


def test_a_folder_that_cannot_be_made_yet_can_be_made_later(reachable: Path) -> None:
    with read_only(reachable), pytest.raises(RetryableError, match="Permission denied"):
        Ledger(reachable / "plugin")

    with opened(reachable / "plugin") as ledger:
        assert ledger.claims() == []


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "plugin").write_text("")

    with pytest.raises(RetryableError, match=r"plugin.*File exists"):
        Ledger(tmp_path / "plugin")


def fill(ledger: Ledger, folder: Path) -> int:
    """Records claims until there is no room; how many were recorded."""
    with pytest.raises(RetryableError, match=str(folder / FILE_NAME)):
        put_one_by_one(ledger, 10_000)
    return len(uids(ledger))


def put_one_by_one(ledger: Ledger, count: int) -> None:
    for number in range(count):
        put(ledger, recorded_claim(f"{number:04}", number=number))


def test_files_that_cannot_grow_refuse_records_until_they_can(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        with no_room_after(100_000):
            recorded = fill(ledger, tmp_path)

        put(ledger, recorded_claim("last", device=GPU_1))

    with opened(tmp_path) as ledger:
        assert len(uids(ledger)) == recorded + 1 > 1


def test_a_full_disk_refuses_records_until_there_is_room(tiny_disk: Path) -> None:
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(b"\0" * 100_000)
    with opened(tiny_disk) as ledger:
        recorded = fill(ledger, tiny_disk)

        ballast.unlink()
        put(ledger, recorded_claim("last", device=GPU_1))

    with opened(tiny_disk) as ledger:
        assert len(uids(ledger)) == recorded + 1 > 1
