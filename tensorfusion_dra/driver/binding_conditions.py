"""Binding conditions (KEP-5007): tell the scheduler about claims that wait for the node's enforcer.

While the enforcer is awaited, the devices carry a condition (enforcers/choice.py). The scheduler
copies it into each claim that it allocates meanwhile, and binds the pod once it is True in the
claim's status. Only a list of all claims of the cluster shows which ones wait here. Nothing is
listed while pods have to wait anyway. Six lists follow, one at each check of the limits, once

- the enforcer is there: the condition of these claims becomes True, and their pods are bound;
- it is given up: the failure condition becomes True. The scheduler deallocates these claims and
  tries again, and the devices' taint keeps the pods away from this node.

More than one, because the scheduler sees the changed devices a while later. A list that fails does
not count. A new process begins with six, because claims may wait since before.

Example: the MPS daemon is killed and starts again 40 s later. A pod that was created meanwhile is
bound within 15 s: ten until the next check, five until the scheduler looks again.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import structlog

from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.device_status import Entry
from tensorfusion_dra.core.claims.ports import ClaimStatus
from tensorfusion_dra.core.errors import RetryableError, is_of_one_object
from tensorfusion_dra.core.kubernetes.projection import Projection, projected
from tensorfusion_dra.enforcers.choice import EnforcerChooser
from tensorfusion_dra.runtime.loops import LogThrottle

LISTS: Final = 6
"""Lists after a change; together they last for a minute, longer than slices take to be written."""

log = structlog.get_logger()

_CLAIM: Final[Projection] = {"metadata!": {"namespace!": str, "name!": str, "uid!": str}}


class BindingConditions:
    """Writer of the binding conditions of this node's claims, for one thread."""

    def __init__(
        self,
        enforcer: EnforcerChooser,
        claims: Callable[[Projection], Sequence[Mapping[str, Any]]],
        status: ClaimStatus,
        *,
        node_name: str,
        now: Callable[[], datetime],
    ) -> None:
        """Args:
        enforcer: Knows what the devices show.
        claims: Returns what a function keeps of each claim of the cluster; raises RetryableError.
        status: Writes entries as names.BINDING_MANAGER.
        node_name: This node.
        now: Returns the wall clock's time, for lastTransitionTime.
        """
        self._enforcer = enforcer
        self._claims = claims
        self._status = status
        self._node_name = node_name
        self._now = now
        self._lists_left = 0
        self._throttle = LogThrottle()

    def settle(self) -> None:
        """List the claims if some may wait, and set the conditions of those that do."""
        if self._enforcer.was_awaited:
            self._enforcer.was_awaited = False
            self._lists_left = LISTS
        shown = self._enforcer.shown
        if shown is None or shown.is_awaited or not self._lists_left:
            return

        def waiting(claim: Mapping[str, Any]) -> Mapping[str, Any]:
            """Return a claim that waits, with the entries that settle it."""
            entries = device_status.binding(claim, self._node_name, shown, self._now())
            return {**projected(claim, _CLAIM), "entries": entries} if entries else {}

        with self._throttle.warning("binding_conditions_retried"):
            for claim in self._claims(waiting):
                try:
                    self._write(claim["metadata"], claim["entries"])
                except RetryableError as error:
                    if not is_of_one_object(error):
                        raise
                    log.warning("binding_condition_refused", error=str(error))
            self._lists_left -= 1

    def _write(self, metadata: Mapping[str, Any], entries: Sequence[Entry]) -> None:
        ref = ClaimRef(**{name: str(metadata[name]) for name in ("namespace", "name", "uid")})
        if self._status.write(ref, entries):
            reason = entries[0]["conditions"][0]["reason"]
            log.info("binding_condition_set", claim=str(ref), claim_uid=ref.uid, reason=reason)
