"""Labels of a Node which say that its NVIDIA driver is being replaced.

The upgrade controller of NVIDIA's GPU Operator leads each node through these values of one label:

    upgrade-required            waits for its turn
    cordon-required             gets no new pods
    wait-for-jobs-required      the jobs that the policy names may end
    pod-deletion-required       pods with GPUs are deleted; it knows only NVIDIA's own
    drain-required              if the policy says so, the node is drained
    pod-restart-required        the driver's pod is deleted; its new one unloads the driver
    validation-required         the new driver is loaded
    uncordon-required, upgrade-done

`upgrade-failed` can follow most of them, and lasts until the driver's new pod is ready.

The labels nvidia.com/gpu.deploy.*, which NVIDIA's driver-manager sets to paused-for-driver-upgrade,
do not count. It also sets them if the driver's pod merely restarts, and then unloads nothing. And
if an unload fails, it takes them back within a second, before any pod could have ended.

Source: NVIDIA/k8s-operator-libs, pkg/upgrade; NVIDIA/k8s-driver-manager, cmd/driver-manager.
"""

from collections.abc import Mapping
from typing import Final

from tensorfusion_dra.core import names

_DRIVER_UNUSED: Final = frozenset(
    {
        "pod-deletion-required",
        "drain-required",
        "post-maintenance-required",
        "pod-restart-required",
        "upgrade-failed",
    }
)
"""The values during which nothing may use the driver."""


def label(labels: Mapping[str, str]) -> str:
    """Return the label, as key=value, by which the driver is being replaced; "" if it is not."""
    state = labels.get(names.LABEL_UPGRADE_STATE, "")
    if state in _DRIVER_UNUSED:
        return f"{names.LABEL_UPGRADE_STATE}={state}"
    by_hand = labels.get(names.LABEL_REPLACE_DRIVER, "false")
    return "" if by_hand == "false" else f"{names.LABEL_REPLACE_DRIVER}={by_hand}"
