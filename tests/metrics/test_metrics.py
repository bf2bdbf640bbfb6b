"""Metrics of the node plugin and the webhook: values, formats, and agreement with the documents."""

import re
from datetime import UTC, datetime

import pytest

from tensorfusion_dra import metrics
from tensorfusion_dra.core.admission.claim_admission import CONFIG_PATHS
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.use import Used
from tensorfusion_dra.core.devices.gpu import LeftOut
from tensorfusion_dra.core.devices.health import HealthProblem, ProblemKind, Unhealthy
from tensorfusion_dra.core.devices.slices import WriteReason
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.core.kubernetes.review import Outcome
from tensorfusion_dra.core.observed import (
    Amounts,
    ApiServerView,
    PublishingView,
    RegistrationState,
    RegistrationView,
    StoreView,
    XidCount,
)
from tensorfusion_dra.metrics import NODE_PLUGIN, WEBHOOK, NodeMetrics, WebhookMetrics
from tests.metrics.scraped import OPENMETRICS, Scraped, from_openmetrics, from_text, scrape
from tests.support import documented_metrics
from tests.support.builders.node_views import (
    NOW,
    amounts,
    card_view,
    current,
    node_view,
    share_view,
)


def test_a_card_with_its_amounts() -> None:
    card = card_view(consumed=amounts(tflops=100, gib=16))

    found = scrape(node_view(cards=(card,)))

    expected = {
        "card_physical_tflops": 312,
        "card_physical_vram_bytes": 80 * GIB,
        "card_capacity_tflops": 312,
        "card_capacity_vram_bytes": 80 * GIB,
        "card_consumed_tflops": 100,
        "card_consumed_vram_bytes": 16 * GIB,
        "card_free_tflops": 212,
        "card_free_vram_bytes": 64 * GIB,
    }
    assert {name: found.value(name, uuid="GPU-0001") for name in expected} == expected
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

    expected = {
        "card_physical_tflops": 312,
        "card_capacity_tflops": 468,
        "card_capacity_vram_bytes": 100 * GIB,
    }
    assert {name: found.value(name) for name in expected} == expected
    assert found.values("card_oversubscription_ratio", "resource") == {"tflops": 1.5, "vram": 1.25}


def test_a_card_without_compute_has_no_ratio_of_it() -> None:
    card = card_view(physical=Amounts(vram_bytes=GIB), capacity=Amounts(vram_bytes=GIB))

    found = scrape(node_view(cards=(card,)))

    assert found.values("card_oversubscription_ratio", "resource") == {"vram": 1}


def test_health_of_cards() -> None:
    trouble = HealthProblem(
        kind=ProblemKind.XID, reason="xid-79", text="XID 79: GPU has fallen off the bus"
    )
    sick = card_view("GPU-0002", unhealthy=Unhealthy(worst=trouble, since=NOW))

    found = scrape(node_view(cards=(card_view(), sick)))

    troubles = {"source", "xid", "memory", "recovery", "unreadable", "lost", "vanished", "replaced"}
    states = {"healthy", *troubles}
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
        holds_lease=False,
        generation=7,
        slices=2,
        devices=65,
        writes=writes,
        dropped_gates=("DRADeviceTaints",),
        error="no answer",
    )

    found = scrape(node_view(publishing=view))

    expected = {
        "slices": 2,
        "slice_devices": 65,
        "slice_generation": 7,
        "publishing_right": 0,
        "publishing_failing": 1,
    }
    assert {name: found.value(name) for name in expected} == expected
    assert found.values("slice_fields_dropped", "feature_gate") == {
        "DRAConsumableCapacity": 0,
        "DRADeviceBindingConditions": 0,
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
        store=StoreView(restored=2, damaged=3),
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
    assert found.values("ledger_repairs_total", "kind") == {"restored": 2}
    assert found.value("ledger_damaged_records") == 3


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
    expected = {
        "share_requested_tflops": [(share, 31)],
        "share_requested_vram_bytes": [(share, 8 * GIB)],
        "share_limit_compute_ratio": [(share, 0.1)],
        "share_limit_vram_bytes": [(share, 8 * GIB)],
    }
    assert {name: found.each(name) for name in expected} == expected
    assert found.value("claims") == found.value("shares") == 1


def test_a_share_without_limits_has_no_series_of_them() -> None:
    found = scrape(node_view(shares=(share_view("a", limit=None),)))

    assert len(found.each("share_info")) == 1
    assert found.each("share_limit_compute_ratio") == []
    assert found.each("share_limit_vram_bytes") == []


def test_a_claim_of_several_pods_names_all_of_them() -> None:
    pods = tuple(PodRef(namespace="default", name=name, uid=name) for name in ("p1", "p2"))

    found = scrape(node_view(shares=(share_view("a", pods=pods),)))

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
    shares = (share_view("a", share_id=None), share_view("a", share_id=None, ref=old))

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
    pod = PodRef(namespace=text, name=text, uid="uid")
    hostile = share_view(
        ref=ref, pods=(pod,), request=text, share_id=text, gpu_uuid=text, device=text
    )
    trouble = HealthProblem(kind=ProblemKind.XID, reason=text, text=text)
    card = card_view(
        text,
        product_name=text,
        model=text,
        driver_version=text,
        unhealthy=Unhealthy(worst=trouble, since=NOW),
    )

    found = scrape(node_view(cards=(card,), shares=(hostile,), pool=text))

    ((labels, _),) = found.each("share_info")
    assert labels["pod"] == labels["claim"] == labels["namespace"]
    assert labels["pod"].isprintable()
    assert len(labels["pod"]) <= 300
    assert found.value("claims") == 1
    assert found.value("card_consumed_tflops") == 0


PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def written(accept: str) -> tuple[str, bytes]:
    return NodeMetrics().written(accept, view=node_view, most_shares=10)


@pytest.mark.parametrize("accept", [PROMETHEUS_3, "application/openmetrics-text"])
def test_openmetrics_if_the_client_accepts_it(accept: str) -> None:
    content_type, body = written(accept)

    assert content_type.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert body.endswith(b"# EOF\n")
    assert from_openmetrics(body).value("cards_known") == 1


@pytest.mark.parametrize("accept", ["", "*/*", "text/html", "text/plain;version=0.0.4"])
def test_text_format_for_all_others(accept: str) -> None:
    content_type, body = written(accept)

    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b"# EOF" not in body
    assert from_text(body).value("cards_known") == 1


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=x",
        "application/openmetrics-text;version=1.0.0\r\n Set-Cookie: a=b",
        "application/openmetrics-text;version=9.\x1b[31m",
        "text/plain;version=" + "9" * 5000,
        ";;;,,,===",
    ],
)
def test_any_accept_header_gets_an_answer_with_a_plain_content_type(accept: str) -> None:
    content_type, body = written(accept)

    assert content_type.isprintable()
    assert len(content_type) < 200
    assert b"tensorfusion_dra_cards_known 1.0\n" in body


SICK = Unhealthy(
    worst=HealthProblem(kind=ProblemKind.XID, reason="xid-79", text="XID 79"), since=NOW
)
USED = Used(vram_bytes=3 * GIB, sm_percent=20, processes=2)
FULL = node_view(cards=(card_view(unhealthy=SICK, foreign=USED),), shares=(share_view(used=USED),))
"""A node that has a sample of each metric."""
CODE = re.compile(r"`([^`]+)`")


def words(heading: str) -> set[str]:
    """Return the first column of the tables in a section."""
    start = documented_metrics.PAGE.index(f"\n## {heading}\n")
    end = documented_metrics.PAGE.find("\n## ", start + 1)
    section = documented_metrics.PAGE[start : None if end < 0 else end]
    return set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE))


def test_node_plugin_answers_what_is_documented() -> None:
    rows = documented_metrics.table(documented_metrics.NODE_PLUGIN)

    found = scrape(FULL)

    assert found.kinds() == {name: row.kind for name, row in rows.items()}
    assert found.label_names() == {name: row.labels for name, row in rows.items()}


def test_an_empty_node_answers_the_same_metrics() -> None:
    rows = documented_metrics.table(documented_metrics.NODE_PLUGIN)

    assert scrape(node_view(cards=())).kinds() == {name: row.kind for name, row in rows.items()}


def test_use_of_shares_and_of_what_belongs_to_none() -> None:
    found = scrape(FULL)

    assert found.value("share_used_vram_bytes") == 3 * GIB
    assert found.value("share_used_compute_ratio") == 0.2
    assert found.value("card_foreign_vram_bytes") == 3 * GIB
    assert found.value("card_foreign_processes") == 2


def test_every_name_has_the_prefix_and_a_meaning() -> None:
    rows = documented_metrics.table(documented_metrics.NODE_PLUGIN)

    assert [name for name in rows if not name.startswith("tensorfusion_dra_")] == []
    assert [name for name, row in rows.items() if not row.meaning] == []


def test_every_value_of_the_labels_is_explained() -> None:
    health = documented_metrics.PAGE[documented_metrics.PAGE.index("## Health of a card") :]

    assert words("Reasons of slice writes") == set(WriteReason)
    for kind in ProblemKind:
        assert f"`{kind.name.lower()}`" in health


@pytest.mark.parametrize("known", [NODE_PLUGIN, WEBHOOK])
def test_known_requests_exist_at_0(known: tuple[tuple[str, str], ...]) -> None:
    family = metrics.api_requests(known, {("brew", "other", "200"): 1})

    found = {tuple(sample.labels.values()): sample.value for sample in family.samples}
    assert found.pop(("brew", "other", "200")) == 1
    assert set(found.values()) == {0}
    assert {(verb, resource) for verb, resource, _ in found} == set(known)
    codes = {"200", "401", "403", "404", "409", "429", "500", "503", "none"}
    assert {code for *request, code in found if request == ["get", "pods"]} == codes


END = datetime(2027, 2, 28, tzinfo=UTC)


def webhook_metrics() -> WebhookMetrics:
    return WebhookMetrics(("Pod", *CONFIG_PATHS), Outcome)


def scrape_webhook(metrics: WebhookMetrics, expires_at: datetime | None = END) -> Scraped:
    """Return what a scrape says, after checking that both formats say the same."""
    answers = [
        metrics.written(
            accept, version="1.2.3", expires_at=lambda: expires_at, api_server=ApiServerView
        )[1]
        for accept in (OPENMETRICS, "")
    ]
    found = from_openmetrics(answers[0])
    assert found.samples() == from_text(answers[1]).samples()
    return found


def test_webhook_answers_what_is_documented() -> None:
    rows = documented_metrics.table(documented_metrics.WEBHOOK)

    found = scrape_webhook(webhook_metrics())

    assert found.kinds() == {name: row.kind for name, row in rows.items()}
    assert found.label_names() == {name: row.labels for name, row in rows.items()}


def test_every_known_label_set_exists_at_0() -> None:
    found = scrape_webhook(webhook_metrics())

    reviews = found.each("webhook_review_duration_seconds_count")
    assert {value for _, value in reviews} == {0}
    assert {(labels["kind"], labels["outcome"]) for labels, _ in reviews} == {
        (kind, outcome)
        for kind in ("Pod", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass")
        for outcome in ("changed", "passed", "denied", "unavailable", "failed")
    }
    assert set(found.values("webhook_requests_refused_total", "code").values()) == {0}
    assert found.value("api_requests_total", verb="list", resource="gpupools", code="200") == 0


def test_reviews_by_kind_and_outcome_with_their_time() -> None:
    metrics = webhook_metrics()

    metrics.reviewed("Pod", Outcome.CHANGED, 0.004)
    metrics.reviewed("Pod", Outcome.CHANGED, 0.5)
    metrics.reviewed("DeviceClass", Outcome.DENIED, 0.001)
    metrics.refused(404)

    found = scrape_webhook(metrics)
    name = "webhook_review_duration_seconds"
    assert found.value(f"{name}_count", kind="Pod", outcome="changed") == 2
    assert found.value(f"{name}_sum", kind="Pod", outcome="changed") == 0.504
    assert found.value(f"{name}_bucket", kind="Pod", outcome="changed", le="0.004") == 1
    assert found.value(f"{name}_count", kind="DeviceClass", outcome="denied") == 1
    assert found.values("webhook_requests_refused_total", "code")["404"] == 1


def test_end_of_the_certificate() -> None:
    name = "webhook_certificate_expiry_timestamp_seconds"

    assert scrape_webhook(webhook_metrics()).value(name) == END.timestamp()
    assert scrape_webhook(webhook_metrics(), None).each(name) == []


def test_free_part_of_folders_that_containers_write_to() -> None:
    assert scrape(FULL).each("tenant_files_free_ratio") == [({"enforcer": "hami-core"}, 0.25)]
