"""Traces of operations, received by a real OTLP/HTTP collector."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from threading import Thread
from typing import Any, Final

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.operation import (
    EndedOperation,
    OperationKind,
    Result,
    Stage,
    seconds_by_stage,
)
from tensorfusion_dra.tracing.spans import Traces
from tests.support.builders.prepared_claims import limit, prepared_claim, prepared_share
from tests.support.otlp_collector import Collector, attributes, collector
from tests.support.waiting import PATIENCE_SECONDS, eventually

END_NS: Final = 1_700_000_000_000_000_000
RESOURCE: Final = {"service.name": "tensorfusion-dra", "k8s.node.name": "node-01"}


@pytest.fixture
def received() -> Iterator[Collector]:
    with collector() as found:
        yield found


@contextmanager
def sending(traces: Traces) -> Iterator[None]:
    thread = Thread(target=traces.run)
    thread.start()
    try:
        yield
    finally:
        traces.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def traces_to(url: str, **changes: Any) -> Traces:
    return Traces(url, RESOURCE, now_ns=lambda: END_NS, **changes)


def operation(**changes: Any) -> EndedOperation:
    entered = [(Stage.QUEUE, 10.0), (Stage.READ, 10.5), (Stage.ADMIT, 12.5), (Stage.FLUSH, 12.75)]
    claim = prepared_claim(prepared_share(0, limit(25, 20)))
    facts: dict[str, Any] = {
        "kind": OperationKind.PREPARE,
        "claim": claim.ref,
        "result": Result.SUCCESS,
        "error": "",
        "entered": entered,
        "ended": 13.0,
        "seconds_by_stage": seconds_by_stage(entered, 13.0),
        "prepared": claim,
        **changes,
    }
    return EndedOperation(**facts)


def seconds(span: Span) -> tuple[float, float]:
    """Return start and end, relative to the end of the operation."""
    start, end = span.start_time_unix_nano - END_NS, span.end_time_unix_nano - END_NS
    return start / 1e9, end / 1e9


def test_operation_is_a_span_with_a_child_for_each_stage(received: Collector) -> None:
    traces, ended = traces_to(received.url), operation()

    with sending(traces):
        traces.operation_ended(ended)

    (root,) = [span for span in received.spans() if not span.parent_span_id]
    children = [span for span in received.spans() if span.parent_span_id]
    assert (root.name, seconds(root)) == ("prepare claim", (-3.0, 0.0))
    assert {child.parent_span_id for child in children} == {root.span_id}
    assert {child.trace_id for child in children} == {root.trace_id}
    assert {child.name: seconds(child) for child in children} == {
        "queue": (-3.0, -2.5),
        "read": (-2.5, -0.5),
        "admit": (-0.5, -0.25),
        "flush": (-0.25, 0.0),
    }
    assert ended.prepared is not None
    (pod,) = ended.prepared.pods
    assert attributes(root.attributes) == {
        "k8s.namespace.name": ended.claim.namespace,
        "k8s.pod.name": pod.name,
        "k8s.pod.uid": pod.uid,
        "tensor_fusion.claim.name": ended.claim.name,
        "tensor_fusion.claim.uid": ended.claim.uid,
        "tensor_fusion.devices": [ended.prepared.shares[0].device],
        "tensor_fusion.from_record": False,
    }
    assert RESOURCE.items() <= received.resource().items()


def test_failed_operation_is_a_span_with_its_error(received: Collector) -> None:
    traces = traces_to(received.url)

    with sending(traces):
        traces.operation_ended(
            operation(result=Result.NO_ROOM, error="ledger: the disk is full", prepared=None)
        )

    (root,) = [span for span in received.spans() if not span.parent_span_id]
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert root.status.message == "ledger: the disk is full"
    assert attributes(root.attributes)["error.type"] == "no_room"


def test_operations_are_traces_of_their_own(received: Collector) -> None:
    traces = traces_to(received.url)

    with sending(traces):
        for _ in range(3):
            traces.operation_ended(operation())

    assert len({span.trace_id for span in received.spans()}) == 3
    assert len(received.spans()) == 3 * 5


def test_many_operations_are_sent_before_the_time_of_a_batch(received: Collector) -> None:
    traces = traces_to(received.url)

    with sending(traces):
        for _ in range(64):
            traces.operation_ended(operation())
        assert eventually(lambda: len(received.spans()) == 64 * 5, PATIENCE_SECONDS)


def test_outage_of_the_collector_is_logged_once_and_ends_with_a_line(received: Collector) -> None:
    received.status = HTTPStatus.BAD_REQUEST  # the library tries only 429 and 5xx again
    traces = traces_to(received.url, batch_seconds=0.01)

    with capture_logs() as logs, sending(traces):
        for number in (1, 2, 3):
            traces.operation_ended(operation())
            assert eventually(partial(_refused, received, number))
        received.status = HTTPStatus.OK
        traces.operation_ended(operation())
        assert eventually(lambda: len(received.spans()) == 5)

    lost, resumed = [line for line in logs if line["event"].startswith("traces_")]
    assert (lost["event"], lost["operations"]) == ("traces_lost", 1)
    assert "400" in lost["error"]
    assert (resumed["event"], resumed["lost"]) == ("traces_resumed", 2)


def _refused(received: Collector, number: int) -> bool:
    return received.refused == number


def test_collector_that_is_not_there_costs_only_its_traces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "nonsense")  # the library warns, and takes its own
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    traces = traces_to(url, batch_seconds=0.01)

    with capture_logs() as logs, sending(traces):
        traces.operation_ended(operation())
        assert eventually(lambda: bool(logs))

    (line,) = logs
    assert line["event"] == "traces_lost"
    assert "Connection refused" in line["error"]


def test_queue_is_bounded(received: Collector) -> None:
    traces = traces_to(received.url, most_waiting=2)
    for _ in range(5):
        traces.operation_ended(operation())

    with capture_logs() as logs, sending(traces):
        pass

    assert len(received.spans()) == 2 * 5
    (line,) = [line for line in logs if line["event"] == "traces_lost"]
    assert line["operations"] == 3
    assert line["error"] == "found 2 waiting operations, expected fewer"
