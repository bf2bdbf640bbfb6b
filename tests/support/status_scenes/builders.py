"""Views of made-up nodes, built from a few words for each share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import NAMESPACE_DNS, uuid5

from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.operation import EndedOperation, OperationKind, Result, Stage
from tensorfusion_dra.core.claims.prepared import Limit
from tensorfusion_dra.core.claims.resize import Resize
from tensorfusion_dra.core.claims.use import Used
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict, Verdict
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.gpu import Qos
from tensorfusion_dra.core.devices.health import Unhealthy
from tensorfusion_dra.core.kubernetes.quantity import GIB, NANO, Quantity
from tensorfusion_dra.core.observed import (
    ApiServerView,
    CardAmounts,
    CardView,
    NodeView,
    OtherCapacity,
    PublishingView,
    RegistrationState,
    RegistrationView,
    ShareView,
    XidCount,
)
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu
from tests.support.builders.prepared_claims import prepared_claim, prepared_share

NOW: Final = datetime(2026, 3, 14, 3, 12, 44, tzinfo=UTC)
NODE: Final = "gpu-node-07.example"
WHOLE: Final = CardAmounts(nano_tflops=312 * NANO, vram_bytes=80 * GIB)
ENFORCED: Final = verdicts.enforced(
    verdicts.LIMITER_ACTIVE, "the limiter's heartbeat is fresh, and one process takes part"
)
STALE: Final = verdicts.not_enforced(
    verdicts.HEARTBEAT_STALE, "the last heartbeat of the hypervisor is 96 s old; start it again"
)
NO_PROCESS: Final = verdicts.unknown(
    verdicts.NO_PROCESS, "no process of the container has used its GPU yet"
)
CORDONED: Final = {
    "key": "tensor-fusion.ai/cordoned",
    "value": "fan_by_alice",
    "effect": "NoSchedule",
}


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A share of a scene.

    Attributes:
        name: Namespace and pod.
        minutes: Age of the verdict about its limits.
        used: Memory in GiB and percent of the card that it uses, by two processes.
        asked: Limits that it asks for while it runs, by capacity; None for none.
    """

    name: str
    tflops: float
    gib: int
    percent: int = 0
    limit_gib: int = 0
    found: Verdict | None = ENFORCED
    minutes: float = 42
    qos: Qos = Qos.MEDIUM
    exclusive: bool = False
    used: tuple[float, int] | None = None
    asked: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Card:
    """A card of a scene, with its tenants."""

    tenants: Sequence[Tenant] = ()
    capacity: CardAmounts = WHOLE
    physical: CardAmounts = WHOLE
    product_name: str = "NVIDIA A100-SXM4-80GB"
    unhealthy: Unhealthy | None = None
    xids: tuple[XidCount, ...] = field(default=())
    others: tuple[OtherCapacity, ...] = ()
    foreign: Used | None = None
    taints: Sequence[Mapping[str, object]] = ()


def ago(*, minutes: float = 0, seconds: float = 0) -> datetime:
    """Return a moment before NOW."""
    return NOW - timedelta(minutes=minutes, seconds=seconds)


def uuid(index: int) -> str:
    """Return the UUID of the nth card."""
    return f"GPU-8f3a{index:04x}-51c2-4d0e-9b7a-2f6d10c4e{index:03x}"


def claim_uid(name: str) -> str:
    """Return the UID of a claim with this namespace/name."""
    return str(uuid5(NAMESPACE_DNS, name))


def node(*cards: Card, **changes: object) -> NodeView:
    """Return the view of a node with these cards; changes set its other attributes."""
    shares = [share(tenant, index) for index, card in enumerate(cards) for tenant in card.tenants]
    view = NodeView(
        node=NODE,
        pool=f"research/{NODE}",
        version="0.1.0",
        started_at=ago(minutes=60 * 52),
        observed_at=NOW,
        registration=RegistrationView(
            state=RegistrationState.REGISTERED, since=ago(minutes=60 * 52, seconds=-3)
        ),
        api_server=ApiServerView(last_success_at=ago(seconds=6)),
        publishing=PublishingView(
            generation=4,
            slices=1,
            devices=len(cards),
            confirmed_at=ago(minutes=3),
            written_at=ago(minutes=44),
        ),
        cards=tuple(_card(card, index) for index, card in enumerate(cards)),
        shares=tuple(sorted(shares, key=lambda each: str(each.claim.ref))),
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def share(tenant: Tenant, card: int) -> ShareView:
    """Return the share of a tenant on the nth card."""
    namespace, _, pod = tenant.name.partition("/")
    percent = tenant.percent or min(100, -(-int(tenant.tflops * 100) // 312))
    share = prepared_share(
        limit=Limit(sm_percent=percent, vram_bytes=(tenant.limit_gib or tenant.gib) * GIB),
        wanted_sm_percent=percent,
        share_id=f"5a5a5a5a-0000-4000-8000-{card:012x}",
        device=uuid(card).lower(),
        gpu_uuid=uuid(card),
        consumed={
            "tflops": Quantity(round(tenant.tflops * NANO)),
            "vram": Quantity.whole(tenant.gib * GIB),
        },
        qos=tenant.qos,
        exclusive=tenant.exclusive,
    )
    name = f"{pod}-gpu"
    ref = ClaimRef(namespace=namespace, name=name, uid=claim_uid(f"{namespace}/{name}"))
    return ShareView(
        claim=prepared_claim(
            share,
            ref=ref,
            pods=(PodRef(namespace=namespace, name=pod, uid=pod),),
            enforcer="tensor-fusion",
        ),
        share=share,
        device=device(card),
        enforcement=None
        if tenant.found is None
        else CurrentVerdict(verdict=tenant.found, since=ago(minutes=tenant.minutes)),
        resize=None if tenant.asked is None else Resize(asked=tenant.asked),
        used=None
        if tenant.used is None
        else Used(vram_bytes=int(tenant.used[0] * GIB), sm_percent=tenant.used[1], processes=2),
    )


def device(index: int, product_name: str = "NVIDIA A100-SXM4-80GB") -> Device:
    """Return the nth card as it is published."""
    (found,) = published_devices(
        gpu(
            index,
            uuid=uuid(index),
            driver_version="580.65.06",
            pci_bus_id=f"0000:{16 * index + 7:02x}:00.0",
        )
    )
    return replace(
        found, name=uuid(index).lower(), gpu=replace(found.gpu, product_name=product_name)
    )


def operation(
    kind: OperationKind,
    name: str,
    *milliseconds: tuple[Stage, float],
    seconds_ago: float,
    result: Result = Result.SUCCESS,
    error: str = "",
) -> EndedOperation:
    """Return an operation for namespace/claim with these stages."""
    namespace, _, claim = name.partition("/")
    stages = {stage: each / 1000 for stage, each in milliseconds}
    return EndedOperation(
        kind=kind,
        claim=ClaimRef(namespace=namespace, name=claim, uid=claim_uid(name)),
        ended_at=ago(seconds=seconds_ago),
        seconds=sum(stages.values()),
        seconds_by_stage=stages,
        last_stage=milliseconds[-1][0],
        result=result,
        error=error,
    )


def _card(card: Card, index: int) -> CardView:
    requested = [share(tenant, index).requested for tenant in card.tenants]
    consumed = CardAmounts(
        nano_tflops=sum(each.nano_tflops for each in requested),
        vram_bytes=sum(each.vram_bytes for each in requested),
    )
    return CardView(
        device=device(index, card.product_name),
        physical=card.physical,
        capacity=card.capacity,
        is_virtual=card.capacity != card.physical,
        consumed=consumed,
        unhealthy=card.unhealthy,
        is_absent=False,
        xids=card.xids,
        others=card.others,
        foreign=card.foreign,
        taints=tuple(card.taints),
    )
