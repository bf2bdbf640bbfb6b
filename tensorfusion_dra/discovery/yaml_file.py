"""Reader of a small YAML file that an administrator wrote."""

from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import InputError

MAX_BYTES: Final = 2**20


def content(file: Path) -> object:
    """Return the content in plain Python types; JSON works too, because it is YAML.

    Raises:
        InputError: The file cannot be read, is longer than 1 MiB or is not YAML.
    """
    # Imported here, because a node plugin whose settings name no file reads no YAML.
    from tensorfusion_dra.runtime import untyped_yaml  # noqa: PLC0415

    text = read(file)
    try:
        return untyped_yaml.document(text)
    except InputError as error:
        raise InputError(f"{file}: {error}, expected YAML") from error


def read(file: Path) -> bytes:
    """Return the bytes of the file.

    Raises:
        InputError: The file cannot be read, or is longer than 1 MiB.
    """
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{file}: {reason}, expected a readable YAML file") from error
    if len(text) > MAX_BYTES:
        raise InputError(f"{file}: found over {MAX_BYTES} bytes, expected a small YAML file")
    return text


def shown(value: object) -> str:
    """Return a value in the form for error texts: one line, not too long."""
    if isinstance(value, dict | list | tuple | set):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of over 64 bits"
    return repr(value)[:60]
