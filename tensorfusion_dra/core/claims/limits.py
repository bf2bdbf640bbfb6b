"""Limits: how much of a card a container may use, and how tenants divide unreserved amounts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The part of one card that a container may use while it runs.

    Attributes:
        sm_percent: Percent of the card's compute, 1 to 100.
        vram_bytes: Device memory, in bytes.
    """

    sm_percent: int
    vram_bytes: int

    def __add__(self, other: "Limit") -> "Limit":
        return Limit(
            sm_percent=self.sm_percent + other.sm_percent,
            vram_bytes=self.vram_bytes + other.vram_bytes,
        )

    def __str__(self) -> str:
        return f"{self.sm_percent}% of compute, {Quantity.of_bytes(self.vram_bytes)} of memory"

    def as_json(self) -> dict[str, int]:
        """Return the limit as JSON, for a record."""
        return {"smPercent": self.sm_percent, "vramBytes": self.vram_bytes}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Limit":
        """Return the limit that as_json() wrote."""
        return cls(sm_percent=kept["smPercent"], vram_bytes=kept["vramBytes"])


NOTHING: Final = Limit(sm_percent=0, vram_bytes=0)


def wanted(subject: str, gpu: Gpu, consumed: Mapping[str, Quantity], policy: SharePolicy) -> Limit:
    """Return the limit that a share wants: the limit of its policy, else what it consumes.

    Compute is capped at the whole card. Both amounts may be more than is left: see granted().

    Args:
        subject: Claim and device, for errors.
        gpu: The card.
        consumed: Amounts that the share consumes, by capacity.
        policy: The share's policy.

    Raises:
        ClaimError: A limit is below what the share consumes.
    """
    tflops = capacity.consumed_amount(consumed, names.CAPACITY_TFLOPS)
    vram = capacity.consumed_amount(consumed, names.CAPACITY_VRAM)
    for name, limit, request in (
        (names.CAPACITY_TFLOPS, policy.tflops_limit, tflops),
        (names.CAPACITY_VRAM, policy.vram_limit, vram),
    ):
        if limit is not None and limit < request:
            raise ClaimError(
                f"{subject}: {name} limit: found {limit}, expected at least its request {request}"
            )
    return Limit(
        sm_percent=percent(policy.tflops_limit or tflops, gpu),
        vram_bytes=(policy.vram_limit or vram).ceil(),
    )


def granted(total: int, demands: Sequence[tuple[int, int]]) -> list[int]:
    """Return the limits of a card's tenants, who are in the order in which they came.

    Each tenant gets its request, which is reserved for it. The rest is lent to tenants that want
    more, first come, first served. So the limits add up to no more than the card has, and a later
    tenant's request takes back what was lent to an earlier one.

    Example: granted(80, [(20, 60), (30, 30)]) returns [50, 30].

    Args:
        total: Amount of the card that tenants divide: bytes of memory, or percent of its compute.
        demands: Request and wanted limit of each tenant, in the same unit.
    """
    spare = total - sum(request for request, _ in demands)
    limits = []
    for request, limit in demands:
        extra = max(0, min(limit - request, spare))
        spare -= extra
        limits.append(request + extra)
    return limits


def by_uuid(shares: Iterable[tuple[str, Limit | None]]) -> Mapping[str, Limit]:
    """Return the limits by GPU UUID; several shares of one card add up to at most the card.

    Args:
        shares: GPU UUID and limit of each share; shares without a limit are skipped.
    """
    merged: dict[str, Limit] = {}
    for uuid, limit in shares:
        if limit is not None:
            merged[uuid] = merged[uuid] + limit if uuid in merged else limit
    return {
        uuid: Limit(sm_percent=min(100, limit.sm_percent), vram_bytes=limit.vram_bytes)
        for uuid, limit in merged.items()
    }


def percent(tflops: Quantity, gpu: Gpu) -> int:
    """Return compute as a percentage, rounded up, 1 to 100, as Tensor Fusion's hypervisor does."""
    whole = Quantity.milli(gpu.milli_tflops)
    return min(100, max(1, -(-100 * tflops.nano // whole.nano)))
