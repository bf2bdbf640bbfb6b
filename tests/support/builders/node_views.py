"""Views of a node for tests, and of its cards and shares."""

from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any, Final

from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import Limit
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict, Verdict
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, NANO
from tensorfusion_dra.core.observed import (
    ApiServerView,
    CardAmounts,
    CardView,
    NodeView,
    PublishingView,
    RegistrationView,
    ShareView,
)
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu
from tests.support.builders.prepared_claims import prepared_claim, prepared_share

_A100: Final = "NVIDIA A100-SXM4-80GB"
NOW: Final = datetime(2026, 3, 1, tzinfo=UTC)


def amounts(*, tflops: int, gib: int) -> CardAmounts:
    return CardAmounts(nano_tflops=tflops * NANO, vram_bytes=gib * GIB)


def card_view(uuid: str = "GPU-0001", device: str = "", **changes: Any) -> CardView:
    """Return a healthy A100 without shares; changes set attributes of the view or of its GPU."""
    whole = amounts(tflops=312, gib=80)
    of_gpu = {each.name: changes.pop(each.name) for each in fields(Gpu) if each.name in changes}
    (published,) = published_devices(
        gpu(driver_version="580.65.06", pci_bus_id="0000:07:00.0", product_name=_A100)
    )
    card = replace(published.gpu, uuid=uuid, **of_gpu)
    values: dict[str, Any] = {
        "device": replace(published, name=device or uuid.lower(), gpu=card),
        "physical": whole,
        "capacity": whole,
        "is_virtual": False,
        "consumed": CardAmounts(),
        "unhealthy": None,
        "is_absent": False,
    }
    return CardView(**{**values, **changes})


def share_view(name: str = "a", **changes: Any) -> ShareView:
    """Return a tenth of a card for the claim and the pod with this name, with limits.

    Changes set attributes of the view, of its share or of its claim.
    """
    given: dict[str, Any] = {
        "ref": ClaimRef(namespace="default", name=name, uid=f"uid-{name}"),
        "pods": (PodRef(namespace="default", name=f"pod-{name}", uid=name),),
        "enforcer": "tensor-fusion",
        "share_id": f"share-{name}",
        "device": "gpu-0001",
        "gpu_uuid": "GPU-0001",
        "consumed": {"tflops": quantity.parse("31"), "vram": quantity.parse("8Gi")},
        "limit": Limit(sm_percent=10, vram_bytes=8 * GIB),
        **changes,
    }
    of_claim = {key: given.pop(key) for key in ("ref", "pods", "enforcer")}
    of_view = {key: given.pop(key, None) for key in ("enforcement", "used")}
    of_view["raised_percent"] = given.pop("raised_percent", 0)
    share = prepared_share(**given)
    claim = prepared_claim(share, **of_claim)
    return ShareView(claim=claim, share=share, device=None, **of_view)


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
