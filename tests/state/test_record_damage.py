"""Damage to single records and their copies: each is restored from the other."""

import os
from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state.ledger import Ledger
from tests.state.damage import ALL_UIDS, copy_of, obstruct, quarantined
from tests.support.ledgers import (
    GPU_0,
    edited,
    existing,
    holders,
    opened,
    put,
    recorded_claim,
    remove,
    uids,
)


@pytest.mark.parametrize(
    "damaged",
    ["'{}'", "'[]'", "'null'", "'{'", "''", "x'ff00'", "CAST(x'ff00' AS TEXT)", "7"],
)
def test_damaged_record_is_restored_and_affects_no_other(tmp_path: Path, damaged: str) -> None:
    path = existing(tmp_path)
    edited(path, f"UPDATE claims SET record = {damaged} WHERE uid = 'uid-07'")

    with opened(tmp_path) as ledger:
        assert ledger.get("uid-07") == recorded_claim("07", number=7)
        assert uids(ledger) == ALL_UIDS
        assert len(holders(ledger, GPU_0)) == 40
        (report,) = ledger.damage()

    assert (report.quarantined, report.rebuilt, report.lost) == ("", ("uid-07",), ())
    assert quarantined(tmp_path) == []


def test_record_damaged_at_runtime_fails_one_call(tmp_path: Path) -> None:
    path = existing(tmp_path)
    with opened(tmp_path) as ledger:
        edited(path, "UPDATE claims SET record = replace(record, '16Gi', '1Gi')")

        with pytest.raises(RetryableError, match="does not match its checksum"):
            ledger.get("uid-07")

        assert ledger.get("uid-07") == recorded_claim("07", number=7)
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
    with ledger.transaction() as step:
        step.remove("uid-a")
        step.put(recorded_claim("b", number=2))
        raise KeyError


@pytest.mark.parametrize("kind", ["folder", "full folder", "loop"])
def test_non_file_at_the_path_of_a_copy_is_moved_away(tmp_path: Path, kind: str) -> None:
    existing(tmp_path)
    obstruct(copy_of(tmp_path, "uid-01"), kind)

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ALL_UIDS
        assert copy_of(tmp_path, "uid-01").is_file()

        obstruct(copy_of(tmp_path, "uid-02"), kind)
        remove(ledger, "uid-02")
        assert not os.path.lexists(copy_of(tmp_path, "uid-02"))

        obstruct(copy_of(tmp_path, "uid-03"), kind)
        put(ledger, recorded_claim("03"))
        assert copy_of(tmp_path, "uid-03").is_file()


@pytest.mark.parametrize("kind", ["file", "loop"])
def test_non_folder_at_the_path_of_the_copies_is_moved_away(tmp_path: Path, kind: str) -> None:
    existing(tmp_path)
    obstruct(tmp_path / "records", kind)

    with opened(tmp_path) as ledger:
        assert uids(ledger) == ALL_UIDS

    assert copy_of(tmp_path, "uid-01").is_file()
