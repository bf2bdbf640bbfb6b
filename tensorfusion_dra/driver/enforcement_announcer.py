"""Announcements of limits that do not hold, or hold again: log lines, and Events on pods.

A warning stands until the limits are seen to hold. So a hypervisor that restarts causes one pair of
Events for each pod, whatever states lie between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.enforcement.verdict import State
from tensorfusion_dra.driver.ports.cluster import Events
from tensorfusion_dra.driver.watched_limits import WatchedLimits

log = structlog.get_logger()

_MOST_EVENTS: Final = 5
"""Claims whose Events are written in one go."""
_MOST_PODS: Final = 4
"""Pods of one claim that get an Event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    is_warning: bool
    text: str
    pods: Sequence[PodRef]


class EnforcementAnnouncer:
    """Writer of the announcements, for one thread."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._pending: dict[str, _Event] = {}  # by claim UID

    def announce(self, watched: WatchedLimits) -> None:
        """Log it and queue an Event if the limits hold no longer, or hold again."""
        found = watched.worst()
        if found is None or found.state is State.UNKNOWN:
            return
        is_warning = found.state is State.NOT_ENFORCED
        if is_warning == watched.is_warned:
            return
        watched.is_warned = is_warning
        ref = watched.claim.ref
        if is_warning:
            log.warning(
                "limits_not_enforced",
                claim=str(ref),
                claim_uid=ref.uid,
                reason=found.reason,
                error=found.text,
            )
        else:
            log.info("limits_enforced", claim=str(ref), claim_uid=ref.uid, reason=found.reason)
        self._pending[ref.uid] = _Event(
            is_warning=is_warning,
            text=f"claim {ref.name}: {found.text}",
            pods=watched.claim.pods[:_MOST_PODS],
        )

    def write_events(self) -> None:
        """Write a few pending Events, up to the first failure."""
        for uid, event in list(self._pending.items())[:_MOST_EVENTS]:
            if not all(self._is_written(event, pod) for pod in event.pods or (None,)):
                return
            del self._pending[uid]

    def _is_written(self, event: _Event, pod: PodRef | None) -> bool:
        if event.is_warning:
            return self._events.warn(names.EVENT_LIMITS_NOT_ENFORCED, event.text, pod=pod)
        return self._events.note(names.EVENT_LIMITS_ENFORCED, event.text, pod=pod)
