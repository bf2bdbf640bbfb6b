"""Remembers the node's cards and their health, over restarts too."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices import health, health_record, known_cards
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent, HealthRules, Kind, Moment, Trouble
from tensorfusion_dra.core.devices.known_cards import KnownCards, PublishedCards
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports.discovery import HungError
from tensorfusion_dra.state.card_records import CardRecords

log = structlog.get_logger()

_QUIET_SECONDS: Final = 60.0
"""In which the same report is not logged again."""


def now() -> Moment:
    """The time by this process's clocks."""
    return Moment(time.monotonic(), datetime.now(UTC))


class CardHealthTracker:
    """What is known of the cards after each reading and report; for one thread at a time."""

    def __init__(
        self,
        rules: HealthRules | None = None,
        *,
        records: CardRecords | None = None,
        claims: Callable[[], Sequence[PreparedClaim]] = tuple,
        clock: Callable[[], Moment] = now,
        keeps: bool = True,
    ) -> None:
        """Starts with what an earlier process knew.

        Args:
            rules: How fast health changes; None for the defaults.
            records: Where it is kept; None forgets at the end of the process.
            claims: All prepared claims, as the ledger has them.
            keeps: False only reads the records.

        Raises:
            FatalError: The ledger is damaged.
        """
        self._rules = rules or HealthRules()
        self._records = records
        self._claims = claims
        self._clock = clock
        self._keeps = keeps
        self._inventory: Inventory | None = None
        self._failures = 0
        self._logged: dict[CardEvent, float] = {}
        self._held: frozenset[str] = frozenset()
        self._kept: Mapping[str, Any] | None = records.load() if records else None
        self._known = self._loaded()

    def read(self, inventory: Inventory) -> None:
        """The driver told of its cards."""
        self._failures = 0
        self._inventory = inventory
        self._know(known_cards.after_reading(self._known, inventory, self._clock(), self._rules))

    def failed(self, error: RetryableError) -> None:
        """The driver told nothing."""
        self._failures += 1
        if isinstance(error, HungError):
            reason, text = "nvml-hung", f"the NVIDIA driver does not answer: {error.question}"
        else:
            reason, text = "unreadable", f"the GPU cannot be read: {error}"
        trouble = Trouble(kind=Kind.UNREADABLE, reason=reason, text=text)
        self._know(known_cards.after_failure(self._known, trouble, self._clock(), self._rules))

    def reported(self, event: CardEvent) -> bool:
        """The driver reported something; True if it counts against a card."""
        trouble = health.trouble_of(event, self._rules)
        uuid = event.gpu_uuid
        counts = trouble is not None and uuid in self._known.cards
        self._log(event, counts=counts)
        if trouble is None or uuid is None or not counts:
            return False
        self._know(known_cards.after_report(self._known, uuid, trouble, self._clock()))
        return True

    def visible(self) -> PublishedCards | None:
        """What others are to see; None as long as nothing is certain enough to be shown."""
        inventory = self._inventory
        if inventory is None:
            # The driver never answered this process. Long enough, and what is known of an
            # earlier one says more than nothing.
            if self._failures < self._rules.failed_readings or not self._known.cards:
                return None
            inventory = Inventory(gpus=tuple(self._known.cards.values()))
        if any(state.was_away for state in self._known.health.values()):
            self._held = self._devices_held()
        return known_cards.published(self._known, inventory, self._held)

    def _log(self, event: CardEvent, *, counts: bool) -> None:
        """One line for a storm of equal reports, which a broken program can cause at will."""
        seconds = self._clock().seconds
        if seconds - self._logged.get(event, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return
        self._logged = {
            each: at for each, at in self._logged.items() if seconds - at < _QUIET_SECONDS
        }
        self._logged[event] = seconds
        kind = event.kind.value
        log.info("card_event", device=event.gpu_uuid, kind=kind, code=event.code, counts=counts)

    def _know(self, known: KnownCards) -> None:
        self._known = known
        if self._records is None or not self._keeps:
            return
        record = health_record.as_json(known, boot_id=self._records.boot_id)
        if record == self._kept:
            return
        try:
            self._records.save(record)
        except RetryableError as error:
            # Tried again after the next reading. Until then a restart knows less.
            log.warning("card_record_failed", error=str(error))
        else:
            self._kept = record

    def _loaded(self) -> KnownCards:
        if self._records is None or self._kept is None:
            return KnownCards()
        self._held = self._devices_held()
        try:
            return health_record.from_json(
                self._kept, boot_id=self._records.boot_id, claimed=self._held, now=self._clock()
            )
        except ValueError as error:
            log.warning("card_record_unusable", error=str(error))
            return KnownCards()

    def _devices_held(self) -> frozenset[str]:
        try:
            claims = self._claims()
        except RetryableError as error:
            log.warning("held_devices_unknown", error=str(error))
            return self._held  # as it was: a card is rather shown for too long
        return frozenset(share.device for claim in claims for share in claim.shares)
