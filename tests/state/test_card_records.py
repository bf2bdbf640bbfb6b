"""The file with what is known of the cards."""

from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state.card_records import FILE_NAME, CardRecords


def test_what_was_saved_is_loaded_by_the_next_process(tmp_path: Path) -> None:
    first = CardRecords(tmp_path / "new", boot_id="0d4a-boot")
    assert first.load() is None

    first.save({"cards": []})

    again = CardRecords(tmp_path / "new", boot_id="0d4a-boot")
    assert again.load() == {"cards": []}
    assert again.boot_id == "0d4a-boot"
    assert (tmp_path / "new" / FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)

    assert CardRecords(tmp_path, boot_id="0d4a-boot").load() is None


def test_a_disk_that_takes_nothing_is_tried_again_later(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.write_text("a file", encoding="ascii")
    records = CardRecords(folder, boot_id="0d4a-boot")

    with pytest.raises(RetryableError, match="card record"):
        records.save({})
