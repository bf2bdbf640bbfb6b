"""What the node plugin's metrics say about a node and its shares."""

from datetime import UTC, datetime

import pytest

from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.devices.gpu import LeftOut
from tensorfusion_dra.core.devices.health import Kind, Sickness, Trouble
from tensorfusion_dra.core.devices.slices import WriteReason
from tensorfusion_dra.core.observed.node_view import (
    Amounts,
    ApiServerView,
    LedgerView,
    PublishingView,
    RegistrationState,
    RegistrationView,
    XidCount,
)
from tests.metrics.scraped import scrape
from tests.support.builders.node_views import (
    GIB,
    NOW,
    amounts,
    card_view,
    current,
    node_view,
    share_view,
)


def test_a_card_with_its_amounts() -> None:
    card = card_view(consumed=amounts(tflops=100, gib=16), free=amounts(tflops=212, gib=64))

    found = scrape(node_view(cards=(card,)))

    assert found.value("card_physical_tflops", uuid="GPU-0001") == 312
    assert found.value("card_physical_vram_bytes", uuid="GPU-0001") == 80 * GIB
    assert found.value("card_capacity_tflops", uuid="GPU-0001") == 312
    assert found.value("card_capacity_vram_bytes", uuid="GPU-0001") == 80 * GIB
    assert found.value("card_consumed_tflops", uuid="GPU-0001") == 100
    assert found.value("card_consumed_vram_bytes", uuid="GPU-0001") == 16 * GIB
    assert found.value("card_free_tflops", uuid="GPU-0001") == 212
    assert found.value("card_free_vram_bytes", uuid="GPU-0001") == 64 * GIB
    assert found.values("card_oversubscription_ratio", "resource") == {"tflops": 1, "vram": 1}
    ((labels, value),) = found.each("card_info")
    assert value == 1
    assert labels == {
        "uuid": "GPU-0001",
        "device": "gpu-0001",
        "model": "A100",
        "product_name": "NVIDIA A100-SXM4-80GB",
        "driver_version": "580.65.06",
        "pci_bus_id": "0000:07:00.0",
    }


def test_an_oversubscribed_card_has_its_virtual_capacity() -> None:
    card = card_view(capacity=amounts(tflops=468, gib=100), is_virtual=True)

    found = scrape(node_view(cards=(card,)))

    assert found.value("card_physical_tflops") == 312
    assert found.value("card_capacity_tflops") == 468
    assert found.value("card_capacity_vram_bytes") == 100 * GIB
    assert found.values("card_oversubscription_ratio", "resource") == {"tflops": 1.5, "vram": 1.25}


def test_a_card_without_compute_has_no_ratio_of_it() -> None:
    card = card_view(physical=Amounts(vram_bytes=GIB), capacity=Amounts(vram_bytes=GIB))

    found = scrape(node_view(cards=(card,)))

    assert found.values("card_oversubscription_ratio", "resource") == {"vram": 1}


def test_health_of_cards() -> None:
    trouble = Trouble(kind=Kind.XID, reason="xid-79", text="XID 79: GPU has fallen off the bus")
    sick = card_view("GPU-0002", sickness=Sickness(worst=trouble, since=NOW))

    found = scrape(node_view(cards=(card_view(), sick)))

    states = {"healthy", "source", "xid", "memory", "recovery", "unreadable", "lost", "vanished"}
    well = found.values("card_health", "state", uuid="GPU-0001")
    ill = found.values("card_health", "state", uuid="GPU-0002")
    assert well == {state: float(state == "healthy") for state in states}
    assert ill == {state: float(state == "xid") for state in states}
    assert found.each("card_unhealthy_since_timestamp_seconds") == [
        ({"uuid": "GPU-0002", "reason": "xid-79"}, NOW.timestamp())
    ]


def test_xids_by_number() -> None:
    faults = XidCount(code=13, text="XID 13", marks_card=False, count=3, last_at=NOW)
    lost = XidCount(code=79, text="XID 79", marks_card=True, count=1, last_at=NOW)

    found = scrape(node_view(cards=(card_view(xids=(faults, lost)),)))

    counts = found.values("card_xids_total", "xid", uuid="GPU-0001")
    assert {xid: count for xid, count in counts.items() if count} == {"13": 3, "79": 1}
    assert counts["48"] == 0


def test_publishing() -> None:
    writes = {**dict.fromkeys(WriteReason, 0), WriteReason.START: 1, WriteReason.REPAIR: 4}
    view = PublishingView(
        has_right=False,
        generation=7,
        slices=2,
        devices=65,
        writes=writes,
        dropped_gates=("DRADeviceTaints",),
        error="no answer",
    )

    found = scrape(node_view(publishing=view))

    assert found.value("slices") == 2
    assert found.value("slice_devices") == 65
    assert found.value("slice_generation") == 7
    assert found.value("publishing_right") == 0
    assert found.value("publishing_failing") == 1
    assert found.values("slice_fields_dropped", "feature_gate") == {
        "DRAConsumableCapacity": 0,
        "DRADeviceTaints": 1,
    }
    assert found.values("slice_writes_total", "reason") == {
        **dict.fromkeys(("devices", "health", "values", "retry"), 0),
        "start": 1,
        "repair": 4,
    }


def test_registration_api_server_and_ledger() -> None:
    view = node_view(
        registration=RegistrationView(state=RegistrationState.REFUSED, since=NOW, error="no"),
        api_server=ApiServerView(
            last_success_at=NOW, last_error_at=datetime(2026, 3, 2, tzinfo=UTC), last_error="no"
        ),
        ledger=LedgerView(quarantined=1, restored=2, lost=3),
        shares_error="busy",
    )

    found = scrape(view)

    assert found.values("kubelet_registration", "state") == {
        "waiting": 0,
        "registered": 0,
        "refused": 1,
    }
    assert found.value("api_server_failing") == 1
    assert found.value("ledger_readable") == 0
    assert found.values("ledger_repairs_total", "kind") == {
        "quarantined": 1,
        "restored": 2,
        "lost": 3,
    }


def test_cards_that_are_not_known_or_left_out() -> None:
    left_out = (LeftOut(subject="gpu-2", reason="text"),)
    unknown = scrape(node_view(cards=(), cards_missing="not read yet", pool="", left_out=left_out))

    assert unknown.value("cards_known") == 0
    assert unknown.value("cards_left_out") == 1
    assert unknown.each("card_info") == []
    assert scrape(node_view()).value("cards_known") == 1


def test_node_and_versions() -> None:
    found = scrape(node_view())

    assert found.value("node_info", node="node-01", pool="default/node-01") == 1
    assert found.value("build_info", version="1.2.3") == 1


def test_a_share_with_its_holder_and_limits() -> None:
    enforced = current(verdicts.enforced(verdicts.LIMITER_ACTIVE, "text"))

    found = scrape(node_view(shares=(share_view("a", enforcement=enforced),)))

    share = {
        "namespace": "default",
        "pod": "pod-a",
        "claim": "a",
        "request": "gpu",
        "uuid": "GPU-0001",
        "share_id": "share-a",
    }
    assert found.each("share_info") == [
        ({**share, "isolation": "soft", "enforcement": "Enforced"}, 1)
    ]
    assert found.each("share_requested_tflops") == [(share, 31)]
    assert found.each("share_requested_vram_bytes") == [(share, 8 * GIB)]
    assert found.each("share_limit_compute_ratio") == [(share, 0.1)]
    assert found.each("share_limit_vram_bytes") == [(share, 8 * GIB)]
    assert found.value("claims") == found.value("shares") == 1


def test_a_share_without_limits_has_no_series_of_them() -> None:
    found = scrape(node_view(shares=(share_view("a", limit=None),)))

    assert len(found.each("share_info")) == 1
    assert found.each("share_limit_compute_ratio") == []
    assert found.each("share_limit_vram_bytes") == []


def test_a_claim_of_several_pods_names_all_of_them() -> None:
    found = scrape(node_view(shares=(share_view("a", pods=("p1", "p2")),)))

    assert [labels["pod"] for labels, _ in found.each("share_info")] == ["p1,p2"]


def test_shares_by_enforcement() -> None:
    broken = current(verdicts.not_enforced(verdicts.LIMITER_MISSING, "text"))
    shares = (share_view("a", enforcement=broken), share_view("b"), share_view("c"))

    found = scrape(node_view(shares=shares))

    assert found.values("shares_by_enforcement", "state") == {
        "Enforced": 0,
        "NotEnforced": 1,
        "Unknown": 2,
    }


@pytest.mark.parametrize(("most", "shown"), [(0, 0), (2, 2), (3, 3), (9, 3)])
def test_shares_beyond_the_bound_are_only_counted(most: int, shown: int) -> None:
    shares = (share_view("a"), share_view("b"), share_view("c"))

    found = scrape(node_view(shares=shares), most_shares=most)

    assert len(found.each("share_info")) == shown
    assert len(found.each("share_limit_vram_bytes")) == shown
    assert found.value("shares") == 3
    assert found.value("shares_left_out") == 3 - shown


def test_shares_with_the_same_labels_have_one_series() -> None:
    old = ClaimRef(namespace="default", name="a", uid="uid-old")
    shares = (share_view("a", share_id=None), share_view("a", share_id=None, claim=old))

    found = scrape(node_view(shares=shares))

    assert len(found.each("share_info")) == 1
    assert found.value("shares_left_out") == 1
    assert found.value("claims") == 2


HOSTILE = (
    'quote"back\\slash',
    "new\nline",
    "\x1b[31mred",
    "\ud800",
    "tab\tnul\x00",
    "x" * 5000,
    "ünïcode-名前",
    '"} 1\ntensorfusion_dra_claims 99',
)


@pytest.mark.parametrize("text", HOSTILE)
def test_names_of_any_characters_stay_in_their_label(text: str) -> None:
    ref = ClaimRef(namespace=text, name=text, uid="uid")
    hostile = share_view(
        claim=ref, pods=(text,), request=text, share_id=text, gpu_uuid=text, device=text
    )
    trouble = Trouble(kind=Kind.XID, reason=text, text=text)
    card = card_view(
        uuid=text,
        device=text,
        product_name=text,
        model=text,
        driver_version=text,
        sickness=Sickness(worst=trouble, since=NOW),
    )

    found = scrape(node_view(cards=(card,), shares=(hostile,), pool=text))

    ((labels, _),) = found.each("share_info")
    assert labels["pod"] == labels["claim"] == labels["namespace"]
    assert labels["pod"].isprintable()
    assert len(labels["pod"]) <= 300
    assert found.value("claims") == 1
    assert found.value("card_consumed_tflops") == 0
