"""The ID of the machine's current boot."""

from pathlib import Path

from tensorfusion_dra.core.errors import InputError


def boot_id(file: Path) -> str:
    """Return the boot ID, which stays the same until the machine reboots (random(4)).

    Raises:
        InputError: The file cannot be read, or is empty.
    """
    try:
        found = file.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"boot-id-file {file}: {error}") from error
    if not found:
        raise InputError(f"boot-id-file {file}: found nothing, expected the ID of this boot")
    return found
