"""The node plugin's flags, parsed."""

import argparse

from tensorfusion_dra.app.shared import setting_sources
from tensorfusion_dra.app.shared.node_settings import Settings


def node_flags(*given: str) -> argparse.Namespace:
    """Return these flags as the node plugin gets them."""
    parser = argparse.ArgumentParser()
    setting_sources.add_flags(parser, Settings)
    return parser.parse_args(given)
