"""The verb `node-plugin`: serve the kubelet of this node and publish its GPUs."""

import argparse
import os

from tensorfusion_dra.app.shared import logging, node_settings, setting_sources


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag for each setting, and --config."""
    setting_sources.add_flags(parser, node_settings.Settings)


def run(flags: argparse.Namespace) -> int:
    """Serve until stopped; return the exit code.

    Raises:
        InputError: A setting, or a file that the settings name, cannot be used.
    """
    settings = node_settings.from_flags(flags, os.environ)
    # Logging is configured before the imports, so that their first log line has the right format.
    logging.configure(level=settings.log_level, form=settings.log_format)
    from tensorfusion_dra.app.node_plugin import process  # noqa: PLC0415

    return process.run(settings)
