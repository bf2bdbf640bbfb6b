"""Answers of the health endpoint to probes, and the pages beside them."""

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from tensorfusion_dra.app.shared import health_endpoint
from tensorfusion_dra.app.shared.health_endpoint import HealthEndpoint, Page, Probe
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster, port_of_no_client
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.runtime.http_server import Request, Response
from tensorfusion_dra.runtime.supervisor import Supervisor
from tests.support.logs import capture_logs
from tests.support.node_plugin_process import cluster_with, log_lines
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually


@contextmanager
def serving(
    question: Callable[[], None] = lambda: None,
    pages: Mapping[str, Page] | None = None,
) -> Iterator[HealthEndpoint]:
    endpoint = HealthEndpoint({"/healthz": question}, pages, address="127.0.0.1:0")
    try:
        yield endpoint
    finally:
        endpoint.stop()


def ask(
    port: int,
    path: str,
    host: str = "127.0.0.1",
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Mapping[str, str], bytes]:
    connection = http.client.HTTPConnection(host.strip("[]"), port, timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    status, _, body = ask(port, path, host)
    return status, body.decode().strip()


def test_a_failing_check_answers_503_with_the_error() -> None:
    def failing_check() -> None:
        raise RetryableError("dra.sock: UNAVAILABLE")

    with serving(failing_check) as endpoint:
        assert get(endpoint.port, "/healthz") == (503, "dra.sock: UNAVAILABLE")


def test_many_probes_in_a_second_run_the_check_once() -> None:
    calls: list[None] = []
    check = Probe("healthz", lambda: calls.append(None))

    assert [check.reason() for _ in range(100)] == [""] * 100
    assert len(calls) == 1


def test_a_port_in_use_is_an_input_error() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(InputError, match=r"^health-address [0-9]+: Address already in use$"),
    ):
        HealthEndpoint({}, address=f"127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
@pytest.mark.parametrize(
    ("health", "metrics"),
    [(0, 0), (0, 1), (None, 1), (None, None)],
    ids=["one address", "two", "metrics alone", "nothing"],
)
def test_probes_and_metrics_are_served_at_their_addresses_which_may_be_equal(
    host: str, health: int | None, metrics: int | None
) -> None:
    ports = [port_of_no_client(), port_of_no_client()]
    health_address, metrics_address = (
        "" if index is None else f"{host}:{ports[index]}" for index in (health, metrics)
    )
    with Supervisor() as supervisor:
        served = health_endpoint.serve(
            supervisor,
            {"/healthz": lambda: None},
            {},
            lambda _accept: ("text/plain", b"m 1"),
            health_address=health_address,
            metrics_address=metrics_address,
        )

        assert served == (None if health is None else ports[health])
        for index, port in enumerate(ports):
            if index not in {health, metrics}:
                with pytest.raises(ConnectionRefusedError):
                    get(port, "/metrics", host)
                continue
            for path, at, body in (("/healthz", health, "ok"), ("/metrics", metrics, "m 1")):
                status, text = get(port, path, host)
                assert status == (200 if index == at else 404)
                assert index != at or text == body


def echo(request: Request) -> Response:
    """Answer with the facts of the request."""
    facts = (request.path, request.query, request.accept, request.host, request.from_loopback)
    return Response(
        body=json.dumps(facts).encode(),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def failing(_request: Request) -> Response:
    raise KeyError("secret of the page")


def test_a_page_learns_the_facts_of_its_request() -> None:
    headers = {"Accept": "text/html", "Host": "node.example:8080"}
    with serving(pages={"/echo": echo}) as endpoint:
        status, answered, body = ask(endpoint.port, "/echo?a=1&b", headers=headers)
        head = ask(endpoint.port, "/echo?a=1&b", method="HEAD", headers=headers)

    assert json.loads(body) == ["/echo", "a=1&b", "text/html", "node.example:8080", True]
    assert (status, head[0], head[2]) == (200, 200, b"")
    content = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
    for found in (answered, head[1]):
        assert found.items() >= {**content, "Cache-Control": "no-store"}.items()


def test_a_failing_page_answers_500_with_a_log_line_an_unknown_one_404_and_probes_go_on() -> None:
    with serving(pages={"/bad": failing, "/echo": echo}) as endpoint, capture_logs() as logged:
        assert get(endpoint.port, "/bad") == (500, "KeyError, see the log")
        assert [get(endpoint.port, path)[0] for path in ("/healthz", "/echo")] == [200, 200]
        assert get(endpoint.port, "/x") == (404, "expected one of /healthz, /bad, /echo")

    assert [line["path"] for line in logged if line["event"] == "page_failed"] == ["/bad"]


class SlowPage:
    """A page whose answers wait until the test lets them go on; each says how many came before."""

    def __init__(self) -> None:
        self.of_others = {*threading.enumerate()}  # servers of tests before may not have ended
        self.go_on = Event()
        self.asked: list[str] = []

    def __call__(self, request: Request) -> Response:
        self.asked.append(request.query)
        self.go_on.wait(FOREVER)
        return Response(body=str(len(self.asked)).encode())

    def threads(self) -> int:
        """Return how many threads answer requests."""
        own = {*threading.enumerate()} - self.of_others
        return sum("process_request_thread" in each.name for each in own)


@pytest.fixture
def slow() -> Iterator[SlowPage]:
    page = SlowPage()
    yield page
    page.go_on.set()


def test_one_page_is_made_at_a_time_and_probes_find_room_beside_it(slow: SlowPage) -> None:
    with serving(pages={"/slow": slow}) as endpoint, ThreadPoolExecutor(4) as readers:
        paths = [f"/slow?{number}" for number in range(4)]
        answers = readers.map(partial(get, endpoint.port), paths)
        assert eventually(lambda: slow.threads() == 4)

        assert get(endpoint.port, "/healthz")[0] == 200
        assert len(slow.asked) == 1
        slow.go_on.set()
        assert sorted(answers) == [(200, str(number + 1)) for number in range(4)]


def test_clients_that_ask_for_a_page_and_leave_take_a_bounded_number_of_threads(
    slow: SlowPage,
) -> None:
    with serving(pages={"/slow": slow}) as endpoint:
        for _ in range(300):
            with socket.create_connection(("127.0.0.1", endpoint.port), PATIENCE_SECONDS) as client:
                client.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
            assert slow.threads() <= 64
        assert eventually(lambda: slow.threads() == 16)

        assert get(endpoint.port, "/healthz")[0] == 200
        assert get(endpoint.port, "/slow") == (503, "expected at most 16 requests at a time")
        slow.go_on.set()
        assert eventually(lambda: slow.threads() == 0)
        assert get(endpoint.port, "/slow")[0] == 200


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with cluster_with() as made:
        made.plugin_flags.extend(["--health-address", f"127.0.0.1:{port_of_no_client()}"])
        yield made


def probe(cluster: SimulatedCluster, path: str) -> tuple[int, str]:
    return get(int(cluster.plugin_flags[-1].rpartition(":")[2]), path)


@pytest.mark.process
def test_the_node_plugin_is_alive_at_once_and_ready_when_the_kubelet_has_registered_it(
    cluster: SimulatedCluster,
) -> None:
    cluster.kubelet.stop()
    cluster.start_plugin()
    cluster.until("serving", lambda: bool(log_lines(cluster, "serving")))

    assert probe(cluster, "/healthz") == (200, "ok")
    status, text = probe(cluster, "/readyz")
    assert (status, text.rpartition("/")[2]) == (503, "dra.sock: not registered by the kubelet")

    cluster.start_kubelet()
    cluster.until("ready", lambda: probe(cluster, "/readyz") == (200, "ok"))
    assert probe(cluster, "/healthz") == (200, "ok")


@pytest.mark.process
def test_a_deleted_socket_file_makes_the_node_plugin_unhealthy(cluster: SimulatedCluster) -> None:
    cluster.start_plugin()
    cluster.until("registered", lambda: bool(log_lines(cluster, "registered")))
    cluster.until("serving", lambda: bool(log_lines(cluster, "serving")))
    socket_path = next(iter(Path(cluster.kubelet_root).rglob("dra.sock")))

    socket_path.unlink()

    # Soon after this answer the process serves a new socket, or ends.
    cluster.until("unhealthy", lambda: str(socket_path) in probe(cluster, "/healthz")[1])
