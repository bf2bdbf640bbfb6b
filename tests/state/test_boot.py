"""The ID of the machine's current boot is read from a small file."""

from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.state import boot


def test_boot_id_is_the_text_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "boot_id"
    file.write_text("705ab4f5-6393-11e8-b7cc-42010a800002\n")

    assert boot.boot_id(file) == "705ab4f5-6393-11e8-b7cc-42010a800002"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "found nothing, expected the ID of this boot"),
        ("a" * 129, "found more than 128 bytes, expected the ID of this boot"),
        ("é", "'ascii' codec"),
    ],
)
def test_another_file_is_an_input_error(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "boot_id"
    file.write_text(text)

    with pytest.raises(InputError, match=f"^boot-id-file {file}: {error}"):
        boot.boot_id(file)
