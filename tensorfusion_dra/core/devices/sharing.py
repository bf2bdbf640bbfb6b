"""Modes in which a card is shared: values of pools, devices and shares alike."""

from enum import StrEnum


class Isolation(StrEnum):
    """How a card's tenants are kept apart (Tensor Fusion's isolation modes)."""

    SOFT = "soft"
    HARD = "hard"
    SHARED = "shared"


class Qos(StrEnum):
    """Levels of service."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"
