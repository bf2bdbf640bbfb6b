"""`doctor`: examine everything that the driver depends on, and change nothing."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Final

from tensorfusion_dra.app.doctor import (
    context,
    folders,
    gpus,
    kubernetes,
    limiter,
    objects,
    records,
    report,
    rights,
    runtime,
    sockets,
    webhook,
)
from tensorfusion_dra.app.doctor.options import Options, Place
from tensorfusion_dra.app.doctor.runner import Check, examined
from tensorfusion_dra.app.shared import logging, node_settings
from tensorfusion_dra.core.doctor import finding as findings
from tensorfusion_dra.core.doctor.finding import EXIT_CODES
from tensorfusion_dra.core.errors import InputError

_FORMS: Final = ("table", "json")
_NODE: Final = frozenset({Place.NODE})
_WORKSTATION: Final = frozenset({Place.WORKSTATION})

CHECKS: Final = (
    Check(theme="kubernetes", look=kubernetes.version, needs_api=True),
    Check(theme="kubernetes", look=kubernetes.slice_gates, needs_api=True),
    Check(theme="kubernetes", look=kubernetes.claim_gates, needs_api=True),
    Check(theme="kubernetes", look=kubernetes.allocations, needs_api=True, places=_WORKSTATION),
    Check(theme="kubernetes", look=kubernetes.several_gpus, needs_api=True, places=_WORKSTATION),
    Check(theme="kubernetes", look=kubernetes.nodes, needs_api=True),
    Check(theme="container runtime", look=runtime.cdi, needs_api=True),
    Check(theme="folders", look=folders.folders, places=_NODE),
    Check(theme="sockets", look=sockets.paths, places=_NODE),
    Check(theme="sockets", look=sockets.served, places=_NODE),
    Check(theme="sockets", look=sockets.registered, places=_NODE),
    Check(theme="GPUs", look=gpus.cards, places=_NODE),
    Check(theme="GPUs", look=gpus.neighbours, needs_api=True),
    Check(theme="limits", look=limiter.files, places=_NODE),
    Check(theme="slices", look=objects.slices, needs_api=True),
    Check(theme="device class", look=objects.device_class, needs_api=True),
    Check(theme="claim template", look=objects.templates, needs_api=True),
    Check(theme="GPU pools", look=objects.definitions, needs_api=True, places=_WORKSTATION),
    Check(theme="rights", look=rights.of_node_plugin, needs_api=True),
    Check(theme="webhook", look=rights.of_webhook, needs_api=True, places=_WORKSTATION),
    Check(theme="webhook", look=webhook.reachable, needs_api=True),
    Check(theme="records", look=records.records, places=_NODE),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the doctor's own flags and the node plugin's settings."""
    parser.epilog = (
        "Exit code: 0 if nothing is worse than a note, 1 for a problem, 2 for bad input, "
        "3 for a warning, 4 if something could not be looked at."
    )
    parser.add_argument(
        "-o", dest="form", choices=_FORMS, default="table", help="how to show what was found"
    )
    parser.add_argument(
        "--on",
        choices=tuple(Place),
        help="node, or workstation, which has nothing of its own to look at; found out by default",
    )
    parser.add_argument(
        "--host-root", default="/", help="folder in which the host's root is seen. Default: /."
    )
    parser.add_argument(
        "--runtime-config", help="configuration file of containerd or CRI-O; searched by default"
    )
    parser.add_argument(
        "--namespace", default="default", help="namespace of the writes on trial. Default: default."
    )
    parser.add_argument(
        "--service-account",
        metavar="NAMESPACE/NAME",
        help="whose rights are looked at; the DaemonSet's by default",
    )
    node_settings.add_flags(parser)


def run(flags: argparse.Namespace) -> int:
    """Print every finding; the exit code says how bad the worst is (EXIT_CODES).

    Raises:
        InputError: A flag or a setting cannot be used.
    """
    settings = node_settings.from_flags(flags, os.environ)
    logging.configure(level="critical", form="console")
    here = context.found(settings, _options(flags), os.environ)
    results = list(examined(CHECKS, here))
    if flags.form == "json":
        text = json.dumps(report.document(results, here), indent=2)
    else:
        text = "\n".join(report.lines(results, here))
    sys.stdout.write(text + "\n")
    worst = findings.worst(found for result in results for found in result.findings)
    return EXIT_CODES[worst]


def _options(flags: argparse.Namespace) -> Options:
    """Return the options in the flags, checked.

    Raises:
        InputError: One of them cannot be used.
    """
    account = None
    if flags.service_account is not None:
        namespace, slash, name = flags.service_account.partition("/")
        if not (namespace and slash and name):
            raise InputError(
                f"service-account: found {flags.service_account!r}, expected NAMESPACE/NAME"
            )
        account = (namespace, name)
    if flags.runtime_config and not Path(flags.runtime_config).is_file():
        raise InputError(f"runtime-config: {flags.runtime_config}: expected a file")
    return Options(
        place=Place(flags.on) if flags.on else None,
        host_root=Path(flags.host_root),
        runtime_config=Path(flags.runtime_config) if flags.runtime_config else None,
        namespace=flags.namespace,
        service_account=account,
    )
