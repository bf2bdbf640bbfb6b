"""Settings of the process: its intervals, its probes, its log."""

from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.app.shared.setting_forms import check_names
from tensorfusion_dra.app.shared.setting_sources import (
    LOG_FORMATS,
    LOG_LEVELS,
    check_choice,
    check_ranges,
    setting,
)

OFF: Final = "off"
LOOPBACK: Final = "loopback"
ON: Final = "on"
STATUS_PAGES: Final = (OFF, LOOPBACK, ON)
STATUS_PAGES_IN_YAML: Final = {"false": OFF, "true": ON}
"""YAML reads the bare words off and on as booleans."""

_RANGES: Final = {
    "recover_seconds": (1, 86_400),
    "gone_seconds": (1, 1_000_000),
    "check_seconds": (1, 1_000_000),
    "drain_seconds": (0, 600),
    "health_port": (0, 65535),
}


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """Settings of the process."""

    recover_seconds: float = setting(
        60.0, "Interval at which CDI specs and limits are compared with the records, in seconds."
    )
    gone_seconds: float = setting(
        600.0,
        "How long a claim must be gone from the API server, while the Node is Ready, before its "
        "share is freed without a call of the kubelet, in seconds.",
    )
    check_seconds: float = setting(
        21600.0, "Longest time between two looks at whether a claim still exists, in seconds."
    )
    drain_seconds: float = setting(
        45.0, "How long calls in flight may take after SIGTERM or SIGINT, in seconds."
    )
    health_host: str = setting(
        "", "Address of health-port, which speaks plain HTTP; all addresses if empty."
    )
    health_port: int = setting(
        0, "Port for /healthz, /readyz, the metrics and the status page; 0 for none."
    )
    disable_provider: str = setting(
        "", "Providers of other packages that are not used, as rack,fans (docs/extend.md)."
    )
    status_page: str = setting(
        LOOPBACK,
        "Who gets the status page at / and /status.json on the health port: off (nobody); loopback "
        "(clients on the pod's own loopback, as behind kubectl port-forward); on (everybody who "
        "reaches the port).",
    )
    log_level: str = setting("info", f"Lowest level that is logged: {', '.join(LOG_LEVELS)}.")
    log_format: str = setting("json", f"Format of log lines: {', '.join(LOG_FORMATS)}.")

    @property
    def status_page_mode(self) -> str:
        """Return one of STATUS_PAGES."""
        return STATUS_PAGES_IN_YAML.get(self.status_page, self.status_page)

    def _check_process(self) -> None:
        check_ranges(self, _RANGES)
        check_names("disable-provider", self.disable_provider)
        check_choice("status-page", self.status_page_mode, STATUS_PAGES)
        check_choice("log-level", self.log_level, LOG_LEVELS)
        check_choice("log-format", self.log_format, LOG_FORMATS)
