"""The command: a table of its verbs."""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

from tensorfusion_dra.app.shared import stop_signals, version
from tensorfusion_dra.core.errors import InputError, RetryableError


class Command(Protocol):
    """The module ``command`` in the folder of a verb."""

    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb of the command.

    Attributes:
        folder: Package in ``tensorfusion_dra.app``, with a module ``command``.
        serves: It runs until a signal stops it.
    """

    name: str
    folder: str
    help: str
    serves: bool = False


VERBS: Final = (
    Verb(
        "node-plugin",
        folder="node_plugin",
        help="serve the kubelet of this node and publish its GPUs",
        serves=True,
    ),
    Verb(
        "webhook",
        folder="webhook",
        help="give pods their claims and claims their contents, at admission",
        serves=True,
    ),
    Verb(
        "simulate",
        folder="simulate",
        help="run a whole node on this machine, without GPU or cluster",
    ),
    Verb("inspect", folder="inspect", help="show what this node has and holds"),
    Verb("cel", folder="cel", help="translate, check and explain device selectors"),
    Verb(
        "convert",
        folder="convert",
        help="the user guide's YAML as an API server of 1.34 or later takes it",
    ),
    Verb("doctor", folder="doctor", help="say why it does not work here, and what to do"),
)


class _Parser(argparse.ArgumentParser):
    """Parser whose error is one line, as for every other bad input."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit code: 2 for bad input, else the verb's own."""
    given = sys.argv[1:] if arguments is None else arguments
    chosen = next((verb for verb in VERBS if given[:1] == [verb.name]), None)
    if chosen is not None and chosen.serves:
        stop_signals.hold()
    else:
        stop_signals.release()
    try:
        flags = _parser(chosen).parse_args(given)
        return int(flags.run(flags))
    except InputError as error:
        sys.stderr.write(f"tensorfusion-dra: {' '.join(str(error).split())}\n")
        return 2
    except RetryableError as error:
        sys.stderr.write(f"tensorfusion-dra: {' '.join(str(error).split())}\n")
        return 1


def _parser(chosen: Verb | None) -> argparse.ArgumentParser:
    """Return the parser of the command, with the flags of the chosen verb only.

    The other verbs are not imported: the node plugin should not load a simulator.
    """
    parser = _Parser(
        prog="tensorfusion-dra", description="Kubernetes DRA node driver for shared GPUs."
    )
    parser.add_argument(
        "--version", action="version", version=f"{version.NAME} {version.current()}"
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    for verb in VERBS:
        flags = verbs.add_parser(verb.name, help=verb.help)
        if verb is chosen:
            command: Command = importlib.import_module(
                f"tensorfusion_dra.app.{verb.folder}.command"
            )
            command.add_flags(flags)
            flags.set_defaults(run=command.run)
    return parser
