"""The metrics of the webhook: what it counts from its start, and its page."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from prometheus_client import Counter, Histogram

from tensorfusion_dra.core.admission.claim_admission import CONFIG_PATHS
from tensorfusion_dra.core.kubernetes.review import Outcome
from tensorfusion_dra.core.observed import ApiServerView
from tensorfusion_dra.metrics import prometheus

_KINDS: Final = ("Pod", *CONFIG_PATHS)
_ERRORS: Final = ("400", "404", "405", "411", "413", "414", "415", "431", "500", "501", "505")
"""Every status with which runtime.http_server and webhook.reviews refuse a request."""


class WebhookMetrics:
    """Counts of the webhook, and their exposition; safe for all threads."""

    def __init__(self) -> None:
        self._reviews: Final = prometheus.new(
            Histogram,
            "webhook_review_duration_seconds",
            "Time of one review.",
            ("kind", "outcome"),
            [(kind, outcome.value) for kind in _KINDS for outcome in Outcome],
            buckets=prometheus.CALL_SECONDS,
        )
        self._refused: Final = prometheus.new(
            Counter,
            "webhook_requests_refused",
            "Requests that got an HTTP error instead of a verdict.",
            ("code",),
            ((code,) for code in _ERRORS),
        )

    def reviewed(self, kind: str, outcome: Outcome, seconds: float) -> None:
        """Count a review that has ended, as `on_review` of webhook.reviews."""
        self._reviews.labels(kind, outcome.value).observe(seconds)

    def refused(self, status: int) -> None:
        """Count a request that got an HTTP error instead of a verdict."""
        self._refused.labels(str(status)).inc()

    def written(
        self,
        accept: str,
        *,
        version: str,
        expires_at: Callable[[], datetime | None],
        api_server: Callable[[], ApiServerView],
    ) -> tuple[str, bytes]:
        """Return all metrics as text, with its content type.

        Args:
            accept: The Accept header of the request.
            version: Of this driver.
            expires_at: Returns when the certificate in use expires; None if that is unknown.
            api_server: Returns the record of the requests to the API server.
        """
        expires = expires_at()
        found = [
            *self._reviews.collect(),
            *self._refused.collect(),
            prometheus.gauge(
                "webhook_certificate_expiry_timestamp_seconds",
                "When the certificate in use expires.",
                (),
                [((), expires.timestamp())] if expires else [],
            ),
            prometheus.api_requests(prometheus.WEBHOOK, api_server().requests),
            *prometheus.of_process(version),
        ]
        return prometheus.written(found, accept=accept)
