"""A real Prometheus scrapes a real node plugin, and evaluates rules and dashboard.

Skipped on machines without Prometheus.
"""

import http.client
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tests.app.node_plugin.health_cluster import SHARE, Profile, sick_cluster
from tests.app.shared.test_health_endpoint import free_port
from tests.support import monitoring, prometheus
from tests.support.prometheus import Prometheus
from tests.support.waiting import PATIENCE_SECONDS

NODE = "node-01"
WITHOUT_VALUES = {
    "Pods that hold idle cards",  # half an hour after the start
    "Idle compute by namespace",
    "Shares whose limits do not hold",
    "Trouble of cards",
    "Unhealthy since",
    "XIDs",
}
"""Panels that are empty on a healthy node."""


@dataclass(frozen=True, kw_only=True)
class Scraped:
    """A node, the Prometheus that scrapes it, and the port of its metrics."""

    cluster: SimulatedCluster
    profile: Profile
    prometheus: Prometheus
    port: int

    def run_pod(self, name: str) -> None:
        self.cluster.submit(name, SHARE)
        self.cluster.until(f"{name} runs", lambda: self.cluster.container_of(name) is not None)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("scraped")
    monitoring.promtool()  # skips before anything is started
    port, dcgm = free_port(), dcgm_exporter()
    jobs: dict[str, dict[str, Any]] = {
        "tensorfusion-dra-node-plugin": {
            "honor_labels": True,
            "static_configs": [
                {
                    "targets": [f"127.0.0.1:{port}"],
                    "labels": {"node": NODE, "namespace": "tensorfusion-dra", "pod": "plugin-x"},
                }
            ],
        },
        "dcgm": {"static_configs": [{"targets": [f"127.0.0.1:{dcgm.server_port}"]}]},
    }
    flags = ("--health-host", "127.0.0.1", "--health-port", str(port))
    with (
        dcgm,
        sick_cluster(folder, *flags) as (cluster, profile),
        prometheus.running(make(folder / "prometheus"), free_port(), jobs) as server,
    ):
        yield Scraped(cluster=cluster, profile=profile, prometheus=server, port=port)
        dcgm.shutdown()


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


class Dcgm(BaseHTTPRequestHandler):
    """Answers as dcgm-exporter does; the simulated cards are 3 % and 90 % busy."""

    text = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def dcgm_exporter() -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dcgm)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def put_dcgm(uuids: list[str]) -> None:
    lines = [
        f'{name}{{gpu="{index}",UUID="{uuid}",device="nvidia{index}",Hostname="{NODE}"}} {value}\n'
        for name, values in (("GPU_UTIL", (3, 90)), ("FB_USED", (1024, 2048)))
        for index, (uuid, value) in enumerate(zip(uuids, values, strict=True))
    ]
    Dcgm.text = "".join(f"DCGM_FI_DEV_{line}" for line in lines)


def test_promtool_finds_no_fault_in_the_metrics(scraped: Scraped) -> None:
    scraped.prometheus.until("a card", "tensorfusion_dra_card_info")
    connection = http.client.HTTPConnection("127.0.0.1", scraped.port, timeout=PATIENCE_SECONDS)
    connection.request("GET", "/metrics", headers={"Accept": "text/plain"})
    text = connection.getresponse().read()
    connection.close()

    answer = subprocess.run(
        [monitoring.promtool(), "check", "metrics"], input=text, capture_output=True, check=False
    )

    assert (answer.returncode, answer.stderr.decode()) == (0, "")


def test_rules_and_dashboard_of_a_healthy_node_and_alerts_of_an_unhealthy_one(
    scraped: Scraped,
) -> None:
    server = scraped.prometheus
    cards = server.until("cards", "tensorfusion_dra_card_info")
    scraped.run_pod("a")
    scraped.run_pod("b")
    by_device = sorted((labels["device"], labels["uuid"]) for labels, _ in cards)
    put_dcgm([uuid for _, uuid in by_device])

    # Both pods are on the first card, so they see its utilization.
    server.until("both pods", "count(pod_uuid:tensorfusion_dra_card_utilization:ratio) == 2")
    busy = server.query("pod_uuid:tensorfusion_dra_card_utilization:ratio")
    first = {"node": NODE, "uuid": by_device[0][1], "namespace": "default"}
    assert sorted((labels["pod"], value) for labels, value in busy) == [("a", 0.03), ("b", 0.03)]
    assert [labels for labels, _ in busy if labels["pod"] == "a"] == [{**first, "pod": "a"}]

    server.until("a quantile", "node:tensorfusion_dra_prepare_duration_seconds:p99 > 0")
    assert [
        (rule["name"], rule["lastError"]) for rule in server.rules() if "lastError" in rule
    ] == []
    assert {rule["health"] for rule in server.rules()} == {"ok"}
    server.until("no alert", "absent(ALERTS)")

    assert empty_panels(server) == WITHOUT_VALUES

    scraped.profile.make(0, xid=79)
    fired = server.until("an alert", 'ALERTS{alertname="TensorFusionDRAUnhealthyCardInUse"}')
    (labels, _) = fired[0]
    assert labels["uuid"] == by_device[0][1]
    assert labels["state"] == "xid"
    assert empty_panels(server) & {"Trouble of cards", "Unhealthy since"} == set()


def empty_panels(server: Prometheus) -> set[str]:
    """Return the panels, but those of the webhook, of which no query has a result."""
    panels = monitoring.dashboard()["panels"]
    (webhook,) = (place for place, panel in enumerate(panels) if panel["title"] == "Webhook")
    return {
        panel["title"]
        for panel in panels[:webhook]
        if "targets" in panel
        and not any(server.query(filled(target["expr"])) for target in panel["targets"])
    }


def filled(query: str) -> str:
    """Return a query with what Grafana puts in for its variables."""
    for name, value in (("$__rate_interval", "1m"), ("$node", ".*"), ("$namespace", ".*")):
        query = query.replace(name, value)
    return query
