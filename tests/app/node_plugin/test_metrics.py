"""The metrics of a real node plugin that a simulated kubelet calls."""

from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tensorfusion_dra.app.shared import version
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster, port_of_no_client
from tensorfusion_dra.core.claims.operation import STAGES, OperationKind
from tests.metrics.scraped import OPENMETRICS, Scraped, from_openmetrics
from tests.support import documented_metrics, image_packages
from tests.support.node_plugin_process import cluster_with, log_lines, run_pod, slice_writes, start
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process


class Node:
    """A simulated node whose plugin serves metrics, at a port of their own."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.health_port, self.port = port_of_no_client(), port_of_no_client()
        cluster.plugin_flags.extend(["--health-address", f"127.0.0.1:{self.health_port}"])
        cluster.plugin_flags.extend(["--metrics-address", f"127.0.0.1:{self.port}"])

    def start(self) -> None:
        """Start the plugin; return once it has published and serves its metrics."""
        start(self.cluster)
        self.cluster.until("serving", lambda: bool(log_lines(self.cluster, "serving")))

    def scrape(self) -> Scraped:
        address = f"http://127.0.0.1:{self.port}/metrics"
        request = Request(address, headers={"Accept": OPENMETRICS})
        with urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            assert answer.headers.get_content_type() == "application/openmetrics-text"
            return from_openmetrics(answer.read())


@pytest.fixture
def node() -> Iterator[Node]:
    with cluster_with() as cluster:
        yield Node(cluster)


def test_operations_slices_and_requests_of_a_real_process_are_counted(node: Node) -> None:
    node.cluster.kubelet.stop()
    node.cluster.start_plugin()
    node.cluster.until("serving", lambda: bool(log_lines(node.cluster, "serving")))
    before = node.scrape()
    for kind in OperationKind:
        assert {value for _, value in before.each(f"{kind}_duration_seconds_count")} == {0}
        stages = before.values(f"{kind}_stage_duration_seconds_count", "stage")
        assert stages == {stage.value: 0 for stage in STAGES[kind]}
    assert before.value("kubelet_registration", state="waiting") == 1
    node.cluster.start_kubelet()
    for name in ("a", "b", "c"):
        run_pod(node.cluster, name)
    node.cluster.delete("a")
    node.cluster.until("unprepared", lambda: len(node.cluster.spec_files()) == 2)
    node.cluster.until("logged", lambda: len(log_lines(node.cluster, "claim_unprepared")) == 1)
    node.cluster.until("confirmed", lambda: node.scrape().value("slices") == 1)

    found = node.scrape()

    rows = documented_metrics.listed(documented_metrics.NODE_PLUGIN)
    assert found.kinds() == {name: row.kind for name, row in rows.items()}
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
        "shares": 2,
    }
    assert {name: found.value(name) for name in expected} == expected
    assert found.values("slice_writes_total", "reason")["start"] == slice_writes(node.cluster) == 1
    created = {"verb": "create", "resource": "resourceslices", "code": "201"}
    assert found.value("api_requests_total", **created) == 1
    for name, count in (("prepare", 3), ("unprepare", 1)):
        results = found.values(f"{name}_duration_seconds_count", "result")
        assert {key: number for key, number in results.items() if number} == {"success": count}
    stages = found.values("prepare_stage_duration_seconds_count", "stage")
    assert stages["read"] == stages["admit"] == stages["flush"] == 3
    assert stages["register"] == stages["withdraw"] == 0
    total = found.value("prepare_duration_seconds_sum", result="success")
    by_stage = found.values("prepare_stage_duration_seconds_sum", "stage")
    assert sum(by_stage.values()) == pytest.approx(total)


def test_shares_may_be_left_out_and_metrics_are_beside_no_probes(node: Node) -> None:
    node.cluster.plugin_flags.extend(["--metrics-shares", "0"])
    node.start()
    run_pod(node.cluster, "a")

    node.cluster.until("scraped", lambda: node.scrape().value("shares") == 1)

    assert node.scrape().value("shares_left_out") == 1
    with pytest.raises(HTTPError, match="404") as refused:
        urlopen(f"http://127.0.0.1:{node.health_port}/metrics", timeout=PATIENCE_SECONDS)
    refused.value.close()


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
