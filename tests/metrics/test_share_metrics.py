"""What the node plugin's metrics say about the shares of a node, whatever their names are."""

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcement import verdict
from tensorfusion_dra.core.devices.health import Kind, Sickness, Trouble
from tests.metrics.scraped import scrape
from tests.support.builders.node_views import (
    GIB,
    NOW,
    card_view,
    node_view,
    share_view,
    standing,
)


def test_a_share_with_its_holder_and_limits() -> None:
    enforced = standing(verdict.enforced(verdict.LIMITER_ACTIVE, "text"))

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
    broken = standing(verdict.not_enforced(verdict.LIMITER_MISSING, "text"))
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
