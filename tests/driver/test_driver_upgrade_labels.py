"""Which labels of a Node say that its NVIDIA driver is being replaced, and until when it is."""

from pathlib import Path

import pytest

from tensorfusion_dra.driver import driver_replacement
from tensorfusion_dra.driver.driver_replacement import DriverReplacement

STATE = "nvidia.com/gpu-driver-upgrade-state"
BY_HAND = "tensor-fusion.ai/replace-driver"


@pytest.mark.parametrize(
    ("labels", "is_replaced"),
    [
        ({}, False),
        *(
            ({STATE: state}, is_replaced)
            for state, is_replaced in {
                "upgrade-required": False,
                "cordon-required": False,
                "wait-for-jobs-required": False,
                "pod-deletion-required": True,
                "drain-required": True,
                "pod-restart-required": True,
                "upgrade-failed": True,
                "validation-required": False,
                "uncordon-required": False,
                "upgrade-done": False,
            }.items()
        ),
        ({"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"}, False),
        ({BY_HAND: ""}, True),
        ({BY_HAND: "true"}, True),
        ({BY_HAND: "false"}, False),
        ({BY_HAND: "true", STATE: "upgrade-done"}, True),
    ],
)
def test_driver_is_replaced_from_the_deletion_of_pods_until_it_is_loaded(
    labels: dict[str, str], is_replaced: bool
) -> None:
    found = driver_replacement.replacing_label(labels)

    assert bool(found) is is_replaced
    assert not found or found in {f"{key}={value}" for key, value in labels.items()}


def test_replacement_outlives_the_process_and_ends_with_a_reading_without_the_label(
    tmp_path: Path,
) -> None:
    marker = tmp_path / "run" / "driver-replacement"

    def started() -> DriverReplacement:
        return DriverReplacement(marker, list, is_followed=True)

    started().follow({BY_HAND: "true"})
    again = started()
    again.end()
    during = again.unhealthy
    again.follow({})
    again.end()

    assert during is not None
    assert (again.unhealthy, started().unhealthy) == (None, None)
