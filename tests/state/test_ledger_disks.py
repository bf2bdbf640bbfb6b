"""The ledger on disks that are full or read-only."""

from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state.ledger import Ledger
from tensorfusion_dra.state.ledger_file import FILE_NAME
from tests.support.disk import read_only
from tests.support.ledgers import GPU_1, opened, put, recorded_claim, uids


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
