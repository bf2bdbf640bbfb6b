"""Modes in which a card is shared, for pools, devices and shares."""

from enum import StrEnum


class Isolation(StrEnum):
    """Separation of a card's tenants (Tensor Fusion's isolation modes)."""

    SOFT = "soft"
    HARD = "hard"
    SHARED = "shared"


class Qos(StrEnum):
    """Levels of service."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"
