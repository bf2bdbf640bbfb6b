"""Input and output of verbs: text from a file or stdin, a document alone on stdout."""

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import yaml

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB, NANO, Quantity
from tensorfusion_dra.runtime import untyped_yaml

STDIN: Final = "-"
"""The file name that stands for stdin."""
MAX_BYTES: Final = 16 * 2**20
WIDE: Final = "wide"
FOR_PEOPLE: Final = ("table", WIDE)
_LEAST_WIDTH: Final = 12
"""Of a column that is cut."""
_END_OF_NAME: Final = 6
_STDOUT: Final = 1
_STDERR: Final = 2
_AMOUNT: Final = re.compile(r"\b[0-9]+(m|[KMGT]i)\b")


def read(file: str) -> str:
    """Return the text of a file, or of stdin.

    Raises:
        InputError: The text cannot be read, is longer than 16 MiB, or is not UTF-8.
    """
    try:
        with nullcontext(sys.stdin.buffer) if file == STDIN else Path(file).open("rb") as stream:
            found = stream.read(MAX_BYTES + 1)
        if len(found) > MAX_BYTES:
            raise InputError(f"{file}: found over {MAX_BYTES} bytes, expected fewer")
        return found.decode()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: found byte {error.start}, expected UTF-8") from error


def documents(file: str, *, of: str = "") -> list[dict[str, Any]]:
    """Return the objects of a YAML or JSON file, those of its Lists one by one.

    Args:
        of: What the file has, for the error of one that is not YAML.

    Raises:
        InputError: The file cannot be read, is not YAML, has more than objects, or describes too
            much.
    """
    text = read(file)
    try:
        return list(_flat(untyped_yaml.documents(text)))
    except InputError as error:
        raise InputError(f"{of}{file}: {error}") from error


def _flat(found: Iterable[object]) -> Iterator[dict[str, Any]]:
    for each in found:
        if isinstance(each, dict):
            items = each.get("items")
            yield from _flat(items) if isinstance(items, list) else (each,)
        elif each is not None:
            raise InputError(f"found {str(each)[:40]!r}, expected an object")


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


def add_form(parser: argparse.ArgumentParser) -> None:
    """Add -o, whose values are the same for every verb."""
    parser.add_argument(
        "-o",
        dest="form",
        choices=(*FOR_PEOPLE, "json", "yaml"),
        default="table",
        help="output format: a table as wide as the terminal, one with all columns and uncut, "
        "or a document for programs",
    )


def add_exit_codes(parser: argparse.ArgumentParser, fine: str, found: str) -> None:
    """Say at the end of the help what the exit codes mean, which is the same for every verb."""
    parser.epilog = (
        f"exit codes:\n  0  {fine}\n  1  {found}\n  2  bad input, or something is out of reach\n"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def formatted(form: str, document: object, lines: Iterable[str]) -> str:
    """Return an answer with its last line break: as JSON, as YAML, or else as these lines."""
    if form == "json":
        return json.dumps(document, indent=2) + "\n"
    if form == "yaml":
        return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    return "\n".join([*lines, ""])


def sections(*blocks: Sequence[str]) -> list[str]:
    """Return the lines of the blocks, an empty line between them; empty blocks are left out."""
    return [line for block in filter(None, blocks) for line in ("", *block)][1:]


def table(
    rows: Iterable[Sequence[object]], *, indent: str = "  ", is_wide: bool = True
) -> list[str]:
    """Return the rows as lines in which every column is as wide as its widest cell.

    Args:
        is_wide: Cut nothing. Else the widest columns are cut until the lines fit on the terminal,
            if standard output is one.
    """
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    if sys.stdout.isatty() and not is_wide:
        room = shutil.get_terminal_size().columns - len(indent) - 2 * (len(widths) - 1)
        while sum(widths) > room and max(widths) > _LEAST_WIDTH:
            widths[widths.index(max(widths))] -= 1
    return [
        (indent + "  ".join(_cut(c, w).ljust(w) for c, w in zip(row, widths, strict=True))).rstrip()
        for row in texts
    ]


def _cut(text: str, width: int) -> str:
    """Cut a text to this width; of a name the end is kept, where pods of a Deployment differ."""
    if len(text) <= width:
        return text
    end = "" if " " in text else text[-_END_OF_NAME:]
    return f"{text[: width - 1 - len(end)]}\u2026{end}"


def shown(amount: Quantity, capacity: str = "") -> str:
    """Return a quantity for people: ``71.2`` for ``71200m``, ``120.2Gi`` for ``123100Mi``.

    Memory is in Gi, or in Mi below 1Gi, and rounded down: what is free is never said to be more.

    Args:
        capacity: Its name, by which an amount without Ki, Mi, Gi is known to be memory.
    """
    is_memory = amount.family == "binary" or capacity.endswith(names.CAPACITY_VRAM)
    for unit, size in (("Gi", GIB * NANO), ("Mi", MIB * NANO)) if is_memory else ():
        if amount.nano >= size:
            return f"{amount.nano * 10 // size / 10:.1f}".removesuffix(".0") + unit
    whole, rest = divmod(amount.nano, NANO)
    if not rest or amount.nano < 0:
        return str(amount)
    return f"{whole}.{rest:09}".rstrip("0")


def shown_bytes(amount: int) -> str:
    """Return a number of bytes for people."""
    return shown(Quantity.of_bytes(amount))


def with_points(text: str) -> str:
    """Return a text in which each amount with a suffix is written for people."""
    return _AMOUNT.sub(lambda found: shown(quantity.parse(found[0])), text)


def short_names(devices: Iterable[str]) -> dict[str, str]:
    """Return each name cut to the fewest characters that are unique, such as ``gpu-363a``."""
    every = set(devices)
    for length in range(len("gpu-363a"), max(map(len, every), default=0)):
        if len({name[:length] for name in every}) == len(every):
            return {name: name[:length] for name in every}
    return {name: name for name in every}
