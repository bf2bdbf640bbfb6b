"""The node as it is now: views of cards and shares, and their JSON."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tensorfusion_dra.core import observed
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.health import (
    CardEvent,
    EventKind,
    HealthProblem,
    HealthRules,
    ProblemKind,
    Unhealthy,
)
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
from tests.support.builders.devices import NODE as MEMBER
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu, gpus, partition
from tests.support.builders.prepared_claims import limit, prepared_claim, prepared_share
from tests.support.status_scenes import builders, scenes

OVERSOLD = replace(
    MEMBER,
    oversubscription=Oversubscription(
        tflops_percent=150, host_memory_percent=0, host_disk_percent=0
    ),
)
VIRTUAL = {
    "tflops": quantity.parse("0"),
    "vram": quantity.parse("0"),
    "virtual_tflops": quantity.parse("400"),
    "virtual_vram": quantity.parse("16Gi"),
}
(CARD,) = published_devices(gpu())
(RESERVED,) = published_devices(gpu(reserved_bytes=GIB))
(OVERSOLD_CARD,) = published_devices(gpu(), node=OVERSOLD)
WHOLE = {"tflops": "312", "vram": "80Gi", "exclusive": True}
SINCE = datetime(2026, 3, 1, tzinfo=UTC)
SICK = Unhealthy(
    worst=HealthProblem(kind=ProblemKind.XID, reason="xid-79", text="XID 79"), since=SINCE
)


def amounts(tflops: int, vram_gib: int) -> CardAmounts:
    return CardAmounts(nano_tflops=tflops * NANO, vram_bytes=vram_gib * GIB)


def share_of(device: Device, tflops: str = "100", vram: str = "16Gi", **more: Any) -> PreparedShare:
    consumed = {"tflops": quantity.parse(tflops), "vram": quantity.parse(vram)}
    given = {"device": device.name, "gpu_uuid": device.gpu.uuid, "consumed": consumed, **more}
    return prepared_share(0, limit(50, 20), **given)


def viewed(
    devices: Sequence[Device], *claims: PreparedClaim, unhealthy: dict[str, Unhealthy] | None = None
) -> tuple[CardView, ...]:
    return observed.cards(
        devices, claims, unhealthy=unhealthy or {}, absent=frozenset(), xids={}, foreign={}
    )


def shares_of(
    device: Device, claim: PreparedClaim, *current: CurrentVerdict
) -> tuple[ShareView, ...]:
    return observed.shares(
        [claim], {device.name: device}, verdicts={claim.ref.uid: current}, used={}
    )


@pytest.mark.parametrize(
    ("device", "taken", "shown"),
    [
        (CARD, None, [(312, 80), (312, 80), (0, 0), (312, 80)]),
        # Driver and firmware reserve a part of the memory.
        (RESERVED, None, [(312, 79), (312, 79), (0, 0), (312, 79)]),
        # An exclusive share, also one from before the pool oversubscribed.
        (CARD, WHOLE, [(312, 80), (312, 80), (312, 80), (0, 0)]),
        (OVERSOLD_CARD, WHOLE, [(312, 80), (468, 80), (468, 80), (0, 0)]),
        (OVERSOLD_CARD, {"consumed": VIRTUAL}, [(312, 80), (468, 80), (400, 16), (68, 64)]),
        # The pool stopped oversubscribing.
        (CARD, {"consumed": VIRTUAL}, [(312, 80), (312, 80), (400, 16), (0, 64)]),
    ],
)
def test_card_shows_what_is_taken_of_it(
    device: Device, taken: dict[str, Any] | None, shown: list[tuple[int, int]]
) -> None:
    """In this order: what the card has, what its tenants divide, what is taken, what is left."""
    claims = [] if taken is None else [prepared_claim(share_of(device, **taken))]

    (card,) = viewed((device,), *claims, unhealthy={device.name: SICK})

    found = [card.physical, card.capacity, card.consumed, card.free]
    assert found == [amounts(*each) for each in shown]
    assert card.is_virtual == (device is OVERSOLD_CARD)
    assert card.unhealthy == SICK


def test_shares_of_several_claims_add_up_on_their_card_alone() -> None:
    used, other = published_devices(*gpus(2))
    claims = [prepared_claim(share_of(used)), prepared_claim(share_of(used, "12500m", "1Gi"))]

    card, free_card = viewed((used, other), *claims)

    assert (card.consumed, card.free) == (
        CardAmounts(nano_tflops=112_500_000_000, vram_bytes=17 * GIB),
        CardAmounts(nano_tflops=199_500_000_000, vram_bytes=63 * GIB),
    )
    assert free_card.free == free_card.capacity


def test_admin_access_takes_nothing() -> None:
    claim = prepared_claim(share_of(CARD, admin_access=True, exclusive=True, consumed={}))

    (card,), (share,) = viewed((CARD,), claim), shares_of(CARD, claim)

    assert card.free == card.capacity
    assert share.share.admin_access
    assert (share.requested, share.limit, share.limit_nano_tflops) == (CardAmounts(), None, None)


def test_capacities_of_other_packages_are_sorted_and_have_what_their_shares_take() -> None:
    given = {
        "example.com/slots": capacity.consumable(16),
        "acme.example/buffer": capacity.consumable("4Gi"),
    }
    extended = replace(CARD, capacity={**given, **CARD.capacity})
    amounts = {"tflops": quantity.parse("1"), "vram": quantity.parse("1Gi")}
    claims = [
        prepared_claim(share_of(CARD, consumed={**amounts, **more}))
        for more in (
            {"example.com/slots": quantity.parse("2")},
            {"acme.example/buffer": quantity.parse("1536Mi")},
            {},
        )
    ]

    (card,), (plain,) = viewed((extended,), *claims), viewed((CARD,), *claims)

    assert [(each.name, str(each.quantity), str(each.consumed)) for each in card.others] == [
        ("acme.example/buffer", "4Gi", "1536Mi"),
        ("example.com/slots", "16", "2"),
    ]
    assert plain.others == ()


@pytest.mark.parametrize(
    ("published", "limit_nano_tflops"), [(CARD, 156 * NANO), (published_devices(*gpus(2))[1], None)]
)
def test_limit_is_shown_in_tflops_of_its_card_if_that_is_published(
    published: Device, limit_nano_tflops: int | None
) -> None:
    (share,) = shares_of(published, prepared_claim(share_of(CARD), enforcer="tensor-fusion"))

    assert (share.share.gpu_uuid, share.requested) == (CARD.gpu.uuid, amounts(100, 16))
    assert (share.limit, share.limit_nano_tflops) == (limit(50, 20), limit_nano_tflops)


def test_each_share_has_its_own_verdict_unless_they_are_of_an_older_record() -> None:
    claim = prepared_claim(share_of(CARD), share_of(CARD, request="second"))
    current = [
        CurrentVerdict(verdict=verdicts.enforced("LimiterActive", "ok"), since=SINCE),
        CurrentVerdict(verdict=verdicts.unknown("NoProcessYet", "?"), since=SINCE),
    ]

    assert [each.enforcement for each in shares_of(CARD, claim, *current)] == current
    assert [each.enforcement for each in shares_of(CARD, claim, current[0])] == [None, None]


TYPICAL = observed.as_json(scenes.typical())


def test_document_has_every_card_share_and_operation_of_the_view() -> None:
    view = scenes.typical()
    uuids = [card.device.gpu.uuid for card in view.cards]
    names = [(share.claim.ref.namespace, share.claim.ref.name) for share in view.shares]

    assert [card["uuid"] for card in TYPICAL["cards"]] == uuids
    assert [(share["namespace"], share["claim"]) for share in TYPICAL["shares"]] == names
    assert len(TYPICAL["operations"]) == len(view.operations)
    assert TYPICAL["node"] == {
        "name": "gpu-node-07.example",
        "pool": "research/gpu-node-07.example",
        "version": "0.1.0",
        "startedAt": "2026-03-11T23:12:44.000+00:00",
    }


def test_partitions_have_the_xids_of_their_card() -> None:
    event = CardEvent(gpu_uuid=gpu(1).uuid, kind=EventKind.XID, code=31)
    counts = observed.count_xid({}, event, HealthRules(), SINCE)
    devices = published_devices(gpu(0), partition(card=1))

    found = observed.cards(devices, (), unhealthy={}, absent=frozenset(), xids=counts, foreign={})

    assert [[each.code for each in card.xids] for card in found] == [[], [31]]


def test_document_shows_cards_shares_and_operations_with_what_matters() -> None:
    _, virtual, *_, sick = TYPICAL["cards"]
    (jun,) = (share for share in TYPICAL["shares"] if share["claim"] == "jun-gpu")
    failed = TYPICAL["operations"][2]

    assert (
        virtual.items()
        >= {
            "oversubscribed": True,
            "physical": {"tflops": 312.0, "vramBytes": 80 * GIB},
            "capacity": {"tflops": 468.0, "vramBytes": 112 * GIB},
            "consumed": {"tflops": 390.0, "vramBytes": 96 * GIB},
            "free": {"tflops": 78.0, "vramBytes": 16 * GIB},
            "xids": [
                {
                    "xid": 31,
                    "message": "XID 31",
                    "marksCard": False,
                    "count": 3,
                    "lastAt": "2026-03-14T03:05:44.000+00:00",
                }
            ],
            "otherCapacities": [
                {"name": "example.com/encoder_sessions", "quantity": "16", "consumed": "3"},
            ],
        }.items()
    )
    assert sick["health"] == {
        "healthy": False,
        "absent": False,
        "reason": "xid-79",
        "message": "XID 79: GPU has fallen off the bus",
        "since": "2026-03-14T02:54:44.000+00:00",
    }
    assert jun == {
        "namespace": "notebooks",
        "claim": "jun-gpu",
        "claimUID": builders.claim_uid("notebooks/jun-gpu"),
        "pods": ["jun"],
        "request": "gpu",
        "shareID": "5a5a5a5a-0000-4000-8000-000000000001",
        "device": "gpu-8f3a0001-51c2-4d0e-9b7a-2f6d10c4e001",
        "uuid": "GPU-8f3a0001-51c2-4d0e-9b7a-2f6d10c4e001",
        "requested": {"tflops": 78.0, "vramBytes": 16 * GIB},
        "limit": {"computePercent": 25, "vramBytes": 16 * GIB, "tflops": 78.0},
        "wanted": {"computePercent": 25, "vramBytes": 16 * GIB},
        "raisedPercent": 0,
        "limitChanged": None,
        "isolation": "soft",
        "qos": "medium",
        "enforcer": "tensor-fusion",
        "exclusive": False,
        "adminAccess": False,
        "enforcement": {
            "state": "NotEnforced",
            "reason": "HeartbeatStale",
            "message": "the last heartbeat of the hypervisor is 96 s old; start it again",
            "limits": {
                limit: {"state": "NotEnforced", "reason": "HeartbeatStale"}
                for limit in ("memory", "compute")
            },
            "since": "2026-03-14T03:11:08.000+00:00",
        },
        "used": {
            "vramBytes": 15 * GIB + GIB // 2,
            "computePercent": 18,
            "processes": 2,
            "nearLimit": True,
        },
    }
    assert (
        failed.items()
        >= {
            "result": "claim_error",
            "lastStage": "admit",
            "seconds": 0.0057,
        }.items()
    )
    assert [each["stage"] for each in failed["stages"]] == ["queue", "read", "resolve", "admit"]
    assert failed["error"].startswith("claim ads/rank-3-gpu: vram-limit:")
    assert observed.as_json(scenes.broken())["store"] == {"restored": 5, "damaged": 2}
    assert observed.as_json(scenes.quiet())["store"] == {"restored": 0, "damaged": 0}


def test_what_is_not_known_is_null_or_empty() -> None:
    view = NodeView(
        node="n",
        pool="",
        version="1",
        started_at=builders.NOW,
        observed_at=builders.NOW,
        registration=RegistrationView(),
        api_server=ApiServerView(),
        publishing=PublishingView(),
    )
    of_unknown_card = replace(scenes.quiet().shares[0], device=None)

    found = observed.as_json(replace(view, shares=(of_unknown_card,)))

    assert found["registration"] == {"state": "waiting", "since": None, "error": ""}
    assert found["apiServer"]["lastSuccessAt"] is None
    assert found["publishing"]["generation"] is None
    assert (found["cards"], found["operations"]) == ([], [])
    (share,) = found["shares"]
    assert share["limit"] == {"computePercent": 39, "vramBytes": 32 * GIB, "tflops": None}


def test_control_characters_are_escaped_and_long_texts_cut() -> None:
    found = observed.as_json(scenes.hostile())

    (card,) = found["cards"]
    assert len(card["health"]["message"]) == 1000
    assert "\\n" in card["health"]["message"]
    texts = json.dumps([card, found["shares"]], ensure_ascii=False)
    assert not any(char in texts for char in "\x1b\n\u202e")
