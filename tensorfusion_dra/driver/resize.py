"""Follow changes of limits that claims of this node ask for while their containers run.

Claims whose limits were changed have a label with the name of their node, which the webhook and
`kubectl tensorfusion resize` set. The API server sends a watch by that label only these claims, so
a node learns of a change within a moment, and nothing of other nodes. Of a claim the watch brings
its name, and whether its limits changed: the claim is then read, its record gets the wanted limits
(core/claims/resize.py), and the card is divided again. What comes of it is in the claim's status,
and in an Event on its pods.

Anybody may label claims with the name of a node, or change annotations all the time. So claims
without a device of this node are ignored, and of those that are not prepared at most MAX_NOTED stay
noted. Changes are followed every SPACING_SECONDS: the first one at once, and of those in between
the last one.

A claim that is not prepared yet is noted too: its prepare may have read it just before the change.
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
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.kubernetes.projection import Projection, projected
from tensorfusion_dra.driver.claim_upkeep import Upkeep
from tensorfusion_dra.driver.enforcement_watch import MAX_PODS
from tensorfusion_dra.driver.publish import DeviceCatalog
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.runtime.loops import Backoff, LogThrottle, Wakeup
from tensorfusion_dra.state.claim_store import ClaimStore

log = structlog.get_logger()

MAX_NOTED: Final = 1000
SPACING_SECONDS: Final = 5.0
_MAX_WAIT_SECONDS: Final = 30.0
_READ_SECONDS: Final = 5.0
_APPLY_SECONDS: Final = 5.0
_WATCHED: Final[Projection] = {
    "metadata!": {
        **dict.fromkeys(("namespace!", "name!", "uid!"), str),
        "annotations": dict.fromkeys(resize.ANNOTATIONS.values(), str),
    },
    "status": {
        "allocation": {"devices": {"results": [dict.fromkeys(("driver", "pool", "shareID"), str)]}}
    },
}


class ResizeFollower:
    """Loop that follows the changes; its other methods are safe for all threads.

    Attributes:
        label: Value of the label of the node's claims.
    """

    def __init__(
        self,
        claims: ClaimSource,
        store: ClaimStore,
        upkeep: Upkeep,
        status: StatusReporter,
        *,
        label: str,
        catalog: DeviceCatalog,
        rules: LendingRules,
        events: Events,
    ) -> None:
        """Args:
        claims: Read after each change.
        store, upkeep: Their records, and what follows from these.
        status: Reports the result of a change.
        label: As resize.node_label() returns it.
        catalog: The cards, to turn TFLOPS into percent.
        rules: Facts of the enforcers.
        events: Writer for this loop's thread only.
        """
        self._claims = claims
        self._store = store
        self._upkeep = upkeep
        self._status = status
        self.label: Final = label
        self._catalog = catalog
        self._rules = rules
        self._events = events
        self._wakeup = Wakeup()
        self._throttle = LogThrottle()
        self._guard = Lock()
        self._due: dict[str, ClaimRef] = {}  # by UID; guarded by _guard
        self._seen: dict[str, int] = {}  # by UID, what keep() hashed; guarded by _guard

    def keep(self, claim: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the watch keeps of a claim; nothing of one without a device of this node."""
        found = projected(claim, _WATCHED)
        if self.label not in resize.label(found).values():
            return {}
        # A hash is small, whatever is annotated.
        return {**found["metadata"], "annotations": hash(str(found))}

    def on_list(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Read the listed claims that changed while the watch was interrupted."""
        for item in items:
            self.on_event("ADDED", item)

    def on_event(self, _event: str, item: Mapping[str, Any]) -> None:
        """Read a claim if its annotations for limits or its allocation changed."""
        ref = ClaimRef(namespace=item["namespace"], name=item["name"], uid=item["uid"])
        with self._guard:
            if self._seen.get(ref.uid) == item["annotations"]:
                return
            self._seen[ref.uid], self._due[ref.uid] = item["annotations"], ref
            if len(self._seen) > MAX_NOTED:
                del self._seen[next(iter(self._seen))]
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
            self._wakeup.pause(SPACING_SECONDS)
            self._wakeup.wait(seconds)

    def check(self) -> None:
        """Follow the changes that were noted.

        Raises:
            RetryableError: The records or a claim cannot be read now; it stays noted.
        """
        records = {claim.ref.uid: claim for claim in self._store.claims()}
        with self._guard:
            due = [ref for uid, ref in self._due.items() if uid in records]
            # None of a prepared claim is dropped: it would keep a limit that it gave up.
            others = [uid for uid in self._due if uid not in records]
            for uid in others[: max(0, len(others) - MAX_NOTED)]:
                del self._due[uid]
        failed: RetryableError | None = None
        for ref in due:
            try:
                self._follow(ref)
            except RetryableError as error:
                failed = error
                continue
            except ClaimError as error:  # it is gone
                log.info("limits_not_changed", claim=str(ref), error=str(error))
            with self._guard:
                if self._due.get(ref.uid) is ref:
                    del self._due[ref.uid]
        if failed is not None:
            raise failed

    def _follow(self, ref: ClaimRef) -> None:
        catalog = self._catalog.current()
        if catalog is None:
            raise RetryableError(self._catalog.reason_missing)
        stored = self._claims.fetch(ref, wait_seconds=_READ_SECONDS)
        claim = claim_rules.allocated(ref, stored)
        with self._store.transaction() as records:
            before = records.get(ref.uid)
            if before is None:
                return
            record, found = resize.of_claim(before, claim, self._rules, catalog.by_name())
            if is_changed := record != before:
                record = records.put(record)
        if changed := records.changed():
            log.info("limits_changed", claim=str(ref), claims=len(changed))
            self._upkeep.update(changed, time.monotonic() + _APPLY_SECONDS)
        is_new = self._status.report_resize(record, found)
        # A start reads all such claims again, which is no news.
        if is_new and (is_changed or found.refused):
            shares = [share for share in record.shares if not share.admin_access]
            text = "; ".join(dict.fromkeys(found.outcome(share)[1] for share in shares))
            for pod in claim.pods[:MAX_PODS]:
                self._events.note(names.EVENT_LIMIT_CHANGED, text, pod=pod)
