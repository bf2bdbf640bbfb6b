"""Construction of the parts that follow the cards' health from the settings."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.health import HealthRules
from tensorfusion_dra.core.devices.xids import XidRules
from tensorfusion_dra.driver.card_health_tracker import CardHealthTracker
from tensorfusion_dra.state import boot
from tensorfusion_dra.state.card_records import CardRecords


def rules(settings: Settings) -> HealthRules:
    """Return the rules by which the health of this node's cards changes."""
    return HealthRules(
        failed_readings=settings.health_failed_readings,
        good_readings=settings.health_good_readings,
        quiet_seconds=settings.health_quiet_seconds,
        xid_clear_seconds=settings.health_xid_clear_seconds,
        xids=XidRules(
            ignored=_codes(settings.health_ignored_xids),
            critical=_codes(settings.health_critical_xids),
        ),
    )


def tracker(
    settings: Settings, claims: Callable[[], Sequence[PreparedClaim]], *, saves: bool = True
) -> CardHealthTracker:
    """Return a tracker that starts from the health records of earlier processes.

    Args:
        claims: Returns all prepared claims.
        saves: False to read the health records without writing them.

    Raises:
        InputError: The boot ID cannot be read.
        FatalError: The ledger is damaged.
    """
    records = CardRecords(settings.data_folder, boot_id=boot.boot_id(Path(settings.boot_id_file)))
    return CardHealthTracker(rules(settings), records=records, claims=claims, saves=saves)


def taint_effect(settings: Settings) -> str:
    """Return the effect of the taint of an unhealthy device; "" for no taint."""
    return "" if settings.health_taint == "none" else settings.health_taint


def _codes(text: str) -> frozenset[int]:
    return frozenset(int(code) for code in text.split(",") if code)
