"""Views of a node for tests, and of its cards and shares."""

from datetime import UTC, datetime
from typing import Any, Final

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict, Verdict
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.observed.node_view import (
    Amounts,
    ApiServerView,
    CardView,
    NodeView,
    PublishingView,
    RegistrationView,
    ShareView,
)

GIB: Final = 2**30
TFLOPS: Final = 10**9
"""Billionths of a TFLOPS in one."""
NOW: Final = datetime(2026, 3, 1, tzinfo=UTC)


def amounts(*, tflops: int, gib: int) -> Amounts:
    return Amounts(nano_tflops=tflops * TFLOPS, vram_bytes=gib * GIB)


def card_view(uuid: str = "GPU-0001", **changes: Any) -> CardView:
    """Return a healthy card without shares."""
    whole = amounts(tflops=312, gib=80)
    values: dict[str, Any] = {
        "device": uuid.lower(),
        "uuid": uuid,
        "index": 0,
        "product_name": "NVIDIA A100-SXM4-80GB",
        "model": "A100",
        "driver_version": "580.65.06",
        "pci_bus_id": "0000:07:00.0",
        "is_simulated": False,
        "physical": whole,
        "total_vram_bytes": 80 * GIB,
        "capacity": whole,
        "is_virtual": False,
        "consumed": Amounts(),
        "free": whole,
        "unhealthy": None,
        "is_absent": False,
    }
    return CardView(**{**values, **changes})


def share_view(name: str = "a", **changes: Any) -> ShareView:
    """Return a tenth of a card for the claim and the pod with this name, with limits."""
    values: dict[str, Any] = {
        "claim": ClaimRef(namespace="default", name=name, uid=f"uid-{name}"),
        "pods": (f"pod-{name}",),
        "request": "gpu",
        "share_id": f"share-{name}",
        "device": "gpu-0001",
        "gpu_uuid": "GPU-0001",
        "requested": amounts(tflops=31, gib=8),
        "limit": Limit(sm_percent=10, vram_bytes=8 * GIB),
        "limit_nano_tflops": 31 * TFLOPS,
        "wanted": Limit(sm_percent=10, vram_bytes=8 * GIB),
        "isolation": Isolation.SOFT,
        "qos": Qos.MEDIUM,
        "enforcer": "tensor-fusion",
        "is_exclusive": False,
        "is_admin": False,
        "enforcement": None,
    }
    return ShareView(**{**values, **changes})


def current(verdict: Verdict) -> CurrentVerdict:
    """Return a verdict that has stood since NOW."""
    return CurrentVerdict(verdict=verdict, since=NOW)


def node_view(**changes: Any) -> NodeView:
    """Return a node of one healthy card, without shares, right after the start."""
    values: dict[str, Any] = {
        "node": "node-01",
        "pool": "default/node-01",
        "version": "1.2.3",
        "started_at": NOW,
        "observed_at": NOW,
        "registration": RegistrationView(),
        "api_server": ApiServerView(),
        "publishing": PublishingView(),
        "cards": (card_view(),),
    }
    return NodeView(**{**values, **changes})
