"""The verb `completion`: print a shell's completion, and answer kubectl's questions for one."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from tensorfusion_dra.core.errors import InputError

_SHELLS: Final = ("bash", "zsh", "fish")
_FILES: Final = frozenset({"FILE"})
_FOLDERS: Final = frozenset({"DIR", "FOLDER"})


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `completion`."""
    parser.add_argument("shell", choices=_SHELLS, help="the shell that reads the script")


def run(flags: argparse.Namespace) -> int:
    """Print the script, made of the table of verbs and their flags.

    Raises:
        InputError: The extra 'completion' is missing.
    """
    try:
        import shtab  # noqa: PLC0415 - the extra 'completion'
    except ImportError as error:
        raise InputError(f"completion needs the extra 'completion': {error}") from error

    parser: argparse.ArgumentParser = flags.whole_parser()
    for action in _actions(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(parser, shell=flags.shell) + "\n")
    return 0


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the actions of a parser and of all parsers below it."""
    found: list[argparse.Action] = []
    for action in parser._actions:
        found.append(action)
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                found += _actions(below)
    return found


_FILE_NAMES: Final = ":0"
"""The shell completes file names if there is no word."""
_NO_FILES: Final = ":4"


def answer(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Return the lines for kubectl.

    Args:
        words: The words after ``kubectl tensorfusion``; the last one is unfinished, maybe empty.
    """
    *before, last = words or [""]
    awaited: argparse.Action | None = None
    for word in before:
        flag = parser._option_string_actions.get(word)
        if awaited is not None:
            awaited = None
        elif flag is not None:
            awaited = flag if flag.nargs != 0 else None
        else:
            parser = _below(parser).get(word, parser)
    if awaited is not None:
        choices = _matching(awaited.choices or (), last)
        return [*choices, _NO_FILES if awaited.metavar != "FILE" else _FILE_NAMES]
    if last.startswith("-"):
        return [*_matching(parser._option_string_actions, last), _NO_FILES]
    return [*_matching(_below(parser), last), _NO_FILES]


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the words that may come next."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
        elif not action.option_strings and action.choices:
            found |= dict.fromkeys(map(str, action.choices), parser)
    return found


def _matching(words: Iterable[object], start: str) -> list[str]:
    return [text for text in map(str, words) if text.startswith(start)]
