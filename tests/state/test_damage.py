"""Damage to the ledger and its records, found and repaired."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state.ledger import Ledger
from tensorfusion_dra.state.ledger_file import FILE_NAME
from tests.support.stores import (
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

ALL_UIDS: Final = [f"uid-{number:02}" for number in range(40)]
"""UIDs of the claims in a ledger from `existing()`."""


_QUARANTINED: Final = re.compile(r"ledger-damaged-\d{8}T\d{6}\.\d{6}Z\.sqlite3")


def quarantined(folder: Path) -> list[Path]:
    """Return the quarantined databases in a ledger's folder."""
    return [path for path in folder.iterdir() if _QUARANTINED.fullmatch(path.name)]


def copy_of(folder: Path, claim_uid: str) -> Path:
    """Return the path of the copy of a claim's record."""
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
def test_damaged_database_is_quarantined_and_rebuilt_with_every_claim(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = existing(tmp_path)
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ALL_UIDS
        assert len(holders(ledger, GPU_0)) == 40
        (report,) = ledger.damage()
        assert ledger.damage() == []

    assert [file.read_bytes() for file in quarantined(tmp_path)] == [damaged]
    assert report.quarantined == str(quarantined(tmp_path)[0])
    assert (list(report.rebuilt), report.lost) == (ALL_UIDS, ())
    with opened(tmp_path) as ledger:
        assert ledger.damage() == []


def test_log_of_a_damaged_database_is_quarantined_with_it(tmp_path: Path) -> None:
    existing(tmp_path).write_bytes(b"garbage")
    (tmp_path / f"{FILE_NAME}-wal").write_bytes(b"its log")

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ALL_UIDS
        assert [each.reason for each in ledger.damage()] == ["file is not a database"]

    (file,) = quarantined(tmp_path)
    assert file.with_name(f"{file.name}-wal").read_bytes() == b"its log"


def test_damage_at_runtime_fails_one_call_and_loses_no_claim(tmp_path: Path) -> None:
    path = existing(tmp_path)
    with opened(tmp_path) as ledger:
        assert len(uids(ledger)) == 40
        edited(path, "DROP TABLE claims")

        with pytest.raises(RetryableError, match="it has been repaired"):
            holders(ledger, GPU_0)

        assert len(holders(ledger, GPU_0)) == 40
        assert len(quarantined(tmp_path)) == 1


def test_check_finds_and_repairs_damage_before_any_call_fails(tmp_path: Path) -> None:
    path = existing(tmp_path)
    whole = path.read_bytes()
    with opened(tmp_path) as ledger:
        path.write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))

        with pytest.raises(RetryableError, match="it has been repaired"):
            ledger.check()

        ledger.check()
        assert uids(ledger) == ALL_UIDS


def test_other_instance_continues_with_the_new_database(tmp_path: Path) -> None:
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


def test_two_instances_starting_on_a_damaged_database_quarantine_it_once(tmp_path: Path) -> None:
    for number in range(10):
        folder = tmp_path / str(number)
        existing(folder).write_bytes(b"garbage")

        with ExitStack() as running, ThreadPoolExecutor(2) as threads:
            ledgers = list(threads.map(Ledger, [folder, folder]))
            for ledger in ledgers:
                running.callback(ledger.close)
            reports = [each for ledger in ledgers for each in ledger.damage()]

            assert [uids(ledger) for ledger in ledgers] == [ALL_UIDS, ALL_UIDS]
        assert len(reports) == 1
        assert len(quarantined(folder)) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE claims",
        "DROP TABLE set_aside",
        "ALTER TABLE claims RENAME COLUMN seal TO sea1",
        "PRAGMA user_version = 0",
        "PRAGMA user_version = 2",
        "PRAGMA user_version = -5",
    ],
)
def test_other_tables_or_an_older_version_count_as_damage(tmp_path: Path, statement: str) -> None:
    edited(existing(tmp_path), statement)

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ALL_UIDS

    assert len(quarantined(tmp_path)) == 1


def test_removed_claim_does_not_return_with_a_rebuild(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, recorded_claim("a"), recorded_claim("b", number=2))
        remove(ledger, "uid-a")
    (tmp_path / FILE_NAME).write_bytes(b"garbage")

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ["uid-b"]


@pytest.mark.parametrize(
    "damaged",
    ["'{}'", "'[]'", "'null'", "'{'", "''", "x'ff00'", "CAST(x'ff00' AS TEXT)", "7"],
)
def test_damaged_record_is_restored_and_affects_no_other(tmp_path: Path, damaged: str) -> None:
    path = existing(tmp_path)
    edited(path, f"UPDATE claims SET record = {damaged} WHERE uid = 'uid-07'")

    with opened(tmp_path) as ledger:
        assert recorded_claim("07", number=7) in ledger.claims()
        assert uids(ledger) == ALL_UIDS
        assert len(holders(ledger, GPU_0)) == 40
        (report,) = ledger.damage()

    assert (report.quarantined, report.rebuilt, report.lost) == ("", ("uid-07",), ())
    assert quarantined(tmp_path) == []


def test_record_damaged_at_runtime_fails_one_call(tmp_path: Path) -> None:
    path = existing(tmp_path)
    with opened(tmp_path) as ledger:
        edited(path, "UPDATE claims SET record = replace(record, '16Gi', '1Gi')")

        with (
            pytest.raises(RetryableError, match="does not match its checksum"),
            ledger.transaction() as transaction,
        ):
            transaction.get("uid-07")

        assert recorded_claim("07", number=7) in ledger.claims()
        assert len(ledger.claims()) == 40


def test_record_is_lost_and_reported_if_its_copy_is_damaged_too(tmp_path: Path) -> None:
    path = existing(tmp_path)
    edited(path, "UPDATE claims SET record = 'x' WHERE uid = 'uid-07'")
    copy_of(tmp_path, "uid-07").write_text("y")

    with opened(tmp_path) as ledger:
        assert uids(ledger) == [uid for uid in ALL_UIDS if uid != "uid-07"]
        (report,) = ledger.damage()
        ledger.check()
        assert ledger.damage() == []

    assert report.lost == ("uid-07",)
    quarantined_copies = [
        file.read_text() for file in (tmp_path / "records").glob("uid-07-damaged-*")
    ]
    assert quarantined_copies == ["y"]


@pytest.mark.parametrize("content", ["", "y", "seal\n{}\n"])
def test_damaged_or_missing_copy_is_rewritten_from_its_record(tmp_path: Path, content: str) -> None:
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


def test_rollback_also_restores_the_copies(tmp_path: Path) -> None:
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
    with ledger.transaction() as transaction:
        transaction.remove("uid-a")
        transaction.put(recorded_claim("b", number=2))
        raise KeyError
