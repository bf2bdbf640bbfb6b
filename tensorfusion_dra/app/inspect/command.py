"""The verb `inspect`: show this node's GPUs, devices and prepared claims."""

import argparse
import os

from tensorfusion_dra.app.inspect import node_view, providers_view
from tensorfusion_dra.app.shared import logging, node_settings


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `inspect` and the node plugin's settings."""
    parser.add_argument(
        "-o",
        dest="form",
        choices=node_view.FORMS,
        default="table",
        help="output format",
    )
    parser.add_argument(
        "--raw", action="store_true", help="print NVML's answer to each query, as JSON"
    )
    parser.add_argument(
        "--providers",
        action="store_true",
        help="print who gives which attribute and capacity, in what time, and what went wrong",
    )
    node_settings.add_flags(parser)


def run(flags: argparse.Namespace) -> int:
    """Print the node's GPUs, devices, prepared claims and CDI specs; return 1 if a part is unknown.

    Raises:
        InputError: A setting, or a file that the settings name, cannot be used.
    """
    settings = node_settings.from_flags(flags, os.environ)
    logging.configure(level="error", form="console")
    if flags.providers:
        return providers_view.run(settings, form=flags.form)
    return node_view.run(settings, form=flags.form, raw=flags.raw)
