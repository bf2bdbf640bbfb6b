"""The verb `convert`: rewrite the user guide's YAML for API servers of 1.34 or later."""

import argparse
import difflib
import sys
from collections.abc import Iterator

from tensorfusion_dra.app.convert import convert
from tensorfusion_dra.app.convert.convert import Converted
from tensorfusion_dra.app.shared import streams


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `convert`."""
    parser.epilog = (
        "exit codes: 0 converted; 1 a part would be refused and cannot be converted, or with "
        "--check needs conversion; 2 the input cannot be read"
    )
    parser.add_argument(
        "-f", dest="file", metavar="FILE", required=True, help="YAML or JSON; - for stdin"
    )
    parser.add_argument("--check", action="store_true", help="only print what would be converted")


def run(flags: argparse.Namespace) -> int:
    """Print the converted text, and on stderr the diff and its reasons; return the exit code.

    With --check no text is printed, and the exit code is 1 if there is anything to convert.

    Raises:
        InputError: The file cannot be read, or is not YAML.
    """
    text = streams.read(flags.file)
    converted = convert.convert(text)
    name = "stdin" if flags.file == streams.STDIN else flags.file
    if not flags.check:
        sys.stdout.write(converted.text)
    sys.stderr.writelines(line + "\n" for line in _difference(name, text, converted))
    has_failed = bool(converted.problems) or (flags.check and converted.text != text)
    return 1 if has_failed else 0


def _difference(name: str, text: str, converted: Converted) -> Iterator[str]:
    yield from difflib.unified_diff(
        text.splitlines(), converted.text.splitlines(), name, f"{name}, converted", lineterm=""
    )
    prefixes = (
        ("", converted.reasons),
        ("note: ", converted.notes),
        ("refused: ", converted.problems),
    )
    for prefix, reasons in prefixes:
        yield from (f"{name}:{reason.line}: {prefix}{reason.text}" for reason in reasons)
