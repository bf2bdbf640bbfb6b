"""The webhook's process: start, readiness, reviews, metrics, and stop."""

import contextlib
import http.client
import socket
import ssl
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from dra_simulator.api.faults import Refuse
from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import EVENTS, GPUPOOLS, Client
from tensorfusion_dra import metrics
from tensorfusion_dra.app.shared import version
from tensorfusion_dra.app.simulate.cluster import port_of_no_client
from tensorfusion_dra.app.simulate.webhook import SimulatedWebhook
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tests.metrics.scraped import OPENMETRICS, Scraped, from_openmetrics
from tests.support import documented_metrics, forks, installation
from tests.support.admission import review_body
from tests.support.builders.pods import pod_annotations, pod_document
from tests.support.https import HOST, JSON, Files, connection, posted
from tests.support.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.process

ANNOTATIONS = pod_annotations(dra_enabled="true", vram_request="16Gi", tflops_request="100")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tfw-") as name:
        yield Path(name)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(tensor_fusion=True) as running:
        yield running


@pytest.fixture
def flags() -> list[str]:
    """The webhook's flags, which a test may set."""
    return []


@pytest.fixture
def webhook(server: ApiServer, folder: Path, flags: list[str]) -> Iterator[SimulatedWebhook]:
    running = SimulatedWebhook(folder, server.kubeconfig(folder / "kubeconfig"), flags)
    try:
        assert eventually(running.is_ready)
        yield running
    finally:
        if running.process.exit_code is None:
            running.process.stop()


def trusting(webhook: SimulatedWebhook) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=webhook.ca_bundle)


def client_of(webhook: SimulatedWebhook) -> http.client.HTTPSConnection:
    return connection(urlsplit(webhook.url).port or 0, trusting(webhook))


def submit(webhook: SimulatedWebhook, path: str, body: bytes) -> tuple[int, bytes]:
    """Post a review; return status and body of the answer."""
    with contextlib.closing(client_of(webhook)) as client:
        return posted(client, path, body)


def ready(webhook: SimulatedWebhook) -> int:
    try:
        with urlopen(f"{webhook.health_url}/readyz", timeout=PATIENCE_SECONDS) as answer:
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code


def memory(pid: int, field: str) -> Quantity:
    """Return a process's memory: VmRSS, or the most that it has had, VmHWM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return Quantity.whole(int(kib) * 1024)


def test_a_new_pool_that_enables_dra_takes_effect_without_a_restart(
    webhook: SimulatedWebhook, server: ApiServer
) -> None:
    pool = {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPUPool",
        "metadata": {"name": "prod"},
        "spec": {"draConfig": {"enable": True}},
    }
    review = review_body(pod_document(pod_annotations(gpupool="prod", vram_request="1Gi")))
    assert b"patch" not in submit(webhook, "/mutate-pods", review)[1]

    Client(server.url).create(GPUPOOLS, pool)

    assert eventually(lambda: b"patch" in submit(webhook, "/mutate-pods", review)[1])


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"[" + (b"[" * 50 + b"]" * 50 + b",") * 60_000 + b"1]", 400),
        pytest.param(
            b'"' + b"a" * 6_200_000 + "\N{GRINNING FACE}".encode() + b'"',
            200,
            marks=pytest.mark.sweep,
        ),
    ],
    ids=["lists", "four bytes for each letter"],
)
def test_memory_stays_within_its_limit_whatever_is_posted(
    webhook: SimulatedWebhook, value: bytes, status: int
) -> None:
    (deployment,) = [
        item for item in installation.documents("webhook") if item["kind"] == "Deployment"
    ]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    limit = quantity.parse(container["resources"]["limits"]["memory"])
    body = review_body(pod_document(ANNOTATIONS, x="?")).replace(b'"?"', value)

    with ThreadPoolExecutor(4) as clients:
        answers = clients.map(lambda _: submit(webhook, "/mutate-pods", body), range(8))
        assert {answer[0] for answer in answers} == {status}

    assert memory(webhook.process.pid, "VmHWM") < limit


def test_hundreds_of_connections_that_ask_nothing_cost_little(webhook: SimulatedWebhook) -> None:
    before = memory(webhook.process.pid, "VmRSS")

    with contextlib.ExitStack() as opened:
        for _ in range(300):
            address = (HOST, urlsplit(webhook.url).port)
            plain = opened.enter_context(socket.create_connection(address))
            opened.enter_context(trusting(webhook).wrap_socket(plain, server_hostname=HOST))

        assert memory(webhook.process.pid, "VmRSS") - before < quantity.parse("30Mi")


def test_the_webhook_is_ready_once_it_has_read_the_pools(server: ApiServer, folder: Path) -> None:
    server.faults.add("list", "gpupools", Refuse(500))
    webhook = SimulatedWebhook(folder, server.kubeconfig(folder / "kubeconfig"))

    assert ready(webhook) == 503
    server.faults.clear()

    assert eventually(lambda: ready(webhook) == 200)
    webhook.process.stop()


def test_in_a_cluster_without_gpupools_it_is_ready_and_metrics_may_have_a_port_of_their_own(
    folder: Path, request: pytest.FixtureRequest
) -> None:
    port = port_of_no_client()
    flags = ("--metrics-address", f"{HOST}:{port}")
    with ApiServer() as without_tensor_fusion:
        kubeconfig = without_tensor_fusion.kubeconfig(folder / "kubeconfig")
        webhook = SimulatedWebhook(folder, kubeconfig, flags)
        request.addfinalizer(webhook.process.stop)
        assert eventually(lambda: ready(webhook) == 200)

    assert scrape(f"http://{HOST}:{port}").value("build_info") == 1
    with pytest.raises(HTTPError, match="404") as raised:
        scrape(webhook.health_url)
    raised.value.close()


def test_a_controller_learns_that_nothing_enables_dra_for_its_pods(
    webhook: SimulatedWebhook, server: ApiServer
) -> None:
    document = pod_document(pod_annotations(vram_request="1Gi"))
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "1"}
    document["metadata"] |= {
        "namespace": "default",
        "ownerReferences": [{**owner, "controller": True}],
    }

    for _ in range(3):
        submit(webhook, "/mutate-pods", review_body(document))

    events = Client(server.url)
    assert eventually(lambda: bool(events.list(EVENTS).items))
    (event,) = events.list(EVENTS).items
    assert event["involvedObject"] == {**owner, "namespace": "default"}
    assert "nothing enables DRA for the pod" in event["message"]
    assert [line["level"] for line in webhook.logged() if line["event"] == "review_passed"] == [
        "info"
    ] * 3


@pytest.mark.parametrize("flags", [["--drain-seconds", "2"]])
def test_the_webhook_accepts_requests_while_it_drains(webhook: SimulatedWebhook) -> None:
    webhook.process.terminate()
    assert eventually(lambda: ready(webhook) == 503)
    with contextlib.closing(client_of(webhook)) as client:
        client.request("POST", "/mutate-pods", review_body(pod_document(ANNOTATIONS)), JSON)
        answer = client.getresponse()
        answer.read()

    assert (answer.status, answer.getheader("Connection")) == (200, "close")
    assert webhook.process.stop() == 0


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (["--port", "99999"], "port: found 99999, expected 0 to 65535"),
        (["--virtual-capacity", "yes"], "virtual-capacity: found 'yes', expected one of true"),
        (["--drain-seconds", "-1"], "drain-seconds: found -1.0, expected 0 to 600"),
        (["--tls-cert-file", "/nowhere/tls.crt"], "/nowhere/tls.crt: No such file or directory"),
        (["--client-ca-file", "/nowhere/ca.crt"], "/nowhere/ca.crt: No such file or directory"),
        (["--kubeconfig", "/nowhere"], "kubeconfig /nowhere"),
        (["--node-name", "x"], "unrecognized arguments: --node-name x"),
    ],
)
def test_a_bad_setting_is_a_one_line_error_with_exit_code_2(
    folder: Path, bad: list[str], text: str
) -> None:
    files = Files(folder)
    given = ["--tls-cert-file", str(files.certificate), "--tls-key-file", str(files.key)]

    ended = forks.run("webhook", *given, *bad)

    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert text in ended.stderr


BAD = pod_annotations(dra_enabled="true", vram_request="much")


def scrape(url: str) -> Scraped:
    request = Request(f"{url}/metrics", headers={"Accept": OPENMETRICS})
    with urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return from_openmetrics(answer.read())


REFUSED = {
    "400": b"POST /validate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\r\n",
    "404": b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "405": b"PUT /validate HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "413": b"POST /validate HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n",
    "415": b"POST /validate HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
}
"""A request for each status that needs no fault of the webhook and no other requests."""


def test_reviews_are_answered_and_counted_until_the_webhook_stops_in_order(
    webhook: SimulatedWebhook,
) -> None:
    for annotations in (ANNOTATIONS, ANNOTATIONS, BAD, {}):
        body = review_body(pod_document(annotations))
        status, answer = submit(webhook, "/mutate-pods?timeout=5s", body)
        assert (status, b'"allowed": true' in answer) == (200, annotations is not BAD)
    for text in REFUSED.values():
        with (
            socket.create_connection((HOST, urlsplit(webhook.url).port)) as plain,
            trusting(webhook).wrap_socket(plain, server_hostname=HOST) as client,
        ):
            client.sendall(text)
            assert client.recv(1)

    found = scrape(webhook.health_url)

    reviews = found.values("webhook_review_duration_seconds_count", "outcome", kind="Pod")
    assert reviews == {"changed": 2, "denied": 1, "passed": 1, "unavailable": 0, "failed": 0}
    refused = found.values("webhook_requests_refused_total", "code")
    assert refused == {**dict.fromkeys(REFUSED, 1), "500": 0, "503": 0}
    assert found.value("api_requests_total", verb="list", resource="gpupools", code="200") == 1
    requests = {(each["verb"], each["resource"]) for each, _ in found.each("api_requests_total")}
    assert requests == {*metrics.WEBHOOK}
    end = found.value("webhook_certificate_expiry_timestamp_seconds")
    assert end > found.value("process_start_time_seconds")
    rows = documented_metrics.listed(documented_metrics.WEBHOOK)
    assert found.kinds() == {name: row.kind for name, row in rows.items()}
    assert webhook.process.stop() == 0
    *_, serving, stopped = (
        line for line in webhook.logged() if line["event"] in {"serving", "stopped"}
    )
    assert (serving["version"], stopped["event"]) == (version.current(), "stopped")
