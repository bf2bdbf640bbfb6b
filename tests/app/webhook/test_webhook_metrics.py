"""The metrics of a real webhook process."""

import socket
import ssl
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.app.simulate.cluster import port_of_no_client
from tensorfusion_dra.app.simulate.webhook import SimulatedWebhook
from tests.app.webhook.test_webhook_process import submit
from tests.metrics.scraped import OPENMETRICS, Scraped, from_openmetrics
from tests.support import documented_metrics
from tests.support.admission import review_body
from tests.support.builders.pods import pod_annotations, pod_document
from tests.support.https import HOST
from tests.support.waiting import PATIENCE_SECONDS

GOOD = pod_annotations(dra_enabled="true", vram_request="16Gi", tflops_request="100")
BAD = pod_annotations(dra_enabled="true", vram_request="much")


def scrape(url: str) -> Scraped:
    request = Request(f"{url}/metrics", headers={"Accept": OPENMETRICS})
    with urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return from_openmetrics(answer.read())


REFUSED = {
    "400": b"nonsense\r\n\r\n",
    "404": b"POST /nowhere HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "405": b"PUT /validate HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "411": b"POST /validate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "413": b"POST /validate HTTP/1.1\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n",
    "414": b"GET /" + b"a" * 65_540 + b" HTTP/1.1\r\n\r\n",
    "415": b"POST /validate HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "431": b"GET / HTTP/1.1\r\n" + b"A: a\r\n" * 101 + b"\r\n",
    "501": b"BREW / HTTP/1.1\r\n\r\n",
    "505": b"GET / HTTP/3.0\r\n\r\n",
}
"""A request for each status that needs no fault of the webhook."""


def test_reviews_requests_and_certificate(webhook: SimulatedWebhook) -> None:
    for annotations in (GOOD, GOOD, BAD, {}):
        body = review_body(pod_document(annotations))
        assert submit(webhook, "/mutate-pods", body)[0] == 200
    assert submit(webhook, "/nowhere", b"{}")[0] == 404

    found = scrape(webhook.health_url)

    reviews = found.values("webhook_review_duration_seconds_count", "outcome", kind="Pod")
    assert reviews == {"changed": 2, "denied": 1, "passed": 1, "unavailable": 0, "failed": 0}
    refused = found.values("webhook_requests_refused_total", "code")
    assert {code: number for code, number in refused.items() if number} == {"404": 1}
    assert found.value("api_requests_total", verb="list", resource="gpupools", code="200") == 1
    end = found.value("webhook_certificate_expiry_timestamp_seconds")
    assert end > found.value("process_start_time_seconds")
    rows = documented_metrics.table(documented_metrics.WEBHOOK)
    assert found.kinds() == {name: row.kind for name, row in rows.items()}


def test_every_refusal_has_a_counter_that_starts_at_0(webhook: SimulatedWebhook) -> None:
    before = scrape(webhook.health_url).values("webhook_requests_refused_total", "code")
    port = urlsplit(webhook.url).port
    trusting = ssl.create_default_context(cadata=webhook.ca_bundle)

    for text in REFUSED.values():
        with (
            socket.create_connection((HOST, port), timeout=PATIENCE_SECONDS) as plain,
            trusting.wrap_socket(plain, server_hostname=HOST) as client,
        ):
            client.sendall(text)
            assert client.recv(1)

    after = scrape(webhook.health_url).values("webhook_requests_refused_total", "code")
    assert before == dict.fromkeys((*REFUSED, "500"), 0)
    assert after == {**dict.fromkeys(REFUSED, 1), "500": 0}


def test_port_of_its_own(server: ApiServer, folder: Path, request: pytest.FixtureRequest) -> None:
    port = port_of_no_client()
    flags = ("--metrics-host", HOST, "--metrics-port", str(port))
    webhook = SimulatedWebhook(folder, server.kubeconfig(folder / "kubeconfig"), flags)
    request.addfinalizer(webhook.process.stop)

    assert scrape(f"http://{HOST}:{port}").value("build_info") == 1
    with pytest.raises(HTTPError, match="404") as raised:
        scrape(webhook.health_url)
    raised.value.close()
