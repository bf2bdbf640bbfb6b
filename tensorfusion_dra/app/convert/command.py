"""Converts the user guide's YAML."""

import difflib
import sys
from collections.abc import Iterator

from tensorfusion_dra.app import reading
from tensorfusion_dra.app.convert import convert
from tensorfusion_dra.app.convert.convert import Converted


def run(file: str, *, check: bool) -> int:
    """Prints the converted text, and on stderr the difference with its reasons; the exit code.

    Args:
        check: Print no text; 1 if there is anything to convert.

    Raises:
        InputError: The file cannot be read, or is no YAML.
    """
    text = reading.read(file)
    converted = convert.convert(text)
    name = "stdin" if file == reading.STDIN else file
    if not check:
        sys.stdout.write(converted.text)
    sys.stderr.writelines(line + "\n" for line in _said(name, text, converted))
    is_refused = bool(converted.problems) or (check and converted.text != text)
    return 1 if is_refused else 0


def _said(name: str, text: str, converted: Converted) -> Iterator[str]:
    difference = difflib.unified_diff(
        text.splitlines(), converted.text.splitlines(), name, f"{name}, converted", lineterm=""
    )
    yield from difference
    words = (
        ("", converted.reasons),
        ("note: ", converted.notes),
        ("refused: ", converted.problems),
    )
    for word, reasons in words:
        yield from (f"{name}:{reason.line}: {word}{reason.text}" for reason in reasons)
