"""The metrics of the webhook: what it counts from its start, and its page."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from tensorfusion_dra.core.admission.parameter_rules import CONFIG_PATHS
from tensorfusion_dra.core.kubernetes.review import Outcome
from tensorfusion_dra.metrics.api_requests import WEBHOOK, ApiRequests
from tensorfusion_dra.metrics.counts import CALL_SECONDS, Counter, Histogram

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_KINDS: Final = ("Pod", *CONFIG_PATHS)
_ERRORS: Final = ("400", "404", "405", "411", "413", "414", "415", "431", "500", "501", "505")
"""Every status with which webhook.server and webhook.reviews refuse a request."""


class WebhookMetrics:
    """Counts of the webhook, and their exposition; safe for all threads.

    It implements webhook.ports.ReviewObserver.

    Attributes:
        api_requests: Told of each request to the API server.
    """

    def __init__(self) -> None:
        self.api_requests: Final = ApiRequests(WEBHOOK)
        self._reviews: Final = Histogram(
            [(kind, outcome.value) for kind in _KINDS for outcome in Outcome], bounds=CALL_SECONDS
        )
        self._refused: Final = Counter((code,) for code in _ERRORS)

    def reviewed(self, kind: str, outcome: Outcome, seconds: float) -> None:
        self._reviews.add((kind, outcome.value), seconds)

    def refused(self, status: int) -> None:
        """Count a request that got an HTTP error instead of a verdict."""
        self._refused.add((str(status),))

    def written(
        self, *, accept: str, version: str, expires_at: Callable[[], datetime | None]
    ) -> tuple[str, bytes]:
        """Return all metrics as text, with its content type.

        Args:
            accept: The Accept header of the request.
            version: Of this driver.
            expires_at: Returns when the certificate in use expires; None if that is unknown.
        """
        # At the first scrape: a webhook that nobody scrapes does without prometheus_client.
        from tensorfusion_dra.metrics import exposition  # noqa: PLC0415

        return exposition.written(self._collected(version, expires_at()), accept=accept)

    def _collected(self, version: str, expires_at: datetime | None) -> "Iterator[Metric]":
        from tensorfusion_dra.metrics import exposition, families  # noqa: PLC0415

        yield families.histogram(
            "webhook_review_duration_seconds",
            "Time of one review.",
            ("kind", "outcome"),
            self._reviews,
        )
        yield families.counter(
            "webhook_requests_refused",
            "Requests that got an HTTP error instead of a verdict.",
            ("code",),
            self._refused.read(),
        )
        yield families.gauge(
            "webhook_certificate_expiry_timestamp_seconds",
            "When the certificate in use expires.",
            (),
            [((), expires_at.timestamp())] if expires_at else [],
        )
        yield families.api_requests(self.api_requests.counter)
        yield from exposition.of_process(version)
