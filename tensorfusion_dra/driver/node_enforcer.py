"""Watch over the node's enforcer: would limits be enforced, before any claim is prepared?

Check the signs once a minute, in the thread of the watch over the claims' limits. Log a missing
enforcer and write one Event on the Node; write another one only after the enforcer was back.
"""

import math
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcement import presence
from tensorfusion_dra.core.claims.enforcement.verdict import Standing, State
from tensorfusion_dra.driver.ports.cluster import Events
from tensorfusion_dra.driver.ports.enforcement import LiveSigns

log = structlog.get_logger()

LOOK_SECONDS: Final = 60.0


class NodeEnforcer:
    """The node's enforcer, as it was last seen; look() is for one thread."""

    def __init__(
        self,
        signs: LiveSigns,
        *,
        enforcer: str,
        is_required: bool,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look at nothing yet.

        Args:
            signs: Reads what the enforcer leaves.
            enforcer: Its name.
            is_required: True if claims wait for signs of life (require-enforcement).
            now: Returns the wall clock's time.
            clock: In seconds, for the time of the next look.
        """
        self._signs = signs
        self._enforcer = enforcer
        self._is_required = is_required
        self._now = now
        self._clock = clock
        self._look_at = -math.inf
        self._standing: Standing | None = None  # replaced as a whole, so that reading needs no lock
        self._pending = ""  # text of an Event that is not written yet

    def standing(self) -> Standing | None:
        """Return the current verdict; None before the first check."""
        return self._standing

    def look(self, events: Events) -> None:
        """Check the signs if it is time, and write the Event that is due.

        Args:
            events: Of the caller's thread alone.
        """
        if self._clock() >= self._look_at:
            self._look_at = self._clock() + LOOK_SECONDS
            self._note_signs()
        if self._pending and events.warn(names.EVENT_ENFORCER_MISSING, self._pending):
            self._pending = ""

    def _note_signs(self) -> None:
        found = presence.of_node_with_cure(
            self._enforcer, self._signs.of_node(), is_required=self._is_required
        )
        before = self._standing
        was_missing = before is not None and before.verdict.state is State.NOT_ENFORCED
        self._standing = (
            before.after(found, self._now())
            if before
            else Standing(verdict=found, since=self._now())
        )
        is_missing = found.state is State.NOT_ENFORCED
        if is_missing and not was_missing:
            log.warning(
                "enforcer_not_seen", enforcer=self._enforcer, reason=found.reason, error=found.text
            )
            self._pending = f"enforcer {self._enforcer}: {found.text}"
        elif was_missing and not is_missing:
            log.info("enforcer_seen", enforcer=self._enforcer, reason=found.reason)
            self._pending = ""
