"""Replacement of the NVIDIA driver while this process runs.

A label of the Node begins and ends it:

1. The label is set. All devices get a NoExecute taint, so Kubernetes deletes their pods and the
   kubelet unprepares their claims. Nothing opens NVML any more, and no new claim is prepared.
2. The label is gone. The cards may be read again, but the new driver may not be loaded yet, so the
   taint stays. If the library was replaced, the first reading ends the process (FatalError), and a
   new one loads the new library.
3. A reading succeeds. The taint goes.

A marker file is there from 1 to 3. It keeps a restart from opening NVML before the Node is read,
and the container memory-limits from opening it at all.

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

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.health import HealthProblem, ProblemKind, Unhealthy
from tensorfusion_dra.core.errors import RetryableError

log = structlog.get_logger()

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
_PROBLEM: Final = HealthProblem(
    kind=ProblemKind.REPLACED,
    reason="driver-replacement",
    text="the NVIDIA driver is being replaced",
)


def replacing_label(labels: Mapping[str, str]) -> str:
    """Return the label, as key=value, by which the driver is being replaced; "" if it is not."""
    state = labels.get(names.LABEL_UPGRADE_STATE, "")
    if state in _DRIVER_UNUSED:
        return f"{names.LABEL_UPGRADE_STATE}={state}"
    by_hand = labels.get(names.LABEL_REPLACE_DRIVER, "false")
    return "" if by_hand == "false" else f"{names.LABEL_REPLACE_DRIVER}={by_hand}"


class DriverReplacement:
    """State of a replacement; safe for all threads.

    Attributes:
        unhealthy: State of every card; None if the driver is not being replaced.
    """

    def __init__(
        self,
        marker: Path,
        claims: Callable[[], Sequence[PreparedClaim]],
        *,
        is_followed: bool,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Continue a replacement that an earlier process began.

        Args:
            marker: The file that is there during a replacement.
            claims: Returns all prepared claims of the store.
            is_followed: False if follow() will not be called.
            on_change: Called, from the thread of follow(), when the label was set or removed.
        """
        self._marker = marker
        self._claims = claims
        self._on_change = on_change
        self._guard = Lock()  # for changes of all below
        self._label = ""
        self.unhealthy: Unhealthy | None = None
        with suppress(OSError):
            since = datetime.fromtimestamp(marker.stat().st_mtime, UTC)
            self.unhealthy = Unhealthy(worst=_PROBLEM, since=since)
            self._label = "found by an earlier process" if is_followed else ""

    def follow(self, labels: Mapping[str, str]) -> None:
        """Begin or end a replacement by the Node's labels."""
        label = replacing_label(labels)
        if label == self._label:
            return
        log.warning("driver_replacement_label_changed", label=label or None)
        with self._guard:
            self._label = label
            if label and self.unhealthy is None:
                self.unhealthy = Unhealthy(worst=_PROBLEM, since=datetime.now(UTC))
                try:
                    self._marker.parent.mkdir(parents=True, exist_ok=True)
                    self._marker.touch()
                except OSError as error:
                    log.warning("driver_replacement_not_recorded", error=str(error))
        self._on_change()

    def check(self) -> None:
        """Return if NVML may be opened.

        Raises:
            RetryableError: It may not; the text names the claims that still keep the driver in use.
        """
        if not self._label:
            return
        claims = ", ".join(sorted(str(claim.ref) for claim in self._claims()))
        raise RetryableError(
            f"{_PROBLEM.text} ({self._label}); NVML stays closed; "
            + (
                f"prepared claims keep the driver in use: {claims}"
                if claims
                else "no claim uses it"
            )
        )

    def end(self) -> None:
        """End the replacement if its label is gone, since the cards were read."""
        with self._guard:
            if self.unhealthy is not None and not self._label:
                self.unhealthy = None
                log.info("driver_replaced")
                with suppress(OSError):
                    self._marker.unlink()
