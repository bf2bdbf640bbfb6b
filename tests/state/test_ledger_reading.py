"""Read-only access to a ledger that a node plugin may be writing."""

import sqlite3
from pathlib import Path

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.state import ledger_reading
from tensorfusion_dra.state.ledger import Ledger
from tensorfusion_dra.state.ledger_file import FILE_NAME
from tensorfusion_dra.state.ledger_schema import VERSION


def record(uid: str) -> PreparedClaim:
    return PreparedClaim(ref=ClaimRef(namespace="default", name=f"n-{uid}", uid=uid), shares=())


def written(folder: Path) -> Ledger:
    ledger = Ledger(folder)
    with ledger.transaction() as step:
        step.put(record("a"))
        step.put(record("b"))
    return ledger


def test_ledger_is_readable_while_its_owner_writes(tmp_path: Path) -> None:
    ledger = written(tmp_path)
    with ledger.transaction() as step:
        step.put(record("c"))

        facts = ledger_reading.facts(tmp_path)

    ledger.close()
    assert facts.claims == {"a": "default/n-a", "b": "default/n-b"}
    assert (facts.version, facts.damage, facts.trouble) == (VERSION, "", "")
    assert facts.size_bytes > 0


def test_reading_a_missing_ledger_creates_none(tmp_path: Path) -> None:
    facts = ledger_reading.facts(tmp_path / "none")

    assert not facts.exists
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_no_database_is_damage_and_stays_unchanged(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    file.write_text("no database, " * 100)

    facts = ledger_reading.facts(tmp_path)

    assert facts.damage
    assert file.read_text().startswith("no database")


def test_foreign_database_and_unreadable_record_are_damage(tmp_path: Path) -> None:
    other, broken = tmp_path / "other", tmp_path / "broken"
    other.mkdir()
    with sqlite3.connect(other / FILE_NAME) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    written(broken).close()
    with sqlite3.connect(broken / FILE_NAME) as connection:
        connection.execute("UPDATE claims SET record = '{}' WHERE uid = 'a'")
    connection.close()

    assert "without the table claims" in ledger_reading.facts(other).damage
    assert "claim a" in ledger_reading.facts(broken).damage
