"""Replacement of the NVIDIA driver while this process runs.

A label of the Node begins and ends it (core/devices/driver_upgrade.py):

1. The label is set. All devices get a NoExecute taint, so Kubernetes deletes their pods and the
   kubelet unprepares their claims. Nothing opens NVML any more, and no new claim is prepared.
2. The label is gone. The cards may be read again, but the new driver may not be loaded yet, so the
   taint stays. If the library was replaced, the first reading ends the process (FatalError), and a
   new one loads the new library.
3. A reading succeeds. The taint goes.

A file is there from 1 to 3. It keeps a restart from opening NVML before the Node is read, and the
container memory-limits from opening it at all.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Final

import structlog

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices import driver_upgrade
from tensorfusion_dra.core.devices.health import Sickness, Trouble, TroubleKind
from tensorfusion_dra.core.errors import RetryableError

log = structlog.get_logger()

_TROUBLE: Final = Trouble(
    kind=TroubleKind.REPLACED,
    reason="driver-replacement",
    text="the NVIDIA driver is being replaced",
)


class DriverReplacement:
    """State of a replacement; safe for all threads."""

    def __init__(
        self,
        sign: Path,
        claims: Callable[[], Sequence[PreparedClaim]],
        *,
        is_followed: bool,
    ) -> None:
        """Go on with a replacement that an earlier process began.

        Args:
            sign: The file that is there during a replacement.
            claims: Returns all prepared claims of the ledger.
            is_followed: False if follow() will not be called.
        """
        self._sign = sign
        self._claims = claims
        self._guard = Lock()  # for changes of all below
        self._label = ""
        self.on_change: Callable[[], None] = lambda: None
        """Called, from the thread of follow(), when the label was set or removed."""
        self.sickness: Sickness | None = None
        """Of every card; None if the driver is not being replaced."""
        with suppress(OSError):
            since = datetime.fromtimestamp(sign.stat().st_mtime, UTC)
            self.sickness = Sickness(worst=_TROUBLE, since=since)
            self._label = "found by an earlier process" if is_followed else ""

    def follow(self, labels: Mapping[str, str]) -> None:
        """Take in the Node's labels."""
        label = driver_upgrade.label(labels)
        if label == self._label:
            return
        log.warning("driver_replacement_label_changed", label=label or None)
        with self._guard:
            self._label = label
            if label and self.sickness is None:
                self.sickness = Sickness(worst=_TROUBLE, since=datetime.now(UTC))
                try:
                    self._sign.parent.mkdir(parents=True, exist_ok=True)
                    self._sign.touch()
                except OSError as error:
                    log.warning("driver_replacement_not_recorded", error=str(error))
        self.on_change()

    def check(self) -> None:
        """Return if NVML may be opened.

        Raises:
            RetryableError: It may not; the text names the claims that still keep the driver in use.
        """
        if not self._label:
            return
        claims = ", ".join(sorted(str(claim.ref) for claim in self._claims()))
        raise RetryableError(
            f"{_TROUBLE.text} ({self._label}); NVML stays closed; "
            + (
                f"prepared claims keep the driver in use: {claims}"
                if claims
                else "no claim uses it"
            )
        )

    def read(self) -> None:
        """Note that the cards were read, which ends a replacement whose label is gone."""
        with self._guard:
            if self.sickness is not None and not self._label:
                self.sickness = None
                log.info("driver_replaced")
                with suppress(OSError):
                    self._sign.unlink()
