"""Follow changes of limits that claims of this node ask for while their containers run.

Claims whose limits were changed have a label with the name of their node, which the webhook and
`kubectl tensorfusion resize` set. The API server sends a watch by that label only these claims, so
a node learns of a change within a moment, and nothing of other nodes. The watch brings names alone:
the claim is then read, its record gets the wanted limits (core/claims/resize.py), and the card is
divided again. What comes of it is in the claim's status and in an Event on its pods.

A claim that is not prepared yet is noted: its prepare may have read it just before the change. A
node notes MAX_UNKNOWN of them, since anybody may label claims with its name.
"""

import time
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import claim as claim_rules
from tensorfusion_dra.core.claims import resize
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.lending import LendingRules
from tensorfusion_dra.core.claims.ports import ClaimSource, Events
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.resize import Resize
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver.claim_upkeep import Upkeep
from tensorfusion_dra.driver.publish import DeviceCatalog
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.runtime.loops import Backoff, LogThrottle, Wakeup
from tensorfusion_dra.state.claim_store import ClaimStore

log = structlog.get_logger()

MAX_UNKNOWN: Final = 1000
_MAX_WAIT_SECONDS: Final = 30.0
_READ_SECONDS: Final = 5.0
_APPLY_SECONDS: Final = 5.0


class ResizeFollower:
    """Loop that follows the changes; its other methods are safe for all threads."""

    def __init__(
        self,
        claims: ClaimSource,
        store: ClaimStore,
        upkeep: Upkeep,
        status: StatusReporter,
        *,
        catalog: DeviceCatalog,
        rules: LendingRules,
        events: Events,
    ) -> None:
        """Args:
        claims: Read after each change.
        store, upkeep: Their records, and what follows from these.
        status: Shows what came of a change.
        catalog: The cards, to turn TFLOPS into percent.
        rules: Facts of the enforcers.
        events: Of this loop's thread alone.
        """
        self._claims = claims
        self._store = store
        self._upkeep = upkeep
        self._status = status
        self._catalog = catalog
        self._rules = rules
        self._events = events
        self._wakeup = Wakeup()
        self._throttle = LogThrottle()
        self._guard = Lock()
        self._due: dict[str, ClaimRef] = {}  # by UID; guarded by _guard

    def on_list(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Have all claims with the label read: any of them may have changed."""
        for item in items:
            self.on_event("ADDED", item)

    def on_event(self, event: str, item: Mapping[str, Any]) -> None:
        """Have a claim read that changed."""
        about = item["metadata"]
        ref = ClaimRef(namespace=about["namespace"], name=about["name"], uid=about["uid"])
        with self._guard:
            if event != "DELETED" and (ref.uid in self._due or len(self._due) < MAX_UNKNOWN):
                self._due[ref.uid] = ref
        self._wakeup.wake()

    def stop(self) -> None:
        """End run()."""
        self._wakeup.stop()

    def run(self) -> None:
        """Follow every change until stopped.

        Raises:
            FatalError: A newer release has written a record.
        """
        backoff = Backoff(first_seconds=0.5, longest_seconds=_MAX_WAIT_SECONDS)
        while self._wakeup.next_round():
            seconds = _MAX_WAIT_SECONDS
            try:
                self.check()
                backoff.succeeded()
                self._throttle.over()
            except RetryableError as error:
                self._throttle.warn("resize_retried", error)
                seconds = backoff.failed()
            self._wakeup.wait(seconds)

    def check(self) -> None:
        """Follow the changes that were noted.

        Raises:
            RetryableError: The records or a claim cannot be read now; it stays noted.
        """
        records = {claim.ref.uid: claim for claim in self._store.claims()}
        with self._guard:
            due = [ref for uid, ref in self._due.items() if uid in records]
        for ref in due:
            try:
                self._follow(ref, records[ref.uid])
            except ClaimError as error:
                self._show(records[ref.uid], Resize(asked={}, refused=(str(error),)))
            with self._guard:
                if self._due.get(ref.uid) is ref:
                    del self._due[ref.uid]

    def _follow(self, ref: ClaimRef, record: PreparedClaim) -> None:
        catalog = self._catalog.current()
        if catalog is None:
            raise RetryableError(self._catalog.reason_missing)
        stored = self._claims.fetch(ref, wait_seconds=_READ_SECONDS)
        claim = claim_rules.allocated(ref, stored)
        facts = self._rules.facts_of(record.enforcer)
        with self._store.transaction() as records:
            current = records.get(ref.uid)
            if current is None:
                return
            wanted, found = resize.of_claim(current, claim, facts, catalog.by_name())
            if wanted != current:
                record = records.put(wanted)
        if changed := records.changed():
            log.info("limits_changed", claim=str(ref), claims=len(changed))
            self._upkeep.update(changed, time.monotonic() + _APPLY_SECONDS)
        self._show(record, found)

    def _show(self, record: PreparedClaim, found: Resize) -> None:
        """Have the claim's status show the outcome; write it as an Event if it is another one."""
        if not (found.asked or found.refused) or not self._status.report_resize(record, found):
            return
        text = "; ".join(dict.fromkeys(found.outcome(share)[1] for share in record.shares))
        for pod in record.pods[:1] or (None,):
            self._events.note(names.EVENT_LIMIT_CHANGED, text, pod=pod)
