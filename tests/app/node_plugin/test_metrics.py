"""The metrics of a real node plugin that a simulated kubelet calls."""

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.app.shared import version
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster, port_of_no_client
from tensorfusion_dra.core.claims.operation import STAGES, OperationKind
from tests.app.node_plugin.test_node_plugin_process import (
    cluster_with,
    log_lines,
    run_pod,
    slice_writes,
    start,
)
from tests.metrics.scraped import OPENMETRICS, Scraped, from_openmetrics
from tests.support import documented_metrics, image_packages
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

GIB = 2**30


class Node:
    """A simulated node whose plugin serves metrics."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.health_port = self.port = port_of_no_client()
        address = f"127.0.0.1:{self.port}"
        cluster.plugin_flags.extend(["--health-address", address, "--metrics-address", address])

    def start(self, *flags: str) -> None:
        """Start the plugin; return once it has published and serves its metrics."""
        self.cluster.plugin_flags.extend(flags)
        start(self.cluster)
        self.cluster.until("serving", lambda: bool(log_lines(self.cluster, "serving")))

    def get(self, port: int = 0) -> tuple[int, str, bytes]:
        """Return status, content type and body of /metrics."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", port or self.port, timeout=PATIENCE_SECONDS
        )
        try:
            connection.request("GET", "/metrics", headers={"Accept": OPENMETRICS})
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type", ""), answer.read()
        finally:
            connection.close()

    def scrape(self) -> Scraped:
        status, content_type, body = self.get()
        assert (status, content_type.partition(";")[0]) == (200, "application/openmetrics-text")
        return from_openmetrics(body)


@pytest.fixture
def node() -> Iterator[Node]:
    with cluster_with() as cluster:
        yield Node(cluster)


def counts(found: Scraped, kind: str) -> dict[str, float]:
    """Return the number of operations by result."""
    return found.values(f"{kind}_duration_seconds_count", "result")


def stage_counts(found: Scraped, kind: str) -> dict[str, float]:
    """Return the number of operations that entered each stage."""
    return found.values(f"{kind}_stage_duration_seconds_count", "stage")


def check_that_nothing_has_happened(found: Scraped) -> None:
    """Check that every known label set exists, and all that counts is 0."""
    for kind in OperationKind:
        assert set(counts(found, kind).values()) == {0}
        assert stage_counts(found, kind) == {stage.value: 0 for stage in STAGES[kind]}
    assert found.value("kubelet_registration", state="waiting") == 1
    assert found.value("shares") == 0
    states = dict.fromkeys(("Enforced", "NotEnforced", "Unknown"), 0)
    assert found.values("shares_by_enforcement", "state") == states
    assert len(found.values("slice_writes_total", "reason")) == 6
    refused = found.each("api_requests_total", resource="resourceclaims", code="403")
    assert [value for _, value in refused] == [0]


def test_a_started_node_plugin_reports_of_itself_and_counts_operations_by_result_and_stage(
    node: Node,
) -> None:
    node.cluster.kubelet.stop()
    node.cluster.start_plugin()
    node.cluster.until("serving", lambda: bool(log_lines(node.cluster, "serving")))
    check_that_nothing_has_happened(node.scrape())
    node.cluster.start_kubelet()
    node.cluster.until("registered", lambda: bool(log_lines(node.cluster, "registered")))
    node.cluster.until("confirmed", lambda: node.scrape().value("slices") == 1)

    found = node.scrape()

    documented_kinds = {
        name: row.kind
        for name, row in documented_metrics.listed(documented_metrics.NODE_PLUGIN).items()
    }
    assert found.kinds() == documented_kinds
    assert found.value("build_info", version=version.current()) == 1
    assert found.value("node_info", node="node-01", pool="default/node-01") == 1
    assert found.value("kubelet_registration", state="registered") == 1
    expected = {
        "slice_devices": 2,
        "cards_known": 1,
        "publishing_right": 1,
        "store_readable": 1,
        "api_server_failing": 0,
        "publishing_failing": 0,
    }
    assert {name: found.value(name) for name in expected} == expected
    assert found.values("slice_writes_total", "reason")["start"] == slice_writes(node.cluster) == 1
    created = {"verb": "create", "resource": "resourceslices", "code": "201"}
    assert found.value("api_requests_total", **created) == 1

    for name in ("a", "b", "c"):
        run_pod(node.cluster, name)
    node.cluster.delete("a")
    node.cluster.until("unprepared", lambda: len(node.cluster.spec_files()) == 2)
    node.cluster.until("logged", lambda: len(log_lines(node.cluster, "claim_unprepared")) == 1)

    found = node.scrape()

    none = dict.fromkeys(("claim_error", "retryable", "no_room", "fatal", "unexpected"), 0)
    assert counts(found, "prepare") == {"success": 3, **none}
    assert counts(found, "unprepare") == {"success": 1, **none}
    of_prepare = stage_counts(found, "prepare")
    assert of_prepare["read"] == of_prepare["admit"] == of_prepare["flush"] == 3
    assert of_prepare["register"] == of_prepare["withdraw"] == 0
    assert stage_counts(found, "unprepare")["withdraw"] == 1
    total = found.value("prepare_duration_seconds_sum", result="success")
    by_stage = found.values("prepare_stage_duration_seconds_sum", "stage")
    assert sum(by_stage.values()) == pytest.approx(total)


def test_shares_may_be_left_out_and_metrics_have_a_port_of_their_own(node: Node) -> None:
    node.port = port_of_no_client()
    node.start("--metrics-shares", "0", "--metrics-address", f"127.0.0.1:{node.port}")
    run_pod(node.cluster, "a")

    node.cluster.until("scraped", lambda: node.scrape().value("shares") == 1)

    found = node.scrape()
    assert found.each("share_info") == found.each("share_requested_tflops") == []
    assert found.value("shares_left_out") == 1
    assert node.get(node.health_port)[0] == 404


def test_metrics_may_be_turned_off(node: Node) -> None:
    node.start("--metrics-address", "")

    assert node.get()[0] == 404


def test_a_scraped_node_plugin_stays_within_the_memory_budget(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_packages.start_as_in_a_pod(tmp_path, monkeypatch)
    node.start()
    node.cluster.until("watching", lambda: node.cluster.server.requests.count("watch") > 0)

    for _ in range(50):
        node.scrape()

    resident = node.scrape().value("process_resident_memory_bytes")
    assert resident < image_packages.MEMORY_BUDGET_BYTES
