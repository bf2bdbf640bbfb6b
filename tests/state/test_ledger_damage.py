"""Damage to the ledger: what is sound stays, and the rest comes back from the records' copies."""

import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state.ledger import Ledger
from tensorfusion_dra.state.ledger_file import FILE_NAME
from tests.support.ledgers import (
    GPU_0,
    GPU_1,
    edited,
    existing,
    holders,
    opened,
    put,
    recorded_claim,
    remove,
    uids,
)

ALL = [f"uid-{number:02}" for number in range(40)]
ASIDE = re.compile(r"ledger-damaged-\d{8}T\d{6}\.\d{6}Z\.sqlite3")


def aside(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if ASIDE.fullmatch(path.name)]


def copy_of(folder: Path, claim_uid: str) -> Path:
    return folder / "records" / f"{claim_uid}.record"


@pytest.mark.parametrize(
    "damage",
    [
        lambda old: b"garbage",
        lambda old: b"not a database\n" * 1000,
        lambda old: b"\0" * len(old),
        lambda old: b"\0" * 100 + old[100:],
        lambda old: old[: len(old) // 2],
        lambda old: old[:4096],
        lambda old: old[:4096] + b"\xa5" * (len(old) - 4096),
    ],
    ids=["few bytes", "text", "zeros", "no header", "cut in half", "one page", "first page whole"],
)
def test_a_damaged_file_is_set_aside_and_every_claim_is_back(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = existing(tmp_path)
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ALL
        assert len(holders(ledger, GPU_0)) == 40
        (told,) = ledger.damage()
        assert ledger.damage() == []

    assert [file.read_bytes() for file in aside(tmp_path)] == [damaged]
    assert told.quarantined == str(aside(tmp_path)[0])
    assert (list(told.rebuilt), told.lost) == (ALL, ())
    with opened(tmp_path) as ledger:
        assert ledger.damage() == []


def test_what_belongs_to_a_damaged_file_goes_with_it(tmp_path: Path) -> None:
    existing(tmp_path).write_bytes(b"garbage")
    (tmp_path / f"{FILE_NAME}-wal").write_bytes(b"its log")

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ALL

    (file,) = aside(tmp_path)
    assert file.with_name(f"{file.name}-wal").read_bytes() == b"its log"


def test_rebuilt_records_are_the_very_same(tmp_path: Path) -> None:
    existing(tmp_path)
    with opened(tmp_path) as ledger:
        before = ledger.claims()
    (tmp_path / FILE_NAME).write_bytes(b"garbage")

    with opened(tmp_path) as ledger:
        assert ledger.claims() == before


def test_a_file_that_is_lost_is_made_anew(tmp_path: Path) -> None:
    existing(tmp_path).unlink()

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ALL
        (told,) = ledger.damage()

    assert told.quarantined == ""
    assert list(told.rebuilt) == ALL


def test_the_end_of_the_log_may_be_lost(tmp_path: Path) -> None:
    with opened(tmp_path / "running") as ledger:
        put(ledger, recorded_claim("a"), recorded_claim("b", number=2))
        (tmp_path / "cut").mkdir()
        shutil.copytree(tmp_path / "running" / "records", tmp_path / "cut" / "records")
        log = (tmp_path / "running" / f"{FILE_NAME}-wal").read_bytes()
    (tmp_path / "cut" / f"{FILE_NAME}-wal").write_bytes(log[: len(log) // 2])

    with opened(tmp_path / "cut") as ledger:
        assert uids(ledger) == ["uid-a", "uid-b"]


def test_damage_while_it_runs_costs_one_call_and_nothing_else(tmp_path: Path) -> None:
    path = existing(tmp_path)
    with opened(tmp_path) as ledger:
        assert len(uids(ledger)) == 40
        edited(path, "DROP TABLE holdings")

        with pytest.raises(RetryableError, match="it has been repaired"):
            holders(ledger, GPU_0)

        assert len(holders(ledger, GPU_0)) == 40
        assert len(aside(tmp_path)) == 1


def test_the_look_at_all_of_it_finds_damage_before_a_call_does(tmp_path: Path) -> None:
    path = existing(tmp_path)
    whole = path.read_bytes()
    with opened(tmp_path) as ledger:
        path.write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))

        with pytest.raises(RetryableError, match="it has been repaired"):
            ledger.check()

        ledger.check()
        assert uids(ledger) == ALL


def test_another_instance_goes_on_with_the_new_file(tmp_path: Path) -> None:
    path = existing(tmp_path)
    with opened(tmp_path) as old:
        assert len(uids(old)) == 40
        path.write_bytes(b"garbage")

        with opened(tmp_path) as new:
            put(old, recorded_claim("by-old", device=GPU_1))
            put(new, recorded_claim("by-new", device=GPU_1))

            assert holders(old, GPU_1) == holders(new, GPU_1) == ["by-new", "by-old"]

    with opened(tmp_path) as ledger:
        assert len(uids(ledger)) == 42


def test_two_instances_that_find_the_damage_at_once_set_one_file_aside(tmp_path: Path) -> None:
    for number in range(10):
        folder = tmp_path / str(number)
        existing(folder).write_bytes(b"garbage")

        with ExitStack() as running, ThreadPoolExecutor(2) as threads:
            ledgers = list(threads.map(Ledger, [folder, folder]))
            for ledger in ledgers:
                running.callback(ledger.close)
            told = [each for ledger in ledgers for each in ledger.damage()]

            assert [uids(ledger) for ledger in ledgers] == [ALL, ALL]
        assert len(told) == 1
        assert len(aside(folder)) == 1


@pytest.mark.parametrize(
    "damaged",
    ["'{}'", "'[]'", "'null'", "'{'", "''", "x'ff00'", "CAST(x'ff00' AS TEXT)", "7"],
)
def test_a_damaged_record_comes_back_and_costs_no_other(tmp_path: Path, damaged: str) -> None:
    path = existing(tmp_path)
    edited(path, f"UPDATE claims SET record = {damaged} WHERE uid = 'uid-07'")

    with opened(tmp_path) as ledger:
        assert ledger.get("uid-07") == recorded_claim("07", number=7)
        assert uids(ledger) == ALL
        assert len(holders(ledger, GPU_0)) == 40
        (told,) = ledger.damage()

    assert (told.quarantined, told.rebuilt, told.lost) == ("", ("uid-07",), ())
    assert aside(tmp_path) == []


def test_a_record_that_is_damaged_while_it_runs_costs_one_call(tmp_path: Path) -> None:
    path = existing(tmp_path)
    with opened(tmp_path) as ledger:
        edited(path, "UPDATE claims SET record = replace(record, '16Gi', '1Gi')")

        with pytest.raises(RetryableError, match="does not match its checksum"):
            ledger.get("uid-07")

        assert ledger.get("uid-07") == recorded_claim("07", number=7)
        assert len(ledger.claims()) == 40


def test_a_record_whose_copy_is_damaged_as_well_is_lost_and_told(tmp_path: Path) -> None:
    path = existing(tmp_path)
    edited(path, "UPDATE claims SET record = 'x' WHERE uid = 'uid-07'")
    copy_of(tmp_path, "uid-07").write_text("y")

    with opened(tmp_path) as ledger:
        assert uids(ledger) == [uid for uid in ALL if uid != "uid-07"]
        (told,) = ledger.damage()
        ledger.check()
        assert ledger.damage() == []

    assert told.lost == ("uid-07",)
    kept = [file.read_text() for file in (tmp_path / "records").glob("uid-07-damaged-*")]
    assert kept == ["y"]


@pytest.mark.parametrize("content", ["", "y", "seal\n{}\n"])
def test_a_damaged_copy_is_made_anew_from_its_record(tmp_path: Path, content: str) -> None:
    existing(tmp_path)
    whole = copy_of(tmp_path, "uid-07").read_bytes()
    copy_of(tmp_path, "uid-07").write_text(content)
    copy_of(tmp_path, "uid-08").unlink()

    with opened(tmp_path) as ledger:
        assert copy_of(tmp_path, "uid-07").read_bytes() == whole
        copy_of(tmp_path, "uid-07").write_text(content)

        ledger.check()

        assert ledger.damage() == []

    assert copy_of(tmp_path, "uid-07").read_bytes() == whole
    assert copy_of(tmp_path, "uid-08").exists()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM holdings WHERE uid = 'uid-07'",
        "UPDATE holdings SET device = 'gpu-other' WHERE uid = 'uid-07'",
        "INSERT INTO holdings (device, uid) VALUES ('gpu-other', 'uid-07')",
    ],
)
def test_every_device_is_held_by_whom_the_records_say(tmp_path: Path, statement: str) -> None:
    edited(existing(tmp_path), statement)

    with opened(tmp_path) as ledger:
        assert len(holders(ledger, GPU_0)) == 40
        assert holders(ledger, "gpu-other") == []


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE holdings", "DROP TABLE claims"],
        ["DROP INDEX holdings_by_claim"],
        ["ALTER TABLE claims RENAME COLUMN seal TO sea1"],
        ["PRAGMA user_version = 0"],
        ["PRAGMA user_version = 1"],
        ["PRAGMA user_version = -5"],
    ],
)
def test_other_tables_under_our_version_are_damage(tmp_path: Path, statements: list[str]) -> None:
    edited(existing(tmp_path), *statements)

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ALL

    assert len(aside(tmp_path)) == 1


def test_the_database_of_another_program_is_set_aside_for_it(tmp_path: Path) -> None:
    before = edited(tmp_path / FILE_NAME, "CREATE TABLE claims (anything)")

    with opened(tmp_path) as ledger:
        assert uids(ledger) == []

    assert [file.read_bytes() for file in aside(tmp_path)] == [before]


def test_what_a_step_takes_back_is_taken_back_from_the_copies(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, recorded_claim("a"))
        before = copy_of(tmp_path, "uid-a").read_bytes()

        with pytest.raises(KeyError):
            change_and_fail(ledger)

        assert copy_of(tmp_path, "uid-a").read_bytes() == before
        assert not copy_of(tmp_path, "uid-b").exists()
        ledger.check()
        assert ledger.damage() == []


def change_and_fail(ledger: Ledger) -> None:
    with ledger.transaction() as step:
        step.remove("uid-a")
        step.put(recorded_claim("b", number=2))
        raise KeyError


def test_a_removed_claim_does_not_come_back(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, recorded_claim("a"), recorded_claim("b", number=2))
        remove(ledger, "uid-a")
    (tmp_path / FILE_NAME).write_bytes(b"garbage")

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ["uid-b"]


def test_damage_is_one_line_in_the_log_with_the_place_of_the_file(tmp_path: Path) -> None:
    existing(tmp_path).write_bytes(b"garbage")

    with capture_logs() as logs, opened(tmp_path):
        pass

    (line,) = (each for each in logs if each["event"] == "ledger_set_aside")
    assert line["path"] == str(aside(tmp_path)[0])
    assert line["error"] == "file is not a database"
    assert line["log_level"] == "error"


@pytest.mark.parametrize("what", [FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"])
@pytest.mark.parametrize("kind", ["folder", "full folder", "loop", "pipe"])
def test_what_is_no_file_is_set_aside_and_every_claim_is_back(
    tmp_path: Path, what: str, kind: str
) -> None:
    existing(tmp_path)
    in_place_of(tmp_path / what, kind)

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ALL
        (told,) = ledger.damage()

    assert told.quarantined == str(tmp_path / told.quarantined)
    assert os.path.lexists(told.quarantined + what.removeprefix(FILE_NAME))


@pytest.mark.parametrize("kind", ["folder", "loop"])
def test_a_ledger_that_becomes_something_else_while_it_is_used_is_set_aside(
    tmp_path: Path, kind: str
) -> None:
    path = existing(tmp_path)

    with opened(tmp_path) as ledger:
        in_place_of(path, kind)

        assert uids(ledger) == ALL


@pytest.mark.parametrize("kind", ["folder", "full folder", "loop"])
def test_what_is_no_file_in_place_of_a_copy_is_set_aside(tmp_path: Path, kind: str) -> None:
    existing(tmp_path)
    in_place_of(copy_of(tmp_path, "uid-01"), kind)

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ALL
        assert copy_of(tmp_path, "uid-01").is_file()

        in_place_of(copy_of(tmp_path, "uid-02"), kind)
        remove(ledger, "uid-02")
        assert not os.path.lexists(copy_of(tmp_path, "uid-02"))

        in_place_of(copy_of(tmp_path, "uid-03"), kind)
        put(ledger, recorded_claim("03"))
        assert copy_of(tmp_path, "uid-03").is_file()


@pytest.mark.parametrize("kind", ["file", "loop"])
def test_what_is_no_folder_in_place_of_the_copies_is_set_aside(tmp_path: Path, kind: str) -> None:
    existing(tmp_path)
    in_place_of(tmp_path / "records", kind)

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ALL

    assert copy_of(tmp_path, "uid-01").is_file()


def in_place_of(path: Path, kind: str) -> None:
    """Put something else where a file or folder is."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    match kind:
        case "folder":
            path.mkdir()
        case "full folder":
            path.mkdir()
            (path / "something").touch()
        case "loop":
            path.symlink_to(path)
        case "pipe":
            os.mkfifo(path)
        case _:
            path.touch()
