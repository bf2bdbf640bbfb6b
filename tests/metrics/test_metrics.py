"""Metrics of the node plugin and the webhook: values, formats, and agreement with the documents."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from platform import python_version

import pytest

from tensorfusion_dra import metrics
from tensorfusion_dra.core.admission.claim_admission import CONFIG_PATHS
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.use import Used
from tensorfusion_dra.core.devices.gpu import Isolation, LeftOut
from tensorfusion_dra.core.devices.health import HealthProblem, ProblemKind, Unhealthy
from tensorfusion_dra.core.devices.slices import WriteReason
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.core.kubernetes.review import ReviewOutcome
from tensorfusion_dra.core.observed import (
    ApiServerView,
    CardAmounts,
    NodeView,
    PublishingView,
    RegistrationState,
    RegistrationView,
    StoreView,
    XidCount,
)
from tensorfusion_dra.metrics import NODE_PLUGIN, WEBHOOK, NodeMetrics, WebhookMetrics
from tests.metrics.scraped import OPENMETRICS, Scraped, from_openmetrics, from_text
from tests.support import documented_metrics, markdown
from tests.support.builders.node_views import (
    NOW,
    amounts,
    card_view,
    current,
    node_view,
    share_view,
)

Samples = Sequence[tuple[Mapping[str, str], float]]
"""Labels and value of each sample of a metric."""


def scraped(written: Callable[[str], tuple[str, bytes]]) -> Scraped:
    """Return what a scrape says, after checking that both formats say the same."""
    found = from_openmetrics(written(OPENMETRICS)[1])
    assert found.samples() == from_text(written("")[1]).samples()
    return found


def scrape(view: NodeView, *, most_shares: int = 100) -> Scraped:
    free = {"hami-core": 0.25}
    written = NodeMetrics().written
    return scraped(
        partial(written, view=lambda: view, most_shares=most_shares, tenant_files=lambda: free)
    )


SICK = Unhealthy(
    worst=HealthProblem(kind=ProblemKind.XID, reason="xid-79", text="XID 79"), since=NOW
)
USED = Used(vram_bytes=3 * GIB, sm_percent=20, processes=2)
FULL = node_view(
    cards=(card_view(unhealthy=SICK, foreign=USED),),
    shares=(share_view(used=USED, raised_percent=100),),
)
"""A node that has a sample of each metric."""
ONE = {"uuid": "GPU-0001"}
SHARE = {
    "namespace": "default",
    "claim": "a",
    "request": "gpu",
    "uuid": "GPU-0001",
    "share_id": "share-a",
}
ENFORCED = current(verdicts.enforced(verdicts.LIMITER_ACTIVE, "text"))
BROKEN = current(verdicts.not_enforced(verdicts.LIMITER_MISSING, "text"))
TWO_PODS = tuple(PodRef(namespace="default", name=name, uid=name) for name in ("p1", "p2"))
PUBLISHING = PublishingView(
    holds_lease=False,
    generation=7,
    slices=2,
    devices=65,
    writes={**dict.fromkeys(WriteReason, 0), WriteReason.START: 1, WriteReason.REPAIR: 4},
    dropped_gates=("DRADeviceTaints",),
    error="no answer",
)
FAILING = ApiServerView(
    last_success_at=NOW, last_error_at=datetime(2026, 3, 2, tzinfo=UTC), last_error="no"
)
XIDS = (
    XidCount(code=13, text="XID 13", marks_card=False, count=3, last_at=NOW),
    XidCount(code=79, text="XID 79", marks_card=True, count=1, last_at=NOW),
)


def states(label: str, **values: float) -> Samples:
    """Return one sample for each value of a label; underscores stand for hyphens."""
    return [({label: name.replace("_", "-")}, value) for name, value in values.items()]


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        pytest.param(
            node_view(cards=(card_view(consumed=amounts(tflops=100, gib=16)),)),
            {
                "node_info": [({"node": "node-01", "pool": "default/node-01"}, 1)],
                "build_info": [({"version": "1.2.3", "python_version": python_version()}, 1)],
                "cards_known": [({}, 1)],
                "card_physical_tflops": [(ONE, 312)],
                "card_physical_vram_bytes": [(ONE, 80 * GIB)],
                "card_capacity_tflops": [(ONE, 312)],
                "card_capacity_vram_bytes": [(ONE, 80 * GIB)],
                "card_consumed_tflops": [(ONE, 100)],
                "card_consumed_vram_bytes": [(ONE, 16 * GIB)],
                "card_free_tflops": [(ONE, 212)],
                "card_free_vram_bytes": [(ONE, 64 * GIB)],
                "card_oversubscription_ratio": [
                    ({**ONE, "resource": "tflops"}, 1),
                    ({**ONE, "resource": "vram"}, 1),
                ],
                "card_info": [
                    (
                        {
                            **ONE,
                            "device": "gpu-0001",
                            "model": "A100",
                            "product_name": "NVIDIA A100-SXM4-80GB",
                            "driver_version": "580.65.06",
                            "pci_bus_id": "0000:07:00.0",
                            "partition": "",
                            "parent_uuid": "",
                        },
                        1,
                    )
                ],
            },
            id="card",
        ),
        pytest.param(
            node_view(cards=(card_view("MIG-1", partition="1g.10gb", parent_uuid="GPU-0001"),)),
            {
                "card_info": [
                    (
                        {
                            "uuid": "MIG-1",
                            "device": "mig-1",
                            "model": "A100",
                            "product_name": "NVIDIA A100-SXM4-80GB",
                            "driver_version": "580.65.06",
                            "pci_bus_id": "0000:07:00.0",
                            "partition": "1g.10gb",
                            "parent_uuid": "GPU-0001",
                        },
                        1,
                    )
                ],
            },
            id="partition",
        ),
        pytest.param(
            node_view(cards=(card_view(capacity=amounts(tflops=468, gib=100), is_virtual=True),)),
            {
                "card_physical_tflops": [(ONE, 312)],
                "card_capacity_tflops": [(ONE, 468)],
                "card_capacity_vram_bytes": [(ONE, 100 * GIB)],
                "card_oversubscription_ratio": [
                    ({**ONE, "resource": "tflops"}, 1.5),
                    ({**ONE, "resource": "vram"}, 1.25),
                ],
            },
            id="oversubscribed card",
        ),
        pytest.param(
            node_view(
                cards=(
                    card_view(
                        physical=CardAmounts(vram_bytes=GIB), capacity=CardAmounts(vram_bytes=GIB)
                    ),
                )
            ),
            {"card_oversubscription_ratio": [({**ONE, "resource": "vram"}, 1)]},
            id="card without compute",
        ),
        pytest.param(
            node_view(cards=(card_view("GPU-0002", unhealthy=SICK),)),
            {
                "card_unhealthy_since_timestamp_seconds": [
                    ({"uuid": "GPU-0002", "reason": "xid-79"}, NOW.timestamp())
                ]
            },
            id="unhealthy card",
        ),
        pytest.param(
            node_view(
                cards=(),
                cards_missing="not read yet",
                pool="",
                left_out=(LeftOut(subject="gpu-2", reason="text"),),
            ),
            {"cards_known": [({}, 0)], "cards_left_out": [({}, 1)], "card_info": []},
            id="cards that are not known or left out",
        ),
        pytest.param(
            node_view(publishing=PUBLISHING),
            {
                "slices": [({}, 2)],
                "slice_devices": [({}, 65)],
                "slice_generation": [({}, 7)],
                "publishing_right": [({}, 0)],
                "publishing_failing": [({}, 1)],
                "slice_fields_dropped": states(
                    "feature_gate",
                    DRAConsumableCapacity=0,
                    DRADeviceBindingConditions=0,
                    DRADeviceTaints=1,
                ),
                "slice_writes_total": states(
                    "reason", start=1, devices=0, health=0, values=0, repair=4, retry=0
                ),
            },
            id="publishing",
        ),
        pytest.param(
            node_view(
                registration=RegistrationView(
                    state=RegistrationState.REFUSED, since=NOW, error="no"
                ),
                api_server=FAILING,
                store=StoreView(restored=2, damaged=3),
                shares_error="busy",
            ),
            {
                "kubelet_registration": states("state", waiting=0, registered=0, refused=1),
                "api_server_failing": [({}, 1)],
                "store_readable": [({}, 0)],
                "store_repairs_total": states("kind", restored=2),
                "store_damaged_records": [({}, 3)],
            },
            id="registration, API server and store",
        ),
        pytest.param(
            node_view(shares=(share_view("a", enforcement=ENFORCED),)),
            {
                "share_info": [({**SHARE, "isolation": "soft", "enforcement": "Enforced"}, 1)],
                "share_requested_tflops": [(SHARE, 31)],
                "share_requested_vram_bytes": [(SHARE, 8 * GIB)],
                "share_limit_compute_ratio": [(SHARE, 0.1)],
                "share_limit_vram_bytes": [(SHARE, 8 * GIB)],
                "claims": [({}, 1)],
                "shares": [({}, 1)],
            },
            id="share",
        ),
        pytest.param(
            node_view(shares=(share_view("a", limit=None),)),
            {
                "share_info": [({**SHARE, "isolation": "soft", "enforcement": "Unknown"}, 1)],
                "share_limit_compute_ratio": [],
                "share_limit_vram_bytes": [],
            },
            id="share without limits",
        ),
        pytest.param(
            node_view(shares=(share_view("a", pods=TWO_PODS),)),
            {
                "share_limit_vram_bytes": [(SHARE, 8 * GIB)],
                "share_pod_info": [
                    ({"namespace": "default", "claim": "a", "uuid": "GPU-0001", "pod": pod}, 1)
                    for pod in ("p1", "p2")
                ],
            },
            id="claim of several pods",
        ),
        pytest.param(
            node_view(shares=(share_view("a", raised_percent=100), share_view("b"))),
            {"share_raised_compute_ratio": [(SHARE, 1)]},
            id="share that uses idle compute",
        ),
        pytest.param(
            node_view(
                shares=(share_view("a", enforcement=BROKEN), share_view("b"), share_view("c"))
            ),
            {"shares_by_enforcement": states("state", Enforced=0, NotEnforced=1, Unknown=2)},
            id="shares by enforcement",
        ),
        pytest.param(
            node_view(shares=(share_view(used=USED, isolation=Isolation.PARTITIONED),)),
            {"share_used_vram_bytes": [(SHARE, 3 * GIB)], "share_used_compute_ratio": []},
            id="use of a partition, whose compute NVML does not know",
        ),
        pytest.param(
            FULL,
            {
                "share_used_vram_bytes": [(SHARE, 3 * GIB)],
                "share_used_compute_ratio": [(SHARE, 0.2)],
                "card_foreign_vram_bytes": [(ONE, 3 * GIB)],
                "card_foreign_processes": [(ONE, 2)],
                "tenant_files_free_ratio": [({"enforcer": "hami-core"}, 0.25)],
            },
            id="use of shares, of what belongs to none, and of folders that containers write to",
        ),
    ],
)
def test_node_has_samples(view: NodeView, expected: Mapping[str, Samples]) -> None:
    found = scrape(view)

    for name, samples in expected.items():
        assert sorted(found.each(name), key=str) == sorted(samples, key=str)


def test_every_state_of_health_and_every_known_xid_has_a_sample() -> None:
    found = scrape(node_view(cards=(card_view(), card_view("GPU-0002", unhealthy=SICK, xids=XIDS))))

    known = {"healthy", *(kind.name.lower() for kind in ProblemKind)}
    for uuid, is_in in (("GPU-0001", "healthy"), ("GPU-0002", "xid")):
        states = found.values("card_health", "state", uuid=uuid)
        assert states == {state: float(state == is_in) for state in known}
    counts = found.values("card_xids_total", "xid", uuid="GPU-0002")
    assert {xid: count for xid, count in counts.items() if count} == {"13": 3, "79": 1}
    assert counts["48"] == 0


@pytest.mark.parametrize(("most", "shown"), [(0, 0), (2, 2), (3, 3), (9, 3)])
def test_shares_beyond_the_bound_are_only_counted(most: int, shown: int) -> None:
    view = node_view(shares=(share_view("a"), share_view("b"), share_view("c")))

    found = scrape(view, most_shares=most)

    of_shares = ("share_info", "share_limit_vram_bytes")
    assert [len(found.each(name)) for name in of_shares] == [shown, shown]
    assert (found.value("shares"), found.value("shares_left_out")) == (3, 3 - shown)


def test_shares_with_the_same_labels_have_one_series() -> None:
    old = ClaimRef(namespace="default", name="a", uid="uid-old")
    shares = (share_view("a", share_id=None), share_view("a", share_id=None, ref=old))

    found = scrape(node_view(shares=shares))

    assert len(found.each("share_info")) == 1
    assert (found.value("shares_left_out"), found.value("claims")) == (1, 2)


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

    ((labels, _),) = found.each("share_pod_info")
    assert labels["pod"] == labels["claim"] == labels["namespace"]
    assert labels["claim"] == found.each("share_info")[0][0]["claim"]
    assert labels["pod"].isprintable()
    assert len(labels["pod"]) <= 300
    assert found.value("claims") == 1
    assert found.value("card_consumed_tflops") == 0


PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)

OPEN, TEXT = "application/openmetrics-text; version=1.0.0", "text/plain; version=0.0.4"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (PROMETHEUS_3, OPEN),
        ("application/openmetrics-text", OPEN),
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        # Any other header gets an answer with a plain type of content.
        ("application/openmetrics-text;version=x", ""),
        ("application/openmetrics-text;version=1.0.0\r\n Set-Cookie: a=b", ""),
        ("application/openmetrics-text;version=9.\x1b[31m", ""),
        ("text/plain;version=" + "9" * 5000, ""),
        (";;;,,,===", ""),
    ],
)
def test_format_is_the_one_that_the_client_accepts(accept: str, expected: str) -> None:
    content_type, body = NodeMetrics().written(accept, view=node_view, most_shares=10)

    is_open = content_type.startswith(OPEN)
    parsed = from_openmetrics(body) if is_open else from_text(body)
    assert content_type.startswith(expected)
    assert re.fullmatch(r"[ -~]{20,200}; charset=utf-8(; [a-z=-]+)?", content_type)
    assert body.endswith(b"# EOF\n") is is_open
    assert parsed.value("cards_known") == 1


def check_documented(found: Scraped, process: str) -> None:
    rows = documented_metrics.listed(process)
    # Those of the process have the names that every Prometheus client gives them.
    assert [name for name in rows if not name.startswith(("tensorfusion_dra_", "process_"))] == []
    assert [each.name for each in found.families if not each.documentation] == []
    assert found.kinds() == {name: row.kind for name, row in rows.items()}
    assert found.label_names() == {name: row.labels for name, row in rows.items()}


def test_node_plugin_answers_what_is_documented() -> None:
    found = scrape(FULL)

    check_documented(found, documented_metrics.NODE_PLUGIN)
    assert scrape(node_view(cards=())).kinds() == found.kinds()


def test_every_value_of_the_labels_is_explained() -> None:
    values = {
        label: set(markdown.codes(cell))
        for label, cell in markdown.table(documented_metrics.PAGE, "labels")
    }

    assert values["share"] == documented_metrics.OF_SHARE
    assert values["`state` of a card"] == {"healthy", *(each.name.lower() for each in ProblemKind)}
    assert values["`reason` of slice writes"] == set(WriteReason)
    assert values["`outcome`"] == set(ReviewOutcome)


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
    return WebhookMetrics(("Pod", *CONFIG_PATHS), ReviewOutcome)


def scrape_webhook(metrics: WebhookMetrics, expires_at: datetime | None = END) -> Scraped:
    written = metrics.written
    return scraped(
        partial(written, version="1.2.3", expires_at=lambda: expires_at, api_server=ApiServerView)
    )


def test_webhook_answers_what_is_documented_and_every_known_label_set_exists_at_0() -> None:
    found = scrape_webhook(webhook_metrics())

    check_documented(found, documented_metrics.WEBHOOK)
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

    metrics.reviewed("Pod", ReviewOutcome.CHANGED, 0.004)
    metrics.reviewed("Pod", ReviewOutcome.CHANGED, 0.5)
    metrics.reviewed("DeviceClass", ReviewOutcome.DENIED, 0.001)
    metrics.refused(404)

    found = scrape_webhook(metrics)
    changed = {"kind": "Pod", "outcome": "changed"}
    for name, labels, value in (
        ("review_duration_seconds_count", changed, 2),
        ("review_duration_seconds_sum", changed, 0.504),
        ("review_duration_seconds_bucket", {**changed, "le": "0.004"}, 1),
        ("review_duration_seconds_count", {"kind": "DeviceClass", "outcome": "denied"}, 1),
        ("requests_refused_total", {"code": "404"}, 1),
    ):
        assert found.value(f"webhook_{name}", **labels) == value


def test_end_of_the_certificate() -> None:
    name = "webhook_certificate_expiry_timestamp_seconds"

    assert scrape_webhook(webhook_metrics()).value(name) == END.timestamp()
    assert scrape_webhook(webhook_metrics(), None).each(name) == []
