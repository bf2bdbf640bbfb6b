"""Repeated reading of all records, beside a ledger that is in use."""

import sqlite3
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import ledger_queries, ledger_reading, records
from tensorfusion_dra.state.ledger import Ledger
from tensorfusion_dra.state.ledger_file import FILE_NAME
from tensorfusion_dra.state.record_reader import RecordReader


def record(uid: str, sequence: int = 0) -> PreparedClaim:
    ref = ClaimRef(namespace="default", name=f"n-{uid}", uid=uid)
    return PreparedClaim(ref=ref, shares=(), sequence=sequence)


def put(ledger: Ledger, *claims: PreparedClaim) -> None:
    with ledger.transaction() as step:
        for claim in claims:
            step.put(claim)


def test_reader_sees_what_was_put_changed_and_removed(tmp_path: Path) -> None:
    ledger, reader = Ledger(tmp_path), RecordReader(tmp_path)
    put(ledger, record("a"), record("b"))
    assert reader.claims() == [record("a"), record("b")]

    put(ledger, record("a", sequence=1), record("c"))
    with ledger.transaction() as step:
        step.remove("b")

    assert reader.claims() == [record("a", sequence=1), record("c")]
    ledger.close()


def test_unchanged_records_are_not_decoded_again(tmp_path: Path) -> None:
    ledger, reader = Ledger(tmp_path), RecordReader(tmp_path)
    put(ledger, record("a"), record("b"))
    before = reader.claims()
    put(ledger, record("b", sequence=1))

    after = reader.claims()

    assert after[0] is before[0]
    assert after[1] is not before[1]
    ledger.close()


def test_reading_goes_on_while_a_transaction_runs_and_sees_the_last_commit(tmp_path: Path) -> None:
    ledger, reader = Ledger(tmp_path), RecordReader(tmp_path)
    put(ledger, record("a"))

    with ledger.transaction() as step:
        step.put(record("b"))
        during = reader.claims()

    assert during == [record("a")]
    assert reader.claims() == [record("a"), record("b")]
    ledger.close()


def test_a_reading_that_takes_long_holds_up_no_transaction(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    put(ledger, record("a"))
    with ledger_reading.opened(tmp_path / FILE_NAME) as reading:
        reading.execute("BEGIN")
        before = ledger_queries.checksums(reading)

        put(ledger, record("b"))

        assert ledger_queries.checksums(reading) == before
    assert RecordReader(tmp_path).claims() == [record("a"), record("b")]
    ledger.close()


def test_record_of_version_1_is_decoded_each_time(tmp_path: Path) -> None:
    ledger, reader = Ledger(tmp_path), RecordReader(tmp_path)
    put(ledger, record("a"))
    changed = records.of_claim(record("a", sequence=7)).text
    for text in (None, changed):
        with sqlite3.connect(tmp_path / FILE_NAME) as connection:
            connection.execute(
                "UPDATE claims SET seal = NULL, record = COALESCE(?, record)", (text,)
            )
        connection.close()
        reader.claims()

    assert reader.claims() == [record("a", sequence=7)]
    ledger.close()


def test_missing_ledger_has_no_claims_and_none_is_created(tmp_path: Path) -> None:
    assert RecordReader(tmp_path).claims() == []
    assert list(tmp_path.iterdir()) == []


def test_damage_is_an_error_without_the_path(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("no database, " * 100)

    with pytest.raises(RetryableError, match="ledger: ") as raised:
        RecordReader(tmp_path).claims()

    assert str(tmp_path) not in str(raised.value)
