"""Scrapes while claims are prepared."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.operation import EndedOperation, OperationKind, Result, Stage
from tensorfusion_dra.metrics.node_metrics import NodeMetrics
from tests.metrics.scraped import OPENMETRICS, Scraped, from_openmetrics
from tests.support.builders.node_views import node_view
from tests.support.waiting import PATIENCE_SECONDS

NAME = "prepare_duration_seconds_count"


def prepared(seconds: float) -> EndedOperation:
    return EndedOperation(
        kind=OperationKind.PREPARE,
        claim=ClaimRef(namespace="default", name="a", uid="uid-a"),
        result=Result.SUCCESS,
        error="",
        entered=[(Stage.QUEUE, 0.0)],
        ended=seconds,
        seconds_by_stage={Stage.READ: seconds / 2, Stage.FLUSH: seconds / 2},
    )


def scrape(metrics: NodeMetrics) -> Scraped:
    _, body = metrics.written(node_view, accept=OPENMETRICS, most_shares=10)
    return from_openmetrics(body)  # refuses buckets that do not add up


def test_each_scrape_shows_one_moment_and_none_costs_an_operation() -> None:
    metrics, scraped_once = NodeMetrics(), Event()

    def prepare() -> int:
        done = 0
        while done < 100 or not scraped_once.wait(0):
            metrics.operations.operation_ended(prepared(done % 7 / 100))
            done += 1
        return done

    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(prepare) for _ in range(4)]
        try:
            totals = [scrape(metrics).value(NAME, result="success")]
        finally:
            scraped_once.set()
        totals += [scrape(metrics).value(NAME, result="success") for _ in range(4)]
        expected = sum(call.result(PATIENCE_SECONDS) for call in calls)

    assert totals == sorted(totals)
    last = scrape(metrics)
    assert last.value(NAME, result="success") == expected
    assert last.value("prepare_stage_duration_seconds_count", stage="flush") == expected
