"""The file with the records of the cards."""

from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state.card_records import FILE_NAME, CardRecords


def test_saved_record_is_loaded_by_the_next_process(tmp_path: Path) -> None:
    first = CardRecords(tmp_path / "new", boot_id="0d4a-boot")
    assert first.load() is None

    first.save({"cards": []})

    again = CardRecords(tmp_path / "new", boot_id="0d4a-boot")
    assert again.load() == {"cards": []}
    assert again.boot_id == "0d4a-boot"
    assert (tmp_path / "new" / FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_damaged_file_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)

    assert CardRecords(tmp_path, boot_id="0d4a-boot").load() is None


def test_failed_write_is_a_retryable_error(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.write_text("a file", encoding="ascii")
    records = CardRecords(folder, boot_id="0d4a-boot")

    with pytest.raises(RetryableError, match="card record"):
        records.save({})
