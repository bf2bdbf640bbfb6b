"""The command `tensorfusion-dra`: a table of its verbs."""

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, Protocol

from tensorfusion_dra.app.shared import process_memory, version
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.runtime import stop_signals


class Command(Protocol):
    """Interface of the module of a verb."""

    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb of the command.

    Attributes:
        module: Its module in ``tensorfusion_dra.app``.
        serves: Whether the verb runs until a signal stops it.
    """

    name: str
    module: str
    help: str
    serves: bool = False


VERBS: Final = (
    Verb(
        "simulate",
        module="simulate.command",
        help="run a whole node on this machine, without GPU or cluster",
    ),
    Verb(
        "inspect",
        module="inspect",
        help="show this node's GPUs, devices and prepared claims",
    ),
    Verb("cel", module="cel.command", help="translate, check and explain device selectors"),
    Verb(
        "convert",
        module="convert.command",
        help="rewrite the user guide's YAML for API servers of 1.34 or later",
    ),
    Verb("doctor", module="doctor.command", help="find out what is wrong here and how to fix it"),
    Verb("top", module="top", help="show the cluster's GPUs, what is free, and who has the rest"),
    Verb("resize", module="resize", help="change the limits of a claim while its containers run"),
    Verb("cordon", module="cordon.command", help="take a GPU out of service, and say why"),
    Verb("uncordon", module="cordon.uncordon", help="put a GPU back into service"),
    Verb("why", module="why.command", help="explain why a pod waits for GPUs, and what would help"),
    Verb(
        "teardown-check",
        module="doctor.teardown",
        help="show what would hang if the driver were uninstalled now",
    ),
    Verb("completion", module="completion", help="print the completion of bash, zsh or fish"),
    Verb(
        "node-plugin",
        module="node_plugin.command",
        help="serve the kubelet of this node and publish its GPUs",
        serves=True,
    ),
    Verb(
        "memory-limits",
        module="memory_limits",
        help="set memory limits of containers by the NVIDIA driver, for the node plugin",
        serves=True,
    ),
    Verb(
        "webhook",
        module="webhook.command",
        help="serve admission: create claims for pods and fill claims from annotations",
        serves=True,
    ),
)


_KUBECTL_PLUGIN: Final = "kubectl-tensorfusion"
_FIRST_SERVING: Final = re.compile(r"(?m)^    node-plugin ")


class _Parser(argparse.ArgumentParser):
    """Parser that reports an error in one line, like all other bad input."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")

    def format_help(self) -> str:
        """Return the help; the command's own lists the verbs of long-running pods separately."""
        return _FIRST_SERVING.sub(r"\nrun by the chart's pods:\n\g<0>", super().format_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; return its exit code, or 2 for bad input, or for what is out of reach.

    A verb that serves returns 1 for the latter.
    """
    given = sys.argv[1:] if arguments is None else arguments
    chosen = next((verb for verb in VERBS if given[:1] == [verb.name]), None)
    serves = chosen is not None and chosen.serves
    if serves:
        stop_signals.block()
        process_memory.prepare_start()
    else:
        stop_signals.unblock()
    try:
        flags = _parser([chosen] if chosen else []).parse_args(given)
        return int(flags.run(flags))
    except (InputError, RetryableError) as error:
        sys.stderr.write(f"tensorfusion-dra: {' '.join(str(error).split())}\n")
        return 1 if serves and isinstance(error, RetryableError) else 2


def complete() -> None:
    """Print candidates for the typed words, as the program kubectl_complete-tensorfusion."""
    completion = importlib.import_module("tensorfusion_dra.app.completion")
    users = [verb.name for verb in VERBS if not verb.serves]
    completion.complete(_whole_parser(), users, sys.argv[1:])


def _parser(chosen: Collection[Verb]) -> argparse.ArgumentParser:
    """Return the parser of the command, with the flags of only the chosen verbs.

    The other verbs are not imported, so that the node plugin does not load a simulator.
    """
    is_plugin = Path(sys.argv[0]).name == _KUBECTL_PLUGIN
    parser = _Parser(
        prog="kubectl tensorfusion" if is_plugin else "tensorfusion-dra",
        description="Kubernetes DRA node driver for shared GPUs.",
    )
    parser.add_argument(
        "--version", action="version", version=f"{version.NAME} {version.current()}"
    )
    verbs = parser.add_subparsers(
        title="for users", metavar="VERB", required=True, parser_class=_Parser
    )
    for verb in VERBS:
        flags = verbs.add_parser(verb.name, help=verb.help)
        if verb in chosen:
            command = _command(verb)
            command.add_flags(flags)
            flags.set_defaults(run=command.run, whole_parser=_whole_parser)
    return parser


def _whole_parser() -> argparse.ArgumentParser:
    """Return the parser with the flags of all installed verbs."""
    installed = []
    for verb in VERBS:
        try:
            _command(verb)
        except InputError:
            continue
        installed.append(verb)
    return _parser(installed)


def _command(verb: Verb) -> Command:
    """Import the module of a verb.

    Raises:
        InputError: The extra of the same name, which installs the verb, is missing.
    """
    module = f"tensorfusion_dra.app.{verb.module}"
    try:
        command: Command = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not module.startswith(str(error.name)):
            raise
        hint = f"(pip install '{version.NAME}[{verb.name}]')"
        raise InputError(f"{verb.name} needs the extra '{verb.name}' {hint}") from error
    return command
