"""A collector of OpenTelemetry traces that takes them over HTTP, as protobuf."""

import gzip
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.waiting import PATIENCE_SECONDS

_PATH: Final = "/v1/traces"


class Collector:
    """What was received, and the status with which requests are answered.

    Attributes:
        url: Base URL.
        status: Answer to each request; spans are kept only with 200.
        refused: Number of requests with another answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = HTTPStatus.OK
        self.refused = 0
        self.requests: list[ExportTraceServiceRequest] = []

    def spans(self) -> list[Span]:
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def resource(self) -> Mapping[str, Any]:
        return attributes(self.requests[0].resource_spans[0].resource.attributes)


@contextmanager
def collector() -> Iterator[Collector]:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path != _PATH:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            status = found.status  # a test may change it once this request is counted
            if status is HTTPStatus.OK:
                found.requests.append(ExportTraceServiceRequest.FromString(body))
            else:
                found.refused += 1
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.daemon_threads = True
    found = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join(PATIENCE_SECONDS)
        server.server_close()


def attributes(found: Any) -> dict[str, Any]:
    pairs: list[KeyValue] = list(found)
    return {each.key: _value(each.value) for each in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, str(kind))
