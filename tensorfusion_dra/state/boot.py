"""The ID of the machine's current boot."""

from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import InputError

_MOST_BYTES: Final = 128
"""The kernel's ID has 36."""


def boot_id(file: Path) -> str:
    """Return the boot ID, which stays the same until the machine reboots (random(4)).

    Raises:
        InputError: The file cannot be read, or is empty.
    """
    try:
        with file.open("rb") as opened:
            found = opened.read(_MOST_BYTES + 1).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"boot-id-file {file}: {error}") from error
    if not found:
        raise InputError(f"boot-id-file {file}: found nothing, expected the ID of this boot")
    if len(found) > _MOST_BYTES:
        text = f"found more than {_MOST_BYTES} bytes, expected the ID of this boot"
        raise InputError(f"boot-id-file {file}: {text}")
    return found
