"""The verb `completion`: print a shell's completion; and that of `kubectl tensorfusion`.

kubectl runs the program `kubectl_complete-tensorfusion` with the words that were typed. It prints
the candidates for the last word, one a line, and then a number for the shell (Cobra's directives:
4 adds no names of files, 0 does). Source: k8s.io/kubectl, pkg/cmd/plugin/plugin_completion.go.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import shtab

from tensorfusion_dra.app.cordon import command
from tensorfusion_dra.app.shared import kubectl
from tensorfusion_dra.cluster.api import CORE, resource_path
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core.errors import InputError, RetryableError

_WAIT_SECONDS: Final = 3.0


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


def complete(parser: argparse.ArgumentParser, verbs: Sequence[str], words: Sequence[str]) -> None:
    """Print the candidates for the last of the words, for kubectl.

    Args:
        parser: That of the command, with the flags of all verbs.
        verbs: Those for users.
    """
    *before, start = words or [""]
    found, takes_files = [] if before else list(verbs), False
    if before:
        # What cannot be read has no candidates, and a message would end up between them.
        with suppress(InputError, RetryableError):
            found, takes_files = _candidates(parser, before, start)
    shown = [f"{each}\n" for each in found if each.startswith(start)]
    sys.stdout.write("".join((*shown, f":{0 if takes_files else 4}\n")))


def _candidates(
    parser: argparse.ArgumentParser, before: Sequence[str], start: str
) -> tuple[list[str], bool]:
    """Return the candidates for the word after these, and whether it may be a file.

    As in kubectl, flags are listed only after a dash, or if there is nothing else.
    """
    actions = parser._actions
    for word in before:
        verbs = next((each.choices for each in actions if isinstance(each.choices, dict)), None)
        if verbs is None:
            break
        if word not in verbs:
            return [], False
        actions = verbs[word]._actions
    flags = {flag: each for each in actions for flag in each.option_strings}
    flag = flags.get(before[-1])
    asked = [flag] if flag and flag.nargs != 0 else [a for a in actions if not a.option_strings]
    if asked != [flag] and start.startswith("-"):
        return list(flags), False
    found = [str(choice) for each in asked for choice in each.choices or ()]
    given = dict(itertools.pairwise(part for word in before for part in word.split("=", 1)))
    for each in asked:
        if read := _NAMES.get(each.dest):
            found += read(given)
    if asked != [flag] and not found:
        found += flags
    return found, any(each.metavar in ("FILE", "DIR", "FOLDER") for each in asked)


def _pods(given: Mapping[str, str]) -> Iterable[str]:
    namespace = given.get("-n") or given.get("--namespace")
    return _listed(given, "pods", namespace or kubectl.namespace(*_cluster(given)))


def _namespaces(given: Mapping[str, str]) -> Iterable[str]:
    return _listed(given, "namespaces")


def _cards(given: Mapping[str, str]) -> Iterable[str]:
    lists = ClusterLists(kubectl.api(*_cluster(given)), wait_seconds=_WAIT_SECONDS)
    return map("/".join, command.published(lists))


def _listed(given: Mapping[str, str], plural: str, namespace: str = "") -> Iterable[str]:
    lists = ClusterLists(kubectl.api(*_cluster(given)), wait_seconds=_WAIT_SECONDS)
    path = resource_path(plural, namespace=namespace, root=CORE)
    return [str(each["metadata"]["name"]) for each in lists.items(path)]


def _cluster(given: Mapping[str, str]) -> tuple[str | None, str | None]:
    return given.get("--kubeconfig"), given.get("--context")


_NAMES: Final[Mapping[str, Callable[[Mapping[str, str]], Iterable[str]]]] = {
    "namespace": _namespaces,
    "pod": _pods,
    "target": _pods,
    "card": _cards,
}
"""Functions that list the values of an argument, by its destination, from the flags before it."""
