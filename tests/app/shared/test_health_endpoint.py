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

from tensorfusion_dra.app.shared import health_endpoint
from tensorfusion_dra.app.shared.health_endpoint import Check, HealthEndpoint, Page
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.app.simulate.free_ports import port_of_no_client
from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.runtime.http_server import Request, Response
from tests.app.node_plugin.test_node_plugin_process import cluster_with, log_lines
from tests.support.waiting import PATIENCE_SECONDS, eventually


class Question:
    """A check that fails with `trouble` if it is set, and counts its calls."""

    def __init__(self) -> None:
        self.trouble = ""
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.trouble:
            raise RetryableError(self.trouble)


@contextmanager
def serving(
    question: Callable[[], None] = lambda: None,
    pages: Mapping[str, Page] | None = None,
    *,
    host: str = "127.0.0.1",
) -> Iterator[HealthEndpoint]:
    endpoint = HealthEndpoint({"/healthz": question}, pages, host=host, port=0)
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.stop()


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode().strip()
    finally:
        connection.close()


def wait_registered(cluster: SimulatedCluster) -> None:
    """Wait until the kubelet has registered the plugin, which also answers probes by then.

    The kubelet may register it before that: the sockets come first.
    """
    cluster.until("registered", lambda: bool(log_lines(cluster, "registered")))
    cluster.until("serving", lambda: bool(log_lines(cluster, "serving")))


def test_a_failing_check_answers_503_with_the_error() -> None:
    question = Question()
    question.trouble = "dra.sock: UNAVAILABLE"
    with serving(question) as endpoint:
        assert get(endpoint.port, "/healthz") == (503, "dra.sock: UNAVAILABLE")


def test_many_probes_in_a_second_run_the_check_once() -> None:
    question = Question()
    check = Check("healthz", question)

    for _ in range(100):
        assert check.trouble() == ""

    assert question.calls == 1


def test_a_port_in_use_is_a_fatal_error() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(FatalError, match=r"^health-port [0-9]+: Address already in use$"),
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


def test_a_page_learns_the_facts_of_its_request() -> None:
    with serving(pages={"/echo": echo}) as endpoint:
        headers = {"Accept": "text/html", "Host": "node.example:8080"}
        status, answered, body = ask(endpoint.port, "/echo?a=1&b", headers=headers)

    assert status == 200
    assert answered["Content-Type"] == "application/json"
    assert answered["Cache-Control"] == "no-store"
    assert json.loads(body) == {
        "path": "/echo",
        "query": "a=1&b",
        "accept": "text/html",
        "host": "node.example:8080",
        "from_loopback": True,
    }


def test_head_gets_the_headers_of_get_without_the_body() -> None:
    with serving(pages={"/echo": echo}) as endpoint:
        got = ask(endpoint.port, "/echo")
        status, headers, body = ask(endpoint.port, "/echo", method="HEAD")

    assert (status, body) == (200, b"")
    assert headers["Content-Length"] == str(len(got[2]))
    assert headers["Content-Type"] == "application/json"


def test_a_failing_page_answers_500_and_is_logged_and_probes_go_on() -> None:
    with serving(pages={"/bad": failing, "/echo": echo}) as endpoint, capture_logs() as logged:
        status, _, body = ask(endpoint.port, "/bad")
        again = ask(endpoint.port, "/bad")[0]

        assert (status, again) == (500, 500)
        assert body == b"KeyError, see the log\n"
        assert ask(endpoint.port, "/healthz")[0] == 200
        assert ask(endpoint.port, "/echo")[0] == 200

    failed = [line for line in logged if line["event"] == "page_failed"]
    assert [line["path"] for line in failed] == ["/bad"]


def test_an_unknown_path_names_checks_and_pages() -> None:
    with serving(pages={"/echo": echo}) as endpoint:
        assert ask(endpoint.port, "/x")[::2] == (404, b"expected one of /healthz, /echo\n")


def test_probes_find_room_beside_as_many_pages_as_are_answered_at_a_time() -> None:
    go_on = Event()
    arrived: list[str] = []

    def slow(request: Request) -> Response:
        arrived.append(request.path)
        assert go_on.wait(PATIENCE_SECONDS)
        return Response(body=b"slow")

    with serving(pages={"/slow": slow}) as endpoint:
        readers = [
            Thread(target=ask, args=(endpoint.port, "/slow"))
            for _ in range(health_endpoint._MOST_PAGES)
        ]
        for reader in readers:
            reader.start()
        assert eventually(lambda: len(arrived) == health_endpoint._MOST_PAGES)

        refused = ask(endpoint.port, "/slow")
        probed = ask(endpoint.port, "/healthz")
        go_on.set()
        for reader in readers:
            reader.join(PATIENCE_SECONDS)
        afterwards = ask(endpoint.port, "/slow")

    assert refused[0] == 503
    assert probed[0] == 200
    assert afterwards[::2] == (200, b"slow")


def test_the_node_plugin_is_ready_once_the_kubelet_has_registered_it() -> None:
    port = port_of_no_client()
    with cluster_with() as cluster:
        cluster.plugin_flags.extend(["--health-host", "127.0.0.1", "--health-port", str(port)])
        cluster.start_plugin()
        wait_registered(cluster)

        assert get(port, "/healthz") == (200, "ok")
        cluster.until("ready", lambda: get(port, "/readyz") == (200, "ok"))


def test_the_node_plugin_is_alive_but_not_ready_before_registration() -> None:
    port = port_of_no_client()
    with cluster_with() as cluster:
        cluster.plugin_flags.extend(["--health-host", "127.0.0.1", "--health-port", str(port)])
        cluster.kubelet.stop()
        cluster.start_plugin()
        cluster.until("serving", lambda: bool(log_lines(cluster, "serving")))

        assert get(port, "/healthz") == (200, "ok")
        status, text = get(port, "/readyz")
        assert status == 503
        assert text.endswith("dra.sock: not registered by the kubelet")


def test_a_deleted_socket_file_makes_the_node_plugin_unhealthy() -> None:
    port = port_of_no_client()
    with cluster_with() as cluster:
        cluster.plugin_flags.extend(["--health-host", "127.0.0.1", "--health-port", str(port)])
        cluster.start_plugin()
        wait_registered(cluster)
        socket_path = next(iter(Path(cluster.kubelet_root).rglob("dra.sock")))

        socket_path.unlink()

        cluster.until("seen", lambda: get(port, "/healthz")[0] == 503)
        assert str(socket_path) in get(port, "/healthz")[1]
