"""Status of a claim's devices."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from dra_simulator.api import object_rules
from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.claims.device_status import Entry, Readiness
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict, State, Verdict
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.allocations import allocation
from tests.support.builders.gpus import gpus
from tests.support.builders.nodes import HAMI_CORE, MPS, node_facts
from tests.support.builders.reported_claims import (
    DEVICE,
    GPU_UUID,
    POOL,
    SHARE_ID,
    reported_admin_share,
    reported_claim,
    reported_limit,
    reported_share,
)
from tests.support.tenants import Card

SINCE = datetime(2026, 3, 1, 18, 0, 15, 999_999, tzinfo=timezone(timedelta(hours=5, minutes=30)))


def ready(since: datetime) -> Mapping[str, Readiness]:
    """Return the readiness of devices that are ready since then."""
    return dict.fromkeys((DEVICE, "gpu-1"), Readiness(since=since))


def api_errors(prepared: PreparedClaim) -> list[str]:
    """Return the errors of a 1.36 API server for the entries."""
    entries = device_status.status(prepared, ready(SINCE))
    names = ("driver", "pool", "device", "shareID")
    results = [{name: entry[name] for name in names if name in entry} for entry in entries]
    requested = {"requests": [{"name": "gpu"}]}
    allocation = {"devices": {"results": [{**result, "request": "gpu"} for result in results]}}
    stored = {
        "spec": {"devices": requested},
        "status": {"allocation": allocation, "devices": entries},
    }
    return [str(error) for error in object_rules.status_errors(stored, stored)]


def only_entry(*shares: PreparedShare) -> Entry:
    """Return the entry of a claim with these shares of one device, which the API accepts."""
    claim = reported_claim("a", *shares)
    assert api_errors(claim) == []
    (entry,) = device_status.status(claim, ready(SINCE))
    return entry


def test_entry_shows_limits_and_consumed_amounts() -> None:
    assert only_entry() == {
        "driver": "tensor-fusion.ai.dra-driver",
        "pool": POOL,
        "device": DEVICE,
        "shareID": SHARE_ID,
        "data": {
            "uuid": GPU_UUID,
            "isolation": "soft",
            "qos": "high",
            "consumed": {"tflops": "100", "vram": "16Gi"},
            "limits": {"smPercent": 40, "vramBytes": 24 * GIB, "clamped": False},
        },
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Prepared",
                "message": f"{GPU_UUID}: 40% of compute, 24Gi of memory, isolation soft",
                "lastTransitionTime": "2026-03-01T12:30:15Z",
            }
        ],
    }


@pytest.mark.parametrize(
    ("wanted", "listed", "reason", "text"),
    [
        (
            {"wanted_vram_bytes": 32 * GIB},
            {"wantedVramBytes": 32 * GIB},
            "MemoryLimitClamped",
            "32Gi of memory",
        ),
        (
            {"wanted_sm_percent": 80},
            {"wantedSmPercent": 80},
            "ComputeLimitClamped",
            "80% of compute",
        ),
        (
            {"wanted_sm_percent": 80, "wanted_vram_bytes": 32 * GIB},
            {"wantedSmPercent": 80, "wantedVramBytes": 32 * GIB},
            "MemoryLimitClamped",
            "80% of compute and 32Gi of memory",
        ),
    ],
)
def test_clamped_limits_are_reported_with_the_wanted_ones(
    wanted: dict[str, Any], listed: dict[str, int], reason: str, text: str
) -> None:
    entry = only_entry(reported_share(**wanted))

    (condition,) = entry["conditions"]
    assert entry["data"]["limits"] == {
        "smPercent": 40,
        "vramBytes": 24 * GIB,
        "clamped": True,
        **listed,
    }
    assert (condition["status"], condition["reason"]) == ("True", reason)
    assert f"24Gi of memory, isolation soft; clamped from {text}: " in condition["message"]


FIXED = "set when the container started, and stays until the pod starts again"
NEW_FIELDS = {"dividesMemory", "idleCompute"}
LEFT = "the card and its other tenants leave less"
BOTH = "80% of compute and 32Gi of memory"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, f"{BOTH}: {LEFT}"),
        # MPS, isolation hard, and containers of HAMi-core from before a release that lends.
        ({"granted": reported_limit(24)}, f"{BOTH}: {FIXED}"),
        (
            {"granted": reported_limit(16), "divides_memory": True},
            f"80% of compute: {FIXED}; clamped from 32Gi of memory: {LEFT}",
        ),
        (
            {"granted": reported_limit(16), "divides_memory": True, "idle_compute": True},
            "80% of compute: the rest is lent while the card's other tenants are idle; "
            f"clamped from 32Gi of memory: {LEFT}",
        ),
    ],
)
def test_message_says_when_more_than_the_limit_can_be_had(
    changes: dict[str, Any], text: str
) -> None:
    share = reported_share(wanted_sm_percent=80, wanted_vram_bytes=32 * GIB, **changes)

    (condition,) = only_entry(share)["conditions"]

    assert condition["message"].endswith(f"isolation soft; clamped from {text}")


@pytest.mark.parametrize(
    ("enforcer", "percent", "why"),
    [
        (HAMI_CORE.name, 25, "clamped from 100% of compute: the rest is lent while"),
        (MPS.name, 25, "clamped from 100% of compute: set when the container started"),
        ("tensor-fusion", 100, ""),
        ("nvidia", 100, ""),  # its verdict says that nothing limits compute
    ],
)
def test_compute_limit_above_the_request_says_what_its_enforcer_makes_of_it(
    enforcer: str, percent: int, why: str
) -> None:
    card = Card(replace(node_facts(*gpus(1)), enforcer=enforcer))
    (device,) = card.node.devices
    record = card.admit("a", allocation(device, 1, tflops="78", vram="1Gi"), tflops="312")

    (entry,) = device_status.status(record, {device: Readiness(since=SINCE)})

    message = entry["conditions"][0]["message"]
    assert f": {percent}% of compute" in message
    assert message.partition("; ")[2].startswith(why)
    assert bool(why) == ("clamped" in message)


def test_share_of_a_container_from_before_lending_keeps_its_limits() -> None:
    granted = reported_limit(24)
    share = reported_share(
        wanted_sm_percent=80, granted=granted, divides_memory=True, idle_compute=True
    )
    kept = {key: value for key, value in share.as_json().items() if key not in NEW_FIELDS}

    old = PreparedShare.from_json(kept)

    assert (old.limit, old.granted) == (granted, granted)
    assert only_entry(old)["conditions"][0]["message"].endswith(f"80% of compute: {FIXED}")


def test_unenforceable_limits_are_reported_with_the_reason() -> None:
    shown = {DEVICE: Readiness(since=SINCE, reason="claim default/a: found 2 cards")}

    (entry,) = device_status.status(reported_claim("a"), shown)

    (condition,) = entry["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "LimitsNotEnforceable")
    assert condition["message"].startswith("claim default/a: found 2 cards; ")


@pytest.mark.parametrize(
    ("share", "shown", "has_share_id", "message"),
    [
        (
            reported_share(isolation=Isolation.SHARED, limit=None),
            {"isolation": "shared", "qos": "high", "consumed": {"tflops": "100", "vram": "16Gi"}},
            True,
            "no limits, isolation shared",
        ),
        (
            reported_share(share_id=None, exclusive=True),
            only_entry()["data"],
            False,
            "40% of compute, 24Gi of memory, isolation soft",
        ),
        (reported_admin_share(), {"adminAccess": True}, False, "admin access, no limits"),
    ],
    ids=["without limits", "exclusive", "admin access"],
)
def test_entry_of_every_other_kind_of_share(
    share: PreparedShare, shown: dict[str, Any], message: str, *, has_share_id: bool
) -> None:
    entry = only_entry(share)

    assert entry["data"] == {"uuid": GPU_UUID, **shown}
    assert ("shareID" in entry) is has_share_id
    assert entry["conditions"][0]["message"] == f"{GPU_UUID}: {message}"
    assert api_errors(reported_claim("a", share)) == []


EXCLUSIVE = reported_share(share_id=None, exclusive=True)


@pytest.mark.parametrize(
    ("shares", "shown"),
    [
        ((reported_admin_share("one"), reported_admin_share("two")), reported_admin_share()),
        # An exclusive allocation takes precedence over admin access.
        ((reported_admin_share(), EXCLUSIVE), EXCLUSIVE),
        ((EXCLUSIVE, reported_admin_share()), EXCLUSIVE),
    ],
)
def test_requests_for_one_device_have_one_entry(
    shares: tuple[PreparedShare, ...], shown: PreparedShare
) -> None:
    assert only_entry(*shares) == only_entry(shown)


def test_shares_of_one_device_have_separate_entries() -> None:
    other = reported_share(
        share_id=SHARE_ID.replace("1", "2"), limit=reported_limit(8), wanted_vram_bytes=8 * GIB
    )

    both = device_status.status(reported_claim("a", reported_share(), other), ready(SINCE))

    assert both == [only_entry(), only_entry(other)]


def test_api_server_accepts_the_entry_of_the_largest_device() -> None:
    amount = quantity.parse("9223372036854775807m")
    most = {f"{'a' * 63}/{'b' * 30}{index:02}": amount for index in range(32)}

    entry = only_entry(reported_share(consumed=most, wanted_vram_bytes=10**15))

    assert len(json.dumps(entry["data"])) < 10 * 1024


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": "default/node-02"},
        {"device": "gpu-1"},
        {"gpu_uuid": "GPU-1"},
        {"share_id": None},
        {"consumed": {"tflops": quantity.parse("100"), "vram": quantity.parse("17Gi")}},
        {"admin_access": True},
        {"isolation": Isolation.SHARED},
        {"qos": Qos.LOW},
        {"wanted_vram_bytes": 25 * GIB},
        {"wanted_sm_percent": 41},
        {"limit": reported_limit(20)},
        {"limit": None},
    ],
)
def test_status_differs_with_everything_that_it_shows(changes: dict[str, Any]) -> None:
    changed = reported_claim("a", reported_share(**changes))

    assert device_status.status(changed, ready(SINCE)) != [only_entry()]


@pytest.mark.parametrize(
    ("state", "status"),
    [(State.ENFORCED, "True"), (State.NOT_ENFORCED, "False"), (State.UNKNOWN, "Unknown")],
)
def test_condition_shows_whether_the_limits_hold(state: State, status: str) -> None:
    verdict = Verdict(state=state, reason="HeartbeatStale", text="an hour old")
    current = CurrentVerdict(verdict=verdict, since=SINCE + timedelta(hours=1))

    (entry,) = device_status.status(reported_claim("a"), ready(SINCE), [current])

    assert entry["conditions"] == [
        *only_entry()["conditions"],
        {
            "type": "LimitsEnforced",
            "status": status,
            "reason": "HeartbeatStale",
            "message": "an hour old",
            "lastTransitionTime": "2026-03-01T13:30:15Z",
        },
    ]


def test_shared_entry_shows_the_limits_of_the_share_that_has_some() -> None:
    claim = reported_claim("a", reported_admin_share(share_id=SHARE_ID), reported_share())
    verdicts = [
        Verdict(state=State.ENFORCED, reason="NoLimit", text=""),
        Verdict(state=State.UNKNOWN, reason="NoProcessYet", text=""),
    ]

    (entry,) = device_status.status(
        claim, ready(SINCE), [CurrentVerdict(verdict=each, since=SINCE) for each in verdicts]
    )

    assert entry["conditions"][1]["reason"] == "NoProcessYet"
