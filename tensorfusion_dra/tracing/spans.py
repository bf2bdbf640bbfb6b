"""OpenTelemetry traces: a span for each operation on a claim, with a child for each of its stages.

Operations wait in a bounded queue. A thread makes spans of them and sends these over OTLP/HTTP, so
a prepare costs no more than a place in the queue, whatever the collector does. What does not fit or
cannot be sent is lost and counted in the log.

Not the SDK's batch processor: it makes spans in the call's thread, and its shutdown may take 30 s.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Final

import requests
import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.util.types import AttributeValue

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.operation import EndedOperation, Result
from tensorfusion_dra.driver.log_throttle import LogThrottle
from tensorfusion_dra.driver.wakeup import Wakeup

log = structlog.get_logger()

BATCH_SECONDS: Final = 5.0
"""How long an operation waits at most before it is sent."""
_BATCH: Final = 64
"""Operations that are sent at once, before that time; about 500 spans."""
_MOST_WAITING: Final = 2_048
_SEND_SECONDS: Final = 2.0
"""Time for sending a batch, with its retries. A stop waits for at most two batches."""
_SCOPE: Final = "tensorfusion_dra"


class _Spans(SpanProcessor):
    """Collector of the spans that have ended."""

    def __init__(self) -> None:
        self._ended: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._ended.append(span)

    def take(self) -> Sequence[ReadableSpan]:
        """Return the spans that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended


class _FirstWords(logging.Handler):
    """Keeper of the first line of a library's log about a batch, which has the cause of a failure.

    The lines that follow only say that it was tried in vain. None of them fills our log.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self._text = self._text or record.getMessage()

    def take(self) -> str:
        """Return the text, and forget it."""
        text, self._text = self._text, ""
        return text


class Traces:
    """Sender of the spans of operations; implements ports.operations.OperationObserver."""

    def __init__(
        self,
        endpoint: str,
        resource: Mapping[str, str],
        *,
        batch_seconds: float = BATCH_SECONDS,
        most_waiting: int = _MOST_WAITING,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Send nothing yet. Headers, CA and sampler come from OpenTelemetry's own variables.

        Args:
            endpoint: Base URL of an OTLP/HTTP collector.
            resource: Attributes of this process.
            batch_seconds: Time between two batches.
            most_waiting: Operations that may wait.
            now_ns: Returns the wall clock's time, in nanoseconds since 1970.
        """
        self._batch_seconds = batch_seconds
        self._most_waiting = most_waiting
        self._now_ns = now_ns
        session = requests.Session()
        session.trust_env = False  # no ~/.netrc, and no proxy: a collector is in the cluster
        # Used by run()'s thread alone.
        self._exporter: SpanExporter = OTLPSpanExporter(
            f"{endpoint.rstrip('/')}/v1/traces", timeout=_SEND_SECONDS, session=session
        )
        provider = TracerProvider(resource=Resource.create(dict(resource)), shutdown_on_exit=False)
        self._spans = _Spans()
        provider.add_span_processor(self._spans)
        self._tracer = provider.get_tracer(_SCOPE)
        # Only now: a warning about a variable goes to our log (library_warned).
        self._words = _FirstWords()
        library = logging.getLogger("opentelemetry")
        library.addHandler(self._words)
        library.propagate = False
        self._throttle = LogThrottle()
        self._lost = 0  # operations since the last line about them
        self._wakeup = Wakeup()
        self._lock = Lock()  # guards the next two
        self._waiting: deque[tuple[EndedOperation, int]] = deque()  # with the time of its end
        self._left_out = 0

    def operation_ended(self, operation: EndedOperation) -> None:
        """Queue an operation; leave it out if too many wait."""
        with self._lock:
            if len(self._waiting) >= self._most_waiting:
                self._left_out += 1
                return
            self._waiting.append((operation, self._now_ns()))
            is_batch = len(self._waiting) % _BATCH == 0
        if is_batch:
            self._wakeup.wake()

    def stop(self) -> None:
        """End run() once the operations that wait were sent, or could not be."""
        self._wakeup.stop()

    def run(self) -> None:
        """Send until stopped."""
        while self._wakeup.next_round():
            self._wakeup.wait(self._batch_seconds)
            self._send()
        self._send()
        self._exporter.shutdown()

    def _send(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, deque()
            left_out, self._left_out = self._left_out, 0
        for operation, ended_ns in batch:
            self._make_spans(operation, ended_ns)
        spans = self._spans.take()
        is_sent = not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS
        error = self._words.take()
        if is_sent:  # then these are about a try that failed before
            error = f"found {self._most_waiting} waiting operations, expected fewer"
        self._lost += left_out + (0 if is_sent else len(batch))
        if not is_sent or left_out:
            if self._throttle.is_new("lost"):  # the error's own text differs each time
                log.warning("traces_lost", operations=self._lost, error=error)
                self._lost = 0
        elif spans and self._throttle.over():
            log.info("traces_resumed", lost=self._lost)
            self._lost = 0

    def _make_spans(self, operation: EndedOperation, ended_ns: int) -> None:
        def at(seconds: float) -> int:
            return ended_ns - round((operation.ended - seconds) * 1e9)

        span = self._tracer.start_span(
            f"{operation.kind.value} claim",
            context=Context(),
            attributes=dict(_attributes(operation)),
            start_time=at(operation.entered[0][1]),
        )
        context = trace.set_span_in_context(span, Context())
        for each in operation.course():
            child = self._tracer.start_span(
                each.stage.value, context=context, start_time=at(each.began)
            )
            child.end(at(each.ended))
        if operation.result is not Result.SUCCESS:
            span.set_status(trace.Status(trace.StatusCode.ERROR, operation.error))
        span.end(ended_ns)


def _attributes(operation: EndedOperation) -> Iterator[tuple[str, AttributeValue]]:
    """Yield the attributes of an operation; the names of OpenTelemetry come first."""
    yield names.TRACE_NAMESPACE, operation.claim.namespace
    if operation.result is not Result.SUCCESS:
        yield names.TRACE_ERROR, operation.result.value
    prepared = operation.prepared
    if prepared is not None and prepared.pods:
        yield names.TRACE_POD_NAME, prepared.pods[0].name
        yield names.TRACE_POD_UID, prepared.pods[0].uid
    yield names.TRACE_CLAIM_NAME, operation.claim.name
    yield names.TRACE_CLAIM_UID, operation.claim.uid
    if prepared is not None:
        yield names.TRACE_DEVICES, tuple(share.device for share in prepared.shares)
        yield names.TRACE_FROM_RECORD, operation.from_record
