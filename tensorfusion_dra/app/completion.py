"""The verb `completion`: print a shell's completion."""

import argparse
import sys

import shtab


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `completion`."""
    parser.add_argument(
        "shell", choices=("bash", "zsh", "fish"), help="the shell that reads the script"
    )


def run(flags: argparse.Namespace) -> int:
    """Print the script, made of the table of verbs and their flags."""
    parser: argparse.ArgumentParser = flags.whole_parser()
    for action in _actions(parser):
        if action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in ("DIR", "FOLDER"):
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
