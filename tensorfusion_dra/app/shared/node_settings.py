"""The settings of the node plugin: default < file < environment < flag, checked once."""

import argparse
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from tensorfusion_dra.app.shared import setting_sources
from tensorfusion_dra.app.shared.setting_groups.cards import CardSettings
from tensorfusion_dra.app.shared.setting_groups.limits import LimitSettings
from tensorfusion_dra.app.shared.setting_groups.metrics import MetricsSettings
from tensorfusion_dra.app.shared.setting_groups.node import NodeSettings
from tensorfusion_dra.app.shared.setting_groups.process import ProcessSettings


# The last base's settings are the first in --help and in docs/settings.md.
@dataclass(frozen=True, kw_only=True)
class Settings(MetricsSettings, ProcessSettings, LimitSettings, CardSettings, NodeSettings):
    """All settings of the node plugin.

    A setting's flag is its name with dashes. Its environment variable is in docs/settings.md.
    """

    def __post_init__(self) -> None:
        self._check_node()
        self._check_cards()
        self._check_limits(self.oversubscription)
        self._check_process()
        self._check_metrics()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag for each setting, and --config."""
    setting_sources.add_flags(parser, Settings)


def from_flags(flags: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Return the settings from flags, environment and file.

    The node name defaults to the host name in lower case.

    Raises:
        InputError: A setting is unknown, unreadable or out of its range.
    """
    values = setting_sources.values(Settings, flags, environment)
    values["node_name"] = values.get("node_name") or socket.gethostname().lower()
    return Settings(**values)
