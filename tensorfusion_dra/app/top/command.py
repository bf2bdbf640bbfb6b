"""The verb `top`: show the cluster's cards, what is free of them, and who has the rest."""

import argparse
import sys
import threading
from collections.abc import Callable
from typing import Final

from tensorfusion_dra.app.shared import kubectl, logging
from tensorfusion_dra.app.top import view
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.scheduling import inventory, taint_rules
from tensorfusion_dra.scheduling.inventory import StockedCard

_LEAST_SECONDS: Final = 1.0
_MOST_SECONDS: Final = 86_400.0
_CLEAR: Final = "\x1b[H\x1b[2J"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `top`."""
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NAMESPACE",
        help="only shares of this namespace, and cards on which it has some",
    )
    parser.add_argument(
        "-o", dest="form", choices=view.FORMS, default="table", help="output format"
    )
    parser.add_argument("-w", "--watch", action="store_true", help="print again until interrupted")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="time between prints of --watch. Default: 5."
    )
    kubectl.add_flag(parser)


def run(flags: argparse.Namespace) -> int:
    """Print the cards and return 0.

    Raises:
        InputError: A flag cannot be used, or the slices are malformed.
        RetryableError: The API server did not answer, or a right is missing.
    """
    if not _LEAST_SECONDS <= flags.seconds <= _MOST_SECONDS:
        raise InputError(
            f"seconds: found {flags.seconds:g}, expected {_LEAST_SECONDS:g} to {_MOST_SECONDS:g}"
        )
    logging.configure(level="critical", form="console")
    lists = ClusterLists(kubectl.api(flags.kubeconfig))

    def shown() -> str:
        return view.text(_cards(lists), form=flags.form, namespace=flags.namespace or "")

    if not flags.watch:
        sys.stdout.write(shown())
        return 0
    pause = threading.Event()
    try:
        watch(shown, wait=lambda: not pause.wait(flags.seconds), is_screen=sys.stdout.isatty())
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    return 0


def watch(shown: Callable[[], str], *, wait: Callable[[], bool], is_screen: bool) -> None:
    """Print again and again, also after errors of the API server, until wait returns False."""
    going_on = True
    while going_on:
        try:
            text = shown()
        except RetryableError as error:
            text = f"tensorfusion-dra: {error}\n"
        sys.stdout.write((_CLEAR if is_screen else "") + text)
        sys.stdout.flush()
        going_on = wait()


def _cards(lists: ClusterLists) -> list[StockedCard]:
    """Return the cluster's cards.

    Raises:
        InputError: A slice or claim is malformed.
        RetryableError: The API server did not answer, or a right is missing.
    """
    slices = lists.slices(fieldSelector=f"spec.driver={names.DRIVER}")
    rules = lists.taint_rules()
    claims = lists.claims()
    try:
        return inventory.cards(taint_rules.applied(rules, slices), claims, driver=names.DRIVER)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"the cluster's slices: found {type(error).__name__} {error}, expected slices and "
            "claims as the API server shows them"
        ) from error
