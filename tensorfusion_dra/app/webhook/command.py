"""The verb `webhook`: create claims for pods and fill claims from annotations, at admission."""

import argparse
import os

from tensorfusion_dra.app.shared import logging, setting_sources
from tensorfusion_dra.app.webhook.settings import WebhookSettings


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag for each setting, and --config."""
    setting_sources.add_flags(parser, WebhookSettings)


def run(flags: argparse.Namespace) -> int:
    """Serve until stopped; return the exit code.

    Raises:
        InputError: A setting, or a file that the settings name, cannot be used.
    """
    settings = WebhookSettings(**setting_sources.values(WebhookSettings, flags, os.environ))
    # Logging is configured before the imports, so that their first log line has the right format.
    logging.configure(level=settings.log_level, form=settings.log_format)
    from tensorfusion_dra.app.webhook import process  # noqa: PLC0415

    return process.run(settings)
