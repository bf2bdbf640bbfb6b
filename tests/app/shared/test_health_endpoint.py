"""Answers of the health endpoint to probes, and the pages beside them."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.app.shared.health_endpoint import HealthEndpoint, Page, Probe
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster, port_of_no_client
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.runtime.http_server import Request, Response
from tests.app.node_plugin.test_node_plugin_process import cluster_with, log_lines
from tests.support.waiting import PATIENCE_SECONDS, eventually


@contextmanager
def serving(
    question: Callable[[], None] = lambda: None,
    pages: Mapping[str, Page] | None = None,
) -> Iterator[HealthEndpoint]:
    endpoint = HealthEndpoint({"/healthz": question}, pages, host="127.0.0.1", port=0)
    try:
        yield endpoint
    finally:
        endpoint.stop()


def ask(
    port: int, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, Mapping[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def get(port: int, path: str) -> tuple[int, str]:
    status, _, body = ask(port, path)
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
        pytest.raises(InputError, match=r"^health-port [0-9]+: Address already in use$"),
    ):
        HealthEndpoint({}, host="127.0.0.1", port=taken.getsockname()[1])


def echo(request: Request) -> Response:
    """Answer with the facts of the request."""
    facts = {
        "path": request.path,
        "query": request.query,
        "accept": request.accept,
        "host": request.host,
        "from_loopback": request.from_loopback,
    }
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

    assert (status, answered["Content-Type"]) == (200, "application/json")
    assert answered["Cache-Control"] == "no-store"
    assert json.loads(body) == {
        "path": "/echo",
        "query": "a=1&b",
        "accept": "text/html",
        "host": "node.example:8080",
        "from_loopback": True,
    }
    assert (head[0], head[2]) == (200, b"")
    assert (head[1]["Content-Length"], head[1]["Content-Type"]) == (
        str(len(body)),
        "application/json",
    )


def test_a_failing_page_answers_500_with_a_log_line_an_unknown_one_404_and_probes_go_on() -> None:
    with serving(pages={"/bad": failing, "/echo": echo}) as endpoint, capture_logs() as logged:
        assert get(endpoint.port, "/bad") == (500, "KeyError, see the log")
        assert get(endpoint.port, "/healthz")[0] == 200
        assert get(endpoint.port, "/echo")[0] == 200
        assert get(endpoint.port, "/x") == (404, "expected one of /healthz, /bad, /echo")

    failed = [line for line in logged if line["event"] == "page_failed"]
    assert [line["path"] for line in failed] == ["/bad"]


def test_one_page_is_made_at_a_time_and_probes_find_room_beside_it() -> None:
    go_on = Event()
    arrived: list[str] = []

    def slow(request: Request) -> Response:
        arrived.append(request.path)
        assert go_on.wait(PATIENCE_SECONDS)
        return Response(body=b"slow")

    with serving(pages={"/slow": slow}) as endpoint:
        readers = [Thread(target=ask, args=(endpoint.port, "/slow")) for _ in range(4)]
        for reader in readers:
            reader.start()
        assert eventually(lambda: bool(arrived))

        assert get(endpoint.port, "/healthz")[0] == 200
        assert len(arrived) == 1
        go_on.set()
        for reader in readers:
            reader.join(PATIENCE_SECONDS)
        assert len(arrived) == 4


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with cluster_with() as made:
        flags = ["--health-host", "127.0.0.1", "--health-port", str(port_of_no_client())]
        made.plugin_flags.extend(flags)
        yield made


def probe(cluster: SimulatedCluster, path: str) -> tuple[int, str]:
    return get(int(cluster.plugin_flags[-1]), path)


@pytest.mark.process
def test_the_node_plugin_is_alive_at_once_and_ready_when_the_kubelet_has_registered_it(
    cluster: SimulatedCluster,
) -> None:
    cluster.kubelet.stop()
    cluster.start_plugin()
    cluster.until("serving", lambda: bool(log_lines(cluster, "serving")))

    assert probe(cluster, "/healthz") == (200, "ok")
    status, text = probe(cluster, "/readyz")
    assert status == 503
    assert text.endswith("dra.sock: not registered by the kubelet")

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

    # The answer that says it: soon after it the process serves a new socket, or ends.
    seen: list[str] = []

    def is_unhealthy() -> bool:
        status, text = probe(cluster, "/healthz")
        seen.append(text)
        return status == 503

    cluster.until("seen", is_unhealthy)
    assert str(socket_path) in seen[-1]
