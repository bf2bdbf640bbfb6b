"""Completion of `kubectl tensorfusion`: kubectl asks a command for the words that may come next.

kubectl runs ``kubectl_complete-tensorfusion WORDS... LAST`` and reads a word a line, and then a
directive (k8s.io/kubectl/pkg/cmd/plugin_completion.go). No library does this for argparse.
"""

import argparse
from collections.abc import Iterable, Sequence
from typing import Final

_FILES: Final = ":0"
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
        return [*choices, _NO_FILES if awaited.metavar != "FILE" else _FILES]
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
