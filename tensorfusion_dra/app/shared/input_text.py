"""Input of a command: the text of a file or of stdin."""

import sys
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import InputError

STDIN: Final = "-"
"""The file name that stands for stdin."""


def read(file: str) -> str:
    """Return the text of a file, or of stdin.

    Raises:
        InputError: The text cannot be read, or is not UTF-8.
    """
    try:
        if file == STDIN:
            return sys.stdin.buffer.read().decode()
        return Path(file).read_bytes().decode()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: found byte {error.start}, expected UTF-8") from error
