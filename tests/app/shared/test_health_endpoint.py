"""Answers of the health endpoint to probes over HTTP."""

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from tensorfusion_dra.app.shared import health_endpoint
from tensorfusion_dra.app.shared.health_endpoint import Check, HealthEndpoint
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.app.simulate.free_ports import port_of_no_client
from tensorfusion_dra.core.errors import FatalError, RetryableError
from tests.app.node_plugin.test_node_plugin_process import cluster_with, log_lines
from tests.support.backlog import connected_at_once
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
def serving(question: Callable[[], None], port: int = 0) -> Iterator[HealthEndpoint]:
    endpoint = HealthEndpoint({"/healthz": question}, host="127.0.0.1", port=port)
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


def test_a_healthy_check_answers_200() -> None:
    with serving(Question()) as endpoint:
        assert get(endpoint.port, "/healthz") == (200, "ok")


def test_a_failing_check_answers_503_with_the_error() -> None:
    question = Question()
    question.trouble = "dra.sock: UNAVAILABLE"
    with serving(question) as endpoint:
        assert get(endpoint.port, "/healthz") == (503, "dra.sock: UNAVAILABLE")


def test_an_unknown_path_answers_404() -> None:
    with serving(Question()) as endpoint:
        assert get(endpoint.port, "/metrics") == (404, "expected one of /healthz")


def test_an_endpoint_that_answered_a_probe_can_be_started_again_at_once() -> None:
    port = port_of_no_client()
    for _ in range(2):
        with serving(Question(), port=port) as endpoint:
            assert get(endpoint.port, "/healthz") == (200, "ok")


def test_many_probes_in_a_second_run_the_check_once() -> None:
    question = Question()
    check = Check("healthz", question)

    for _ in range(100):
        assert check.trouble() == ""

    assert question.calls == 1


def test_a_probe_is_answered_while_silent_connections_fill_all_slots() -> None:
    with serving(Question()) as endpoint, ExitStack() as silent:
        for _ in range(health_endpoint._MOST_WAITING + 10):
            silent.enter_context(connected(endpoint))

        assert get(endpoint.port, "/healthz") == (200, "ok")


def test_a_probe_need_not_connect_again_when_many_clients_connect_at_once() -> None:
    endpoint = HealthEndpoint({"/healthz": Question()}, host="127.0.0.1", port=0)
    try:
        assert connected_at_once(endpoint.port, 300) == 300
    finally:
        endpoint.stop()


def test_a_connection_that_sends_its_request_too_slowly_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health_endpoint, "_REQUEST_SECONDS", 0.5)
    with serving(Question()) as endpoint, connected(endpoint) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nX: ")

        def is_cut() -> bool:
            try:
                slow.sendall(b"x")
            except OSError:
                return True
            return False

        assert eventually(is_cut)


def test_an_endless_request_is_cut_off() -> None:
    with serving(Question()) as endpoint, connected(endpoint) as flooding:
        line = b"X: " + b"x" * 1000 + b"\r\n"
        with suppress(OSError):  # the server hangs up
            flooding.sendall(b"GET /healthz HTTP/1.1\r\n" + line * 10_000)
        flooding.settimeout(PATIENCE_SECONDS)
        with suppress(OSError):
            while flooding.recv(65536):
                pass

        assert get(endpoint.port, "/healthz") == (200, "ok")
        assert eventually(lambda: not endpoint._waiting)


def test_a_request_in_progress_is_not_cut_for_newer_connections() -> None:
    question, called, go_on = Question(), Event(), Event()

    def slow_question() -> None:
        called.set()
        assert go_on.wait(PATIENCE_SECONDS)
        question()

    with serving(slow_question) as endpoint, ExitStack() as silent:
        answers: list[tuple[int, str]] = []
        probing = Thread(target=lambda: answers.append(get(endpoint.port, "/healthz")))
        probing.start()
        assert called.wait(PATIENCE_SECONDS)
        for _ in range(health_endpoint._MOST_WAITING + 10):
            silent.enter_context(connected(endpoint))
        go_on.set()
        probing.join(PATIENCE_SECONDS)

    assert answers == [(200, "ok")]


def connected(endpoint: HealthEndpoint) -> socket.socket:
    return socket.create_connection(("127.0.0.1", endpoint.port))


def test_a_port_in_use_is_a_fatal_error() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(FatalError, match=r"^health-port [0-9]+: Address already in use$"),
    ):
        HealthEndpoint({}, host="127.0.0.1", port=taken.getsockname()[1])


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
