"""Input and output of verbs: text from a file or stdin, a document alone on stdout."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

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


_STDOUT: Final = 1
_STDERR: Final = 2


def documents(file: str, *, of: str = "") -> list[dict[str, Any]]:
    """Return the objects of a YAML or JSON file, those of its Lists one by one.

    Args:
        of: What the file has, for the error of one that is not YAML.

    Raises:
        InputError: The file cannot be read, or is not YAML.
    """
    try:
        return list(_flat(yaml.safe_load_all(read(file))))
    except yaml.YAMLError as error:
        raise InputError(f"{of}{file}: {' '.join(str(error).split())}") from error


def _flat(found: Iterable[object]) -> Iterator[dict[str, Any]]:
    for each in found:
        if isinstance(each, dict):
            items = each.get("items")
            yield from _flat(items) if isinstance(items, list) else (each,)


@contextmanager
def own_output() -> Iterator[None]:
    """Send standard output to standard error meanwhile, that of child processes too.

    For calls of providers and enforcers of other packages: a line of theirs in `-o json` would make
    it unreadable.
    """
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, _STDOUT)
        os.close(kept)
