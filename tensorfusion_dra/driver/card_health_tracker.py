"""The node's cards and their health, kept in memory and on disk.

Three inputs change what is known, by the rules of core/devices/known_cards.py and health.py:

- note_reading(): a reading of all cards succeeded.
- note_failure(): a reading failed as a whole.
- note_event(): the NVIDIA driver reported an event.

visible() returns the cards to publish. It returns None as long as too little is known: before the
first successful reading, unless so many readings failed that the remembered cards count as sick.

Each change is saved, and a new process starts from the saved record. So a restart neither heals a
sick card nor forgets a card that is missing. A record that cannot be saved is saved after a later
reading.

Example, with the default rules: card B is sick with XID 79, and the node plugin is restarted. The
new process knows from the record that B is sick, so the slices stay as they are. If NVML hangs in
the new process, the first failed reading shows nothing, and the stored slices stay. After the
second, all remembered cards are published as sick, with the reason `nvml-hung`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import structlog

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices import health, known_cards
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent, HealthRules, Kind, Moment, Trouble
from tensorfusion_dra.core.devices.known_cards import KnownCards, PublishedCards
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.observed import node_view
from tensorfusion_dra.driver.ports.discovery import HungError
from tensorfusion_dra.runtime.log_throttle import LogThrottle
from tensorfusion_dra.state.saved_state import SavedState

if TYPE_CHECKING:
    from tensorfusion_dra.core.observed.node_view import XidCounts

log = structlog.get_logger()

_QUIET_SECONDS: Final = 60.0
"""Time in which the same event is not logged again."""


def now() -> Moment:
    """Return the present time on both clocks."""
    return Moment(time.monotonic(), datetime.now(UTC))


class CardHealthTracker:
    """Tracker of the node's cards and their health; for one thread at a time."""

    def __init__(
        self,
        rules: HealthRules | None = None,
        *,
        records: SavedState | None = None,
        boot_id: str = "",
        claims: Callable[[], Sequence[PreparedClaim]] = tuple,
        clock: Callable[[], Moment] = now,
        saves: bool = True,
    ) -> None:
        """Load the record of earlier processes.

        Args:
            rules: Thresholds for changes of health; None for the defaults.
            records: The record on disk; None keeps everything in memory only.
            boot_id: Identifies this boot of the machine.
            claims: Returns all prepared claims of the ledger.
            clock: Returns the present time.
            saves: False to read the record without writing it.

        Raises:
            FatalError: The ledger is damaged.
        """
        self._rules = rules or HealthRules()
        self._records = records
        self._boot_id = boot_id
        self._claims = claims
        self._clock = clock
        self._saves = saves
        self._inventory: Inventory | None = None
        self._failures = 0
        self._throttle = LogThrottle(quiet_seconds=_QUIET_SECONDS, clock=lambda: clock().seconds)
        self.xids: XidCounts = {}  # replaced as a whole; any thread may read it
        self._claimed: frozenset[str] = frozenset()
        self._saved_record: Mapping[str, Any] | None = records.load() if records else None
        self._known = self._loaded()

    def note_reading(self, inventory: Inventory, reported: Mapping[str, Sequence[Trouble]]) -> None:
        """Take in a successful reading, and what health sources reported by GPU UUID."""
        self._failures = 0
        self._inventory = inventory
        known = known_cards.after_reading(
            self._known, inventory, self._clock(), self._rules, reported=reported
        )
        self._remember(known)

    def note_failure(self, error: RetryableError) -> None:
        """Take in a reading that failed as a whole."""
        self._failures += 1
        if isinstance(error, HungError):
            reason, text = "nvml-hung", f"the NVIDIA driver does not answer: {error.call}"
        else:
            reason, text = "unreadable", f"the GPU cannot be read: {error}"
        trouble = Trouble(kind=Kind.UNREADABLE, reason=reason, text=text)
        self._remember(known_cards.after_failure(self._known, trouble, self._clock(), self._rules))

    def note_event(self, event: CardEvent) -> bool:
        """Take in an event of the NVIDIA driver; return True if it makes a card sick."""
        trouble = health.trouble_of(event, self._rules)
        uuid = event.gpu_uuid
        if uuid in self._known.cards:
            self.xids = node_view.count_xid(self.xids, event, self._rules, self._clock().at)
        counts = trouble is not None and uuid in self._known.cards
        self._log_event(event, counts=counts)
        if trouble is None or uuid is None or not counts:
            return False
        self._remember(known_cards.after_report(self._known, uuid, trouble, self._clock()))
        return True

    def visible(self) -> PublishedCards | None:
        """Return the cards to publish; None as long as too little is known."""
        inventory = self._inventory
        if inventory is None:
            # No reading of this process has succeeded. Once as many have failed as make a card
            # sick, the cards that an earlier process read are published, as sick.
            if self._failures < self._rules.failed_readings or not self._known.cards:
                return None
            inventory = Inventory(gpus=tuple(self._known.cards.values()))
        if any(state.was_away for state in self._known.health.values()):
            self._claimed = self._claimed_devices()
        return known_cards.published(self._known, inventory, self._claimed)

    def _log_event(self, event: CardEvent, *, counts: bool) -> None:
        """Log an event, but not each of a storm of equal ones, which a broken program can cause."""
        kind, of_card = event.kind.value, f"{event.gpu_uuid} {event.code}"
        if self._throttle.is_new(of_card, key=f"{kind} {of_card}"):
            log.info("card_event", device=event.gpu_uuid, kind=kind, code=event.code, counts=counts)

    def _remember(self, known: KnownCards) -> None:
        self._known = known
        if self._records is None or not self._saves:
            return
        record = known_cards.as_json(known, boot_id=self._boot_id)
        if record == self._saved_record:
            return
        try:
            self._records.save(record)
        except RetryableError as error:
            # Saved after the next reading. A restart before that knows an older state.
            log.warning("card_record_write_failed", error=str(error))
        else:
            self._saved_record = record

    def _loaded(self) -> KnownCards:
        if self._records is None or self._saved_record is None:
            return KnownCards()
        self._claimed = self._claimed_devices()
        try:
            return known_cards.from_json(
                self._saved_record,
                boot_id=self._boot_id,
                claimed=self._claimed,
                now=self._clock(),
            )
        except ValueError as error:
            log.warning("card_record_unusable", error=str(error))
            return KnownCards()

    def _claimed_devices(self) -> frozenset[str]:
        try:
            claims = self._claims()
        except RetryableError as error:
            log.warning("claimed_devices_unknown", error=str(error))
            # The last known ones: better to publish a missing card for too long.
            return self._claimed
        return frozenset(share.device for claim in claims for share in claim.shares)
