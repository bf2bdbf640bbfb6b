"""Settings of the metrics: where they are served, and how many series they have."""

from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.app.shared.setting_sources import check_boolean, check_ranges, flag, setting

_RANGES: Final = {"metrics_port": (0, 65535), "metrics_most_shares": (0, 100_000)}


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """Settings of the node plugin's metrics."""

    metrics: str = setting("true", "Whether to serve /metrics over plain HTTP: true, false.")
    metrics_host: str = setting(
        "", "Address of metrics-port, if that is not 0; all addresses if empty."
    )
    metrics_port: int = setting(0, "Port for /metrics; 0 for the health port.")
    metrics_shares: str = setting(
        "true", "Whether each share has metrics of its own, with its pod's name: true, false."
    )
    metrics_most_shares: int = setting(
        1000, "Shares that have metrics of their own; those beyond are only counted."
    )

    def _check_metrics(self) -> None:
        check_ranges(self, _RANGES)
        for name in ("metrics", "metrics_shares"):
            check_boolean(flag(name), getattr(self, name))

    @property
    def shown_shares(self) -> int:
        """Return the number of shares that have metrics of their own."""
        return self.metrics_most_shares if self.metrics_shares == "true" else 0
