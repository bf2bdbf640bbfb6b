"""Files with what the driver knew when it was stopped."""

from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state.saved_state import CARDS, SavedState


def test_saved_state_is_loaded_by_the_next_process(tmp_path: Path) -> None:
    first = SavedState(tmp_path / "new", CARDS)
    assert first.load() is None

    first.save({"cards": []})

    assert SavedState(tmp_path / "new", CARDS).load() == {"cards": []}
    assert (tmp_path / "new" / CARDS).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_damaged_file_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CARDS).write_bytes(content)

    assert SavedState(tmp_path, CARDS).load() is None


def test_failed_write_is_a_retryable_error(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.write_text("a file", encoding="ascii")

    with pytest.raises(RetryableError, match="saved state"):
        SavedState(folder, CARDS).save({})
