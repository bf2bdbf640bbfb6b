"""HTTP endpoint for liveness and readiness probes, and for pages such as the metrics.

Pages take more work than the answers to probes. So one is made at a time, a few requests wait for
that and others are refused, and probes find room beside them.
"""

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from threading import BoundedSemaphore, Lock
from typing import Final

import structlog

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.runtime.http_server import (
    PageServer,
    Request,
    Respond,
    Response,
    text_response,
)
from tensorfusion_dra.runtime.supervisor import Supervisor

log = structlog.get_logger()

_REMEMBERED_SECONDS: Final = 1.0
"""Time for which a result is reused, so that frequent probes cost no work."""
_METRICS: Final = "/metrics"
_ASKING: Final = 16
"""Requests for pages at a time, a quarter of the server's threads."""

Page = Respond
"""Answers requests for one path, from any thread. If it raises, the answer is 500."""
Written = Callable[[str], tuple[str, bytes]]
"""Returns content type and text of all metrics for an Accept header."""


class Probe:
    """Probe that runs at most once a second and reuses its result; safe for all threads."""

    def __init__(self, name: str, question: Callable[[], None]) -> None:
        """Args:
        question: Returns if all is well, else raises RetryableError.
        """
        self._name: Final = name
        self._question: Final = question
        self._lock: Final = Lock()  # guards all below
        self._reason = ""
        self._last_run = float("-inf")

    def reason(self) -> str:
        """Return the text of the error; empty if all is well."""
        with self._lock:
            if time.monotonic() - self._last_run > _REMEMBERED_SECONDS:
                before, self._reason = self._reason, ""
                try:
                    self._question()
                except RetryableError as error:
                    self._reason = str(error)
                if self._reason != before:
                    log.info("health_changed", part=self._name, error=self._reason or None)
                self._last_run = time.monotonic()
            return self._reason


class HealthEndpoint(PageServer):
    """HTTP server that answers each check's path with 200, or with 503 and the error text.

    Other paths may have pages, which answer for themselves.
    """

    def __init__(
        self,
        checks: Mapping[str, Callable[[], None]],
        pages: Mapping[str, Page] | None = None,
        *,
        address: str,
        setting: str = "health-address",
    ) -> None:
        """Answer requests from now on.

        Args:
            checks: By path.
            pages: By path.
            address: As 127.0.0.1:8081; without a host all addresses, with port 0 any port.
            setting: Name of its setting, for the error.

        Raises:
            InputError: The address cannot be bound.
        """
        self._checks: Final = {
            path: Probe(path.strip("/"), question) for path, question in checks.items()
        }
        self._pages: Final = dict(pages or {})
        self._one_page: Final = Lock()
        self._asking: Final = BoundedSemaphore(_ASKING)
        host, _, port = address.rpartition(":")
        super().__init__(self._respond, host=host.strip("[]"), port=int(port), setting=setting)

    def _respond(self, request: Request) -> Response:
        if request.method not in {"GET", "HEAD"}:
            return text_response(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET")
        check = self._checks.get(request.path)
        if check is not None:
            if reason := check.reason():
                return text_response(HTTPStatus.SERVICE_UNAVAILABLE, reason)
            return text_response(HTTPStatus.OK, "ok")
        if request.path not in self._pages:
            return text_response(
                HTTPStatus.NOT_FOUND,
                f"expected one of {', '.join((*self._checks, *self._pages))}",
            )
        return self._page(request)

    def _page(self, request: Request) -> Response:
        if not self._asking.acquire(blocking=False):
            return text_response(
                HTTPStatus.SERVICE_UNAVAILABLE, f"expected at most {_ASKING} requests at a time"
            )
        try:
            with self._one_page:
                return self._pages[request.path](request)
        except Exception as error:
            # A fault of a page must end neither the process nor the probes.
            log.error("page_failed", path=request.path, error=repr(error), exc_info=True)
            return text_response(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}, see the log"
            )
        finally:
            self._asking.release()


def serve(
    supervisor: Supervisor,
    checks: Mapping[str, Callable[[], None]],
    pages: Mapping[str, Page],
    written: Written,
    *,
    health_address: str,
    metrics_address: str,
) -> int | None:
    """Serve the checks and pages at one address, the metrics at theirs or there, until the stop.

    Args:
        written: Writes the metrics.
        health_address: As for HealthEndpoint; "" for none.
        metrics_address: The same.

    Returns:
        The port of the checks; None if they have none.

    Raises:
        InputError: An address cannot be bound.
    """

    def metrics(request: Request) -> Response:
        content_type, body = written(request.accept)
        return Response(body=body, content_type=content_type)

    if health_address and metrics_address == health_address:
        pages = {_METRICS: metrics, **pages}
    elif metrics_address:
        supervisor.on_stop(
            HealthEndpoint(
                {}, {_METRICS: metrics}, address=metrics_address, setting="metrics-address"
            ).stop
        )
    if not health_address:
        return None
    endpoint = HealthEndpoint(checks, pages, address=health_address)
    supervisor.on_stop(endpoint.stop)
    return endpoint.port
