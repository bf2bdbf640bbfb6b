"""What the webhook's metrics say."""

from datetime import UTC, datetime

from tensorfusion_dra.core.kubernetes.review import Outcome
from tensorfusion_dra.metrics.webhook_metrics import WebhookMetrics
from tests.metrics.scraped import OPENMETRICS, Scraped, from_openmetrics, from_text
from tests.support import documented_metrics

END = datetime(2027, 2, 28, tzinfo=UTC)


def scrape(metrics: WebhookMetrics, expires_at: datetime | None = END) -> Scraped:
    """Return what a scrape says, after checking that both formats say the same."""
    answers = [
        metrics.written(accept=accept, version="1.2.3", expires_at=lambda: expires_at)[1]
        for accept in (OPENMETRICS, "")
    ]
    found = from_openmetrics(answers[0])
    assert found.samples() == from_text(answers[1]).samples()
    return found


def test_webhook_answers_what_is_documented() -> None:
    rows = documented_metrics.table(documented_metrics.WEBHOOK)

    found = scrape(WebhookMetrics())

    assert found.kinds() == {name: row.kind for name, row in rows.items()}
    assert found.label_names() == {name: row.labels for name, row in rows.items()}


def test_every_known_label_set_exists_at_0() -> None:
    found = scrape(WebhookMetrics())

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
    metrics = WebhookMetrics()

    metrics.reviewed("Pod", Outcome.CHANGED, 0.004)
    metrics.reviewed("Pod", Outcome.CHANGED, 0.5)
    metrics.reviewed("DeviceClass", Outcome.DENIED, 0.001)
    metrics.refused(404)

    found = scrape(metrics)
    name = "webhook_review_duration_seconds"
    assert found.value(f"{name}_count", kind="Pod", outcome="changed") == 2
    assert found.value(f"{name}_sum", kind="Pod", outcome="changed") == 0.504
    assert found.value(f"{name}_bucket", kind="Pod", outcome="changed", le="0.004") == 1
    assert found.value(f"{name}_count", kind="DeviceClass", outcome="denied") == 1
    assert found.values("webhook_requests_refused_total", "code")["404"] == 1


def test_end_of_the_certificate() -> None:
    name = "webhook_certificate_expiry_timestamp_seconds"

    assert scrape(WebhookMetrics()).value(name) == END.timestamp()
    assert scrape(WebhookMetrics(), None).each(name) == []
