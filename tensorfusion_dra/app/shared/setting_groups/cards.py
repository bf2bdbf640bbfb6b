"""Settings of the cards: how they are read, and what makes one unhealthy."""

from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.app.shared.setting_forms import check_path, check_xids
from tensorfusion_dra.app.shared.setting_sources import (
    check_boolean,
    check_choice,
    check_ranges,
    setting,
)

TAINTS: Final = ("NoSchedule", "NoExecute", "none")

_RANGES: Final = {
    "poll_seconds": (0.1, 86_400),
    "nvml_wait_seconds": (0.1, 600),
    "health_failed_readings": (1, 1000),
    "health_good_readings": (1, 1000),
    "health_quiet_seconds": (0, 86_400),
    "health_xid_clear_seconds": (0, 31_536_000),
}


@dataclass(frozen=True, kw_only=True)
class CardSettings:
    """Settings of the cards."""

    nvml_library: str = setting(
        "", "Path of libnvidia-ml.so.1; searched by the loader, then in the driver root, if empty."
    )
    gpu_models: str = setting(
        "", "YAML or JSON file with TFLOPS by model; it overrides the package's own table."
    )
    simulated_gpus: str = setting(
        "",
        "GPUs to simulate instead of NVML's: a text such as 8xA100-SXM4-80GB, or a file.",
    )
    poll_seconds: float = setting(30.0, "How often the GPUs are read again, in seconds.")
    nvml_wait_seconds: float = setting(
        30.0, "How long one reading of the GPUs may take before it counts as hung, in seconds."
    )
    health_events: str = setting(
        "true",
        "Whether to wait for the NVIDIA driver's reports (XIDs): true, false. This keeps healthy "
        "GPUs open, so that the NVIDIA driver cannot be unloaded.",
    )
    health_failed_readings: int = setting(
        2, "Readings in a row without any answer after which the GPUs are unhealthy."
    )
    health_good_readings: int = setting(
        3, "Readings in a row without trouble before a GPU is healthy again."
    )
    health_quiet_seconds: float = setting(
        120.0, "Time without trouble before a GPU is healthy again, in seconds."
    )
    health_xid_clear_seconds: float = setting(
        0.0,
        "Time after which an XID counts as cleared where the NVIDIA driver does not say whether "
        "the GPU needs a reset, in seconds; 0 for never.",
    )
    health_ignored_xids: str = setting(
        "", "XIDs that leave a GPU healthy, beside NVIDIA's application errors, as 109,119."
    )
    health_critical_xids: str = setting(
        "", "XIDs that make a GPU unhealthy although they are application errors, as 13,31."
    )
    health_taint: str = setting(
        "NoSchedule", f"Effect of the taint of an unhealthy GPU: {', '.join(TAINTS)}."
    )

    def _check_cards(self) -> None:
        check_path("nvml-library", self.nvml_library, optional=True)
        check_boolean("health-events", self.health_events)
        check_choice("health-taint", self.health_taint, TAINTS)
        check_ranges(self, _RANGES)
        check_xids("health-ignored-xids", self.health_ignored_xids)
        check_xids("health-critical-xids", self.health_critical_xids)
