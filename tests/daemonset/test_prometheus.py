"""A real Prometheus scrapes node plugin and webhook, and evaluates rules and dashboard.

Skipped on machines without Prometheus.
"""

import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.app.simulate.free_ports import port_of_no_client
from tensorfusion_dra.app.simulate.webhook import SimulatedWebhook
from tests.app.node_plugin.health_cluster import SHARE, Profile, sick_cluster
from tests.support import monitoring, prometheus
from tests.support.admission import review_body
from tests.support.builders.pods import pod_annotations, pod_document
from tests.support.https import connection, posted
from tests.support.prometheus import Prometheus
from tests.support.waiting import PATIENCE_SECONDS, eventually

ANNOTATIONS = pod_annotations(dra_enabled="true", vram_request="16Gi", tflops_request="100")
NODE = "node-01"
WITHOUT_VALUES = {
    "Pods that hold idle cards",  # half an hour after the start
    "Shares whose limits do not hold",
    "Trouble of cards",
    "Unhealthy since",
    "XIDs",
}
"""Panels that are empty on a healthy node."""
OF_SPEED = {"TensorFusionDRAPrepareSlow", "TensorFusionDRAWebhookSlow"}
"""Alerts that a busy machine may raise."""


@dataclass(frozen=True, kw_only=True)
class Scraped:
    """A node, a webhook, and the Prometheus that scrapes both.

    Attributes:
        port: Port of the metrics of the node plugin.
        port_of_update: Port that is scraped as well, for a second instance on the node.
    """

    cluster: SimulatedCluster
    profile: Profile
    prometheus: Prometheus
    webhook: SimulatedWebhook
    port: int
    port_of_update: int

    def run_pod(self, name: str) -> None:
        self.cluster.submit(name, SHARE)
        self.cluster.until(f"{name} runs", lambda: self.cluster.container_of(name) is not None)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("scraped")
    monitoring.promtool()  # skips before anything is started
    port, port_of_update, dcgm = port_of_no_client(), port_of_no_client(), dcgm_exporter()
    flags = ("--health-host", "127.0.0.1", "--health-port", str(port))
    with dcgm, sick_cluster(folder, *flags, tensor_fusion=True) as (cluster, profile):
        webhook = SimulatedWebhook(folder, cluster.server.kubeconfig(folder / "kubeconfig"))
        jobs = {
            "tensorfusion-dra-node-plugin": job(f"127.0.0.1:{port}", f"127.0.0.1:{port_of_update}"),
            "tensorfusion-dra-webhook": job(urlsplit(webhook.health_url).netloc),
            "dcgm": {"static_configs": [{"targets": [f"127.0.0.1:{dcgm.server_port}"]}]},
        }
        with prometheus.running(make(folder / "prometheus"), port_of_no_client(), jobs) as server:
            yield Scraped(
                cluster=cluster,
                profile=profile,
                prometheus=server,
                webhook=webhook,
                port=port,
                port_of_update=port_of_update,
            )
        webhook.process.stop()
        dcgm.shutdown()


def job(*targets: str) -> dict[str, Any]:
    """Return the scrape configuration of some of the driver's pods, with the targets' labels."""
    labels = {"node": NODE, "namespace": "tensorfusion-dra", "pod": "pod-of-the-driver"}
    return {"honor_labels": True, "static_configs": [{"targets": list(targets), "labels": labels}]}


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


def review(webhook: SimulatedWebhook, path: str) -> int:
    """Post a review of a pod and return the HTTP status of the answer."""
    port = urlsplit(webhook.url).port
    assert port is not None
    trusting = ssl.create_default_context(cadata=webhook.ca_bundle)
    with closing(connection(port, trusting)) as client:
        return posted(client, path, review_body(pod_document(ANNOTATIONS)))[0]


def test_promtool_finds_no_fault_in_the_metrics(scraped: Scraped) -> None:
    for url in (f"http://127.0.0.1:{scraped.port}", scraped.webhook.health_url):
        request = Request(f"{url}/metrics", headers={"Accept": "text/plain"})
        with urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            text = answer.read()

        checked = subprocess.run(
            [monitoring.promtool(), "check", "metrics"],
            input=text,
            capture_output=True,
            check=False,
        )

        assert (checked.returncode, checked.stderr.decode()) == (0, "")


def test_rules_and_dashboard_of_a_healthy_node_and_alerts_of_an_unhealthy_one(
    scraped: Scraped,
) -> None:
    server = scraped.prometheus
    cards = server.until("cards", "tensorfusion_dra_card_info")
    server.until("webhook", "tensorfusion_dra_webhook_certificate_expiry_timestamp_seconds")
    scraped.run_pod("a")
    scraped.run_pod("b")
    assert review(scraped.webhook, "/mutate-pods") == 200
    by_device = sorted((labels["device"], labels["uuid"]) for labels, _ in cards)
    put_dcgm([uuid for _, uuid in by_device])

    # Both pods are on the first card, so they see its utilization.
    utilization = "pod_uuid:tensorfusion_dra_card_utilization:ratio"
    busy = server.until("both pods", f"{utilization} and on () count({utilization}) == 2")
    first = {"node": NODE, "uuid": by_device[0][1], "namespace": "default"}
    assert sorted((labels["pod"], value) for labels, value in busy) == [("a", 0.03), ("b", 0.03)]
    assert [labels for labels, _ in busy if labels["pod"] == "a"] == [{**first, "pod": "a"}]

    server.until("a quantile", "node:tensorfusion_dra_prepare_duration_seconds:p99 > 0")
    check_rules(server)

    # Groups of rules are not evaluated at the same moment.
    assert eventually(lambda: empty_panels(server) == WITHOUT_VALUES), empty_panels(server)

    start_another_instance(scraped)
    check_rules(server)
    server.until(
        "each share counted once",
        "count(pod_uuid:tensorfusion_dra_share_requested_tflops:sum == 100) == 2",
    )
    scraped.cluster.stop_plugin("of-update")

    scraped.profile.make(0, xid=79)
    server.until("an XID", 'increase(tensorfusion_dra_card_xids_total{xid="79"}[10m]) > 0')
    scraped.profile.make(0, recovery_action=1)
    fired = server.until("an alert", 'ALERTS{alertname="TensorFusionDRAUnhealthyCardInUse"}')
    assert {labels["uuid"] for labels, _ in fired} == {by_device[0][1]}
    of_trouble = {"Trouble of cards", "Unhealthy since", "XIDs"}
    assert eventually(lambda: not empty_panels(server) & of_trouble), empty_panels(server)


def check_rules(server: Prometheus) -> None:
    """Fail unless all rules have been evaluated without error since, and no alert stays."""
    ((_, now),) = server.query("vector(time())")
    for rule in monitoring.rules():
        if rule.record.startswith(("uuid:tensorfusion_dra_card_", "node:tensorfusion_dra_cons")):
            server.until("evaluation", f"timestamp({rule.record}) > {now + 1}")
    rules = server.rules()
    assert [rule["lastError"] for rule in rules if "lastError" in rule] == []
    assert [rule["health"] for rule in rules] == ["ok"] * len(monitoring.rules())
    assert eventually(lambda: alerts(server) <= OF_SPEED), alerts(server)


def alerts(server: Prometheus) -> set[str]:
    """Return the names of the alerts that fire now."""
    return {labels["alertname"] for labels, _ in server.query("ALERTS")}


def start_another_instance(scraped: Scraped) -> None:
    """Start a second node plugin on the node, as a rolling update does."""
    scraped.cluster.plugin_flags.extend(["--health-port", str(scraped.port_of_update)])
    scraped.cluster.start_plugin("of-update")
    scraped.prometheus.until("two of each card", "count(tensorfusion_dra_card_info) == 4")
    scraped.prometheus.until("two of each share", "count(tensorfusion_dra_share_info) == 4")


def empty_panels(server: Prometheus) -> set[str]:
    """Return the panels of which no query has a result."""
    return {
        panel["title"]
        for panel in monitoring.dashboard()["panels"]
        if "targets" in panel
        and not any(server.query(filled(target["expr"])) for target in panel["targets"])
    }


def filled(query: str) -> str:
    """Return a query with what Grafana puts in for its variables."""
    for name, value in (("$__rate_interval", "10m"), ("$node", ".*"), ("$namespace", ".*")):
        query = query.replace(name, value)
    return query
