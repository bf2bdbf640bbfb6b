"""Ledgers of other releases: an older one is migrated, a newer one is left unchanged."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.state import ledger_reading
from tensorfusion_dra.state.ledger import Ledger
from tensorfusion_dra.state.ledger_file import FILE_NAME
from tensorfusion_dra.state.reserve import FILE_NAME as RESERVE
from tests.support.disk import read_only
from tests.support.ledgers import (
    GPU_0,
    GPU_1,
    edited,
    existing,
    holders,
    opened,
    put,
    recorded_claim,
    uids,
)

VERSION_1 = """
CREATE TABLE claims (uid TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE holdings (
    device TEXT NOT NULL,
    uid TEXT NOT NULL REFERENCES claims (uid) ON DELETE CASCADE,
    PRIMARY KEY (device, uid)
) WITHOUT ROWID;
CREATE INDEX holdings_by_claim ON holdings (uid);
PRAGMA journal_mode = WAL;
PRAGMA user_version = 1;
"""


def of_version_1(folder: Path, names: str) -> Path:
    path = folder / FILE_NAME
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_1)
        for number, name in enumerate(names):
            put_as_version_1(connection, name, number)
        connection.commit()
    return path


def put_as_version_1(connection: sqlite3.Connection, name: str, number: int) -> None:
    """Write a record with exactly the statements of the first release."""
    document = recorded_claim(name, number=number).as_json()
    del document["bootID"]
    connection.execute("DELETE FROM claims WHERE uid = ?", (document["uid"],))
    connection.execute(
        "INSERT INTO claims (uid, record) VALUES (?, ?)", (document["uid"], json.dumps(document))
    )
    connection.execute("INSERT INTO holdings (device, uid) VALUES (?, ?)", (GPU_0, document["uid"]))


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_version_1_ledger_is_migrated_with_all_its_claims(tmp_path: Path) -> None:
    path = of_version_1(tmp_path, "abc")

    with opened(tmp_path) as ledger:
        assert ledger.claims() == [recorded_claim(n, number=i) for i, n in enumerate("abc")]
        assert holders(ledger, GPU_0) == ["a", "b", "c"]
        assert ledger.damage() == []
        put(ledger, recorded_claim("d", device=GPU_1))

    assert version_of(path) == 3
    assert len(list((tmp_path / "records").iterdir())) == 4
    with opened(tmp_path) as ledger:
        assert uids(ledger) == ["uid-a", "uid-b", "uid-c", "uid-d"]


def test_interrupted_migration_changes_nothing(reachable: Path) -> None:
    path = of_version_1(reachable, "abc")
    copies = reachable / "records"
    copies.mkdir(exist_ok=True)
    for writable in (reachable, *reachable.iterdir()):
        writable.chmod(0o777)

    with read_only(copies), pytest.raises(RetryableError, match="records"):
        Ledger(reachable)

    assert version_of(path) == 1
    with opened(reachable) as ledger:
        assert uids(ledger) == ["uid-a", "uid-b", "uid-c"]


def test_damaged_version_1_record_affects_no_other(tmp_path: Path) -> None:
    edited(of_version_1(tmp_path, "abc"), "UPDATE claims SET record = '{' WHERE uid = 'uid-b'")

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ["uid-a", "uid-c"]
        (report,) = ledger.damage()

    assert report.lost == ("uid-b",)


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
    assert sorted(p.name for p in tmp_path.glob("ledger*")) == ["ledger.lock", RESERVE, FILE_NAME]


def test_reading_a_ledger_changes_nothing(tmp_path: Path) -> None:
    path = existing(tmp_path)
    before = path.read_bytes()

    assert len(ledger_reading.claims(tmp_path)) == 40

    assert path.read_bytes() == before
    assert ledger_reading.claims(tmp_path / "missing") == []


@pytest.mark.parametrize("version", [1, 3])
def test_reading_a_damaged_ledger_reports_who_repairs_it(tmp_path: Path, version: int) -> None:
    path = of_version_1(tmp_path, "a") if version == 1 else existing(tmp_path)
    if version == 3:
        edited(path, "UPDATE claims SET record = '{'")
    before = path.read_bytes()

    with pytest.raises(RetryableError, match="the node plugin repairs it when it starts"):
        ledger_reading.claims(tmp_path)

    assert path.read_bytes() == before
