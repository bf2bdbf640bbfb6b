"""The node's cards and their health, kept in memory and on disk.

Three inputs change what is known, by the rules of core/devices/health.py:

- record_reading(): a reading of all cards succeeded.
- record_failure(): a reading failed as a whole.
- on_event(): the NVIDIA driver reported an event.

visible() returns the cards to publish. It returns None as long as too little is known: before the
first successful reading, unless so many readings failed that the remembered cards count as
unhealthy.

Each change is saved, and a new process starts from the saved record. So a restart neither heals an
unhealthy card nor forgets a card that is missing. A record that cannot be saved is saved after a
later reading.

Example, with the default rules: card B is unhealthy with XID 79, and the node plugin is restarted.
The new process knows from the record that B is unhealthy, so the slices stay as they are. If NVML
hangs in the new process, the first failed reading shows nothing, and the stored slices stay. After
the second, all remembered cards are published as unhealthy, with the reason `nvml-hung`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import structlog

from tensorfusion_dra.core import observed
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices import health
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import (
    CardEvent,
    CardsToPublish,
    HealthProblem,
    HealthRules,
    KnownCards,
    Moment,
    ProblemKind,
    Unhealthy,
)
from tensorfusion_dra.core.errors import HungError, RetryableError
from tensorfusion_dra.driver.driver_replacement import DriverReplacement
from tensorfusion_dra.runtime.loops import LogThrottle
from tensorfusion_dra.state.saved_state import SavedState

log = structlog.get_logger()

_QUIET_SECONDS: Final = 60.0
"""Time in which the same event is not logged again."""


def now() -> Moment:
    """Return the present time on both clocks."""
    return Moment(time.monotonic(), datetime.now(UTC))


class CardHealthTracker:
    """The known cards; for one thread at a time, but for `xids`."""

    def __init__(
        self,
        rules: HealthRules | None = None,
        *,
        records: SavedState | None = None,
        boot_id: str = "",
        claims: Callable[[], Sequence[PreparedClaim]] = tuple,
        clock: Callable[[], Moment] = now,
        saves: bool = True,
        replacement: DriverReplacement | None = None,
    ) -> None:
        """Load the record of earlier processes.

        Args:
            rules: Thresholds for changes of health; None for the defaults.
            records: The record on disk; None keeps everything in memory only.
            boot_id: Identifies this boot of the machine.
            claims: Returns all prepared claims of the store.
            clock: Returns the present time.
            saves: False to read the record without writing it.
            replacement: Of the NVIDIA driver; None if it is not followed.

        Raises:
            FatalError: The store is damaged.
        """
        self._rules = rules or HealthRules()
        self._records = records if saves else None
        self._boot_id = boot_id
        self._claims = claims
        self._clock = clock
        self._replacement = replacement
        self._inventory: Inventory | None = None
        self._failures = 0
        self._throttle = LogThrottle(quiet_seconds=_QUIET_SECONDS, clock=lambda: clock().seconds)
        self.xids: observed.XidCounts = {}  # replaced as a whole; any thread may read it
        self._claimed: frozenset[str] = frozenset()
        self._known = KnownCards()
        self._saved_record = records.load() if records else None
        if self._saved_record is not None:
            try:
                self._known = health.from_json(
                    self._saved_record,
                    boot_id=boot_id,
                    claimed=self._claimed_devices(),
                    now=clock(),
                )
            except ValueError as error:
                log.warning("card_record_unusable", error=str(error))

    def record_reading(
        self, inventory: Inventory, reported: Mapping[str, Sequence[HealthProblem]]
    ) -> None:
        """Record a successful reading, and the reports of health sources by GPU UUID."""
        self._failures = 0
        if self._replacement is not None and self._replacement.unhealthy is not None:
            self._replacement.end()
        self._inventory = inventory
        is_missing = not self._known.cards.keys() <= {gpu.uuid for gpu in inventory.gpus}
        self._remember(
            health.after_reading(
                self._known,
                inventory,
                self._clock(),
                self._rules,
                reported=reported,
                claimed=self._claimed_devices() if is_missing else (),
            )
        )

    def record_failure(self, error: RetryableError) -> None:
        """Record a reading that failed as a whole.

        While the NVIDIA driver is being replaced, a failure says nothing about a card.
        """
        if self._replaced():
            return
        self._failures += 1
        if isinstance(error, HungError):
            reason, text = "nvml-hung", f"the NVIDIA driver does not answer: {error.call}"
        else:
            reason, text = "unreadable", f"the GPU cannot be read: {error}"
        problem = HealthProblem(kind=ProblemKind.UNREADABLE, reason=reason, text=text)
        self._remember(health.after_failure(self._known, problem, self._clock(), self._rules))

    def on_event(self, event: CardEvent) -> bool:
        """Record an event of the NVIDIA driver; return True if it makes a card unhealthy."""
        problem = health.problem_of(event, self._rules)
        uuid = event.gpu_uuid
        concerned = [each for each, gpu in self._known.cards.items() if event.concerns(gpu)]
        if concerned:
            self.xids = observed.count_xid(self.xids, event, self._rules, self._clock().at)
        counts = problem is not None and bool(concerned)
        # Not each of a storm of equal events, which a broken program can cause.
        kind, of_card = event.kind.value, f"{uuid} {event.code}"
        if self._throttle.is_new(of_card, key=f"{kind} {of_card}"):
            log.info("card_event", device=uuid, kind=kind, code=event.code, counts=counts)
        if problem is None or not concerned:
            return False
        known = self._known
        for each in concerned:
            known = health.after_report(known, each, problem, self._clock())
        self._remember(known)
        return True

    def visible(self) -> CardsToPublish | None:
        """Return the cards to publish; None as long as too little is known."""
        inventory = self._inventory
        if inventory is None:
            # No reading of this process has succeeded. Once as many have failed as make a card
            # unhealthy, the cards that an earlier process read are published, as unhealthy.
            is_unhealthy = self._replaced() or self._failures >= self._rules.failed_readings
            if not (is_unhealthy and self._known.cards):
                return None
            inventory = Inventory(gpus=tuple(self._known.cards.values()))
        was_away = any(state.was_away for state in self._known.health.values())
        claimed = self._claimed_devices() if was_away else frozenset[str]()
        return health.published(self._known, inventory, claimed, self._replaced())

    def _replaced(self) -> Unhealthy | None:
        return self._replacement.unhealthy if self._replacement is not None else None

    def _remember(self, known: KnownCards) -> None:
        self._known = known
        if self._records is None:
            return
        record = health.as_json(known, boot_id=self._boot_id)
        if record == self._saved_record:
            return
        try:
            self._records.save(record)
            self._saved_record = record
        except RetryableError as error:
            # Saved after the next reading. A restart before that knows an older state.
            log.warning("card_record_write_failed", error=str(error))

    def _claimed_devices(self) -> frozenset[str]:
        """Return the names of devices with claims; the last known ones if the store is locked.

        It is better to publish a missing card for too long.
        """
        try:
            claims = self._claims()
        except RetryableError as error:
            log.warning("claimed_devices_unknown", error=str(error))
        else:
            self._claimed = frozenset(share.device for claim in claims for share in claim.shares)
        return self._claimed
