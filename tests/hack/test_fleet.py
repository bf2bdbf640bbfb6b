"""Figures of a fleet of node plugins, by hack/fleet."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.fleet import metrics, phases, report, traffic
from benchmark.fleet.metrics import Metrics
from benchmark.fleet.processes import Bytes
from benchmark.fleet.traffic import Sent
from tests.guard import sitecustomize as path_guard
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
TEXT = """# HELP apiserver_request_total Counter of requests
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="resourceslices",verb="LIST"} 4
apiserver_request_total{code="200",resource="nodes",verb="GET"} 2
apiserver_request_total{code="201",resource="resourceslices",verb="POST"} 1.5e+01
apiserver_longrunning_requests{resource="resourceslices",verb="WATCH"} 3
apiserver_longrunning_requests{resource="nodes",verb="WATCH"} 2
apiserver_watch_events_sizes_sum{resource="resourceslices"} 700
apiserver_odd{text="a \\"quoted\\" } value"} 1
process_cpu_seconds_total 3.25
process_resident_memory_bytes 4.194304e+06
go_goroutines 12
"""


def sent(at: float, kind: str = "list resourceslices", error: str = "") -> Sent:
    return Sent(at=at, kind=kind, error=error)


def test_metrics_are_summed_by_labels() -> None:
    found = Metrics(TEXT)

    assert found.sum("apiserver_request_total") == 21
    assert found.sum("apiserver_request_total", resource="resourceslices") == 19
    assert found.sum("apiserver_odd", text='a \\"quoted\\" } value') == 1
    assert found.sum("process_cpu_seconds_total") == 3.25
    assert found.sum("missing") == 0


def test_counters_and_gauges_are_those_of_the_api_server() -> None:
    found = Metrics(TEXT)

    assert metrics.counters(found) == {
        "requests": 21,
        "rejected": 0,
        "read_bytes": 0,
        "slice_events": 0,
        "slice_event_bytes": 700,
        "etcd_requests": 0,
        "cpu_seconds": 3.25,
    }
    assert metrics.gauges(found) == {
        "watches": 5,
        "slice_watches": 3,
        "goroutines": 12,
        "heap_mib": 0,
        "rss_mib": 4,
    }


@pytest.mark.parametrize(
    ("method", "target", "kind"),
    [
        ("GET", "/apis/resource.k8s.io/v1/resourceslices", "list resourceslices"),
        ("GET", "/apis/resource.k8s.io/v1/resourceslices?watch=true", "watch resourceslices"),
        ("PUT", "/apis/resource.k8s.io/v1/resourceslices/a", "update resourceslices"),
        ("GET", "/api/v1/nodes/a", "get nodes"),
        ("GET", "/apis/resource.k8s.io", "get /apis/resource.k8s.io"),
    ],
)
def test_requests_are_named_as_in_rbac(method: str, target: str, kind: str) -> None:
    assert traffic.kind_of(method, target) == kind


def test_peak_is_the_most_in_any_time_of_a_length() -> None:
    times = [sent(at) for at in (0.0, 0.95, 1.0, 1.05, 1.9, 5.0)]

    assert traffic.peak(times, seconds=1.0) == 4
    assert traffic.peak(times, seconds=0.1) == 2
    assert traffic.peak([], seconds=1.0) == 0
    assert traffic.spread(times) == 5


def test_cost_of_clients_is_counted_by_kind_error_and_node() -> None:
    requests = [sent(0), sent(1, error="429"), sent(2, "watch resourceslices")]

    found = phases.client_cost(requests, Bytes(read=1000, written=50), nodes=2)

    assert found["requests_per_node"] == 1.5
    assert found["by_kind"] == {"list resourceslices": 2, "watch resourceslices": 1}
    assert found["errors"] == {"list resourceslices: 429": 1}
    assert (found["received_bytes_per_node"], found["sent_bytes_per_node"]) == (500, 25)


def test_counters_of_a_new_server_process_began_at_zero() -> None:
    assert phases.difference({"requests": 5}, {"requests": 7}) == {"requests": 2}
    assert phases.difference({}, {"requests": 7}) == {"requests": 7}


def test_fleet_in_simulation_has_every_phase_and_no_request_at_rest() -> None:
    ended = subprocess.run(
        [
            *(sys.executable, ROOT / "hack" / "fleet"),
            *("--nodes", "2", "--gpus", "2xT4", "--rest-seconds", "1", "-o", "json"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=path_guard.environment(),
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    counts = {row["phase"]: row["clients"]["by_kind"] for row in found["phases"]}
    assert list(counts) == [
        *("start of all", "unhealthy card", "slices deleted", "at rest"),
        *("server stopped", "server killed"),
    ]
    assert counts["start of all"] == {
        **dict.fromkeys(["get /apis/resource.k8s.io", "list resourceslices", "get nodes"], 2),
        **dict.fromkeys(["watch resourceslices", "create resourceslices"], 2),
    }
    assert counts["unhealthy card"] == {"update resourceslices": 2}
    assert counts["at rest"] == {}
    assert counts["server stopped"]["watch resourceslices"] >= 2
    assert "start of all" in report.text(found)
