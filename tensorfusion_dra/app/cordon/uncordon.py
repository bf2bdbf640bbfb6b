"""The verb `uncordon`: put a card back into service that `cordon` took out of it."""

import argparse
import sys

from tensorfusion_dra.app.cordon import command
from tensorfusion_dra.app.shared import kubectl, logging, streams
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.cluster.watch import TAINT_RULES
from tensorfusion_dra.core import printable
from tensorfusion_dra.core.errors import InputError


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `uncordon`."""
    streams.add_exit_codes(parser, "back in service", "never")
    command.add_target(parser)
    kubectl.add_flags(parser)


def run(flags: argparse.Namespace) -> int:
    """Delete the card's DeviceTaintRule and its annotation of the Node, whichever is there.

    Raises:
        InputError: `cordon` took no such card out of service, or several.
        RetryableError: The API server did not answer, or refused.
    """
    logging.configure(level="critical", form="console")
    api = kubectl.api(flags.kubeconfig, flags.context)
    lists = ClusterLists(api)
    rules, marks = command.by_rules(lists), command.by_annotations(lists)
    if not (rules or marks):
        shown = printable.one_line(flags.card)
        raise InputError(f"{shown}: found no card that cordon took out of service")
    node, device = command.chosen({**rules, **marks}, flags.card)
    if (node, device) in rules:
        path = f"{TAINT_RULES}/{command.RULE_PREFIX}{device}"
        api.change("DELETE", path, permission="delete devicetaintrules")
    if (node, device) in marks:
        command.annotate(api, node, device, None)
    sys.stdout.write(f"{node}/{device}: back in service\n")
    return 0
