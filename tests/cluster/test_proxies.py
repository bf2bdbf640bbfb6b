"""Requests through proxies, of the environment and of a kubeconfig."""

import json
import socket
import socketserver
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trustme

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.errors import RetryableError
from tests.support.answers import SLICES_PATH
from tests.support.raw_server import RawServer, head, served

EMPTY = head("Content-Length: 2") + b"{}"
TUNNEL_HEAD = b"HTTP/1.1 200 Connection established\r\n\r\n"


@pytest.fixture(autouse=True)
def _no_proxies_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def kubeconfig(folder: Path, **cluster: Any) -> Path:
    """Write a kubeconfig with the token ``abc`` and these settings, and return its path."""
    path = folder / "kubeconfig"
    document = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "abc"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return path


def url(server: socketserver.TCPServer, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{server.server_address[1]}"


class TunnelProxy(socketserver.ThreadingTCPServer):
    """An HTTP proxy that connects to one address, whichever the client requests.

    Attributes:
        requests: The first lines of all requests so far.
        answer: What the client gets before it is connected.
    """

    daemon_threads = True

    def __init__(self, target: tuple[str, int], answer: bytes = TUNNEL_HEAD) -> None:
        self.target = target
        self.answer = answer
        self.requests: list[str] = []
        super().__init__(("127.0.0.1", 0), _Tunnel)


class _Tunnel(socketserver.StreamRequestHandler):
    server: TunnelProxy

    def handle(self) -> None:
        self.server.requests.append(self.rfile.readline().decode().strip())
        while self.rfile.readline().strip():
            pass
        self.wfile.write(self.server.answer)
        if self.server.answer != TUNNEL_HEAD:
            return
        with socket.create_connection(self.server.target) as onward:
            back = Thread(target=copy, args=(onward, self.connection))
            back.start()
            copy(self.connection, onward)
            back.join()


def copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):  # one side has closed its connection
        while piece := source.recv(4096):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def running(server: socketserver.TCPServer) -> Iterator[None]:
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure_server(authority: trustme.CA) -> Iterator[RawServer]:
    """A server with TLS, certified for 127.0.0.1 and for cluster.example."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "cluster.example").configure_cert(context)
    server = RawServer(lambda: [EMPTY], pause_seconds=0.0)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with running(server):
        yield server
        server.closing.set()


def trusting(folder: Path, authority: trustme.CA) -> dict[str, str]:
    file = folder / "ca.crt"
    authority.cert_pem.write_to_path(str(file))
    return {"certificate-authority": str(file)}


def test_proxy_passes_plain_requests_on(tmp_path: Path) -> None:
    with served(lambda: [EMPTY]) as proxy:
        server = "http://cluster.example:8080/k8s/clusters/a"
        api = Api(kubeconfig(tmp_path, server=server, **{"proxy-url": url(proxy)}))
        for _ in range(2):
            assert api.call("GET", SLICES_PATH, query={"limit": "1"}) == {}

        assert proxy.requests == [f"GET {server}{SLICES_PATH}?limit=1 HTTP/1.1"] * 2
        assert proxy.headers["host"] == "cluster.example:8080"
        assert proxy.headers["authorization"] == "Bearer abc"
        assert proxy.accepted == 1


def test_path_of_a_server_comes_before_each_path(tmp_path: Path) -> None:
    with served(lambda: [EMPTY]) as server:
        api = Api(kubeconfig(tmp_path, server=f"{url(server)}/k8s/clusters/a/"))

        api.call("GET", SLICES_PATH)

        assert server.requests == [f"GET /k8s/clusters/a{SLICES_PATH} HTTP/1.1"]


@pytest.mark.parametrize("from_environment", [False, True])
def test_tls_goes_through_a_tunnel_once_for_each_connection(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    authority: trustme.CA,
    secure_server: RawServer,
    from_environment: bool,
) -> None:
    proxy = TunnelProxy(("127.0.0.1", secure_server.server_address[1]))
    with running(proxy):
        settings = {"server": "https://cluster.example:6443", **trusting(tmp_path, authority)}
        if from_environment:
            monkeypatch.setenv("HTTPS_PROXY", url(proxy))
        else:
            settings["proxy-url"] = url(proxy)
        api = Api(kubeconfig(tmp_path, **settings))
        for _ in range(3):
            assert api.call("GET", SLICES_PATH) == {}

        (request,) = proxy.requests
        assert request.startswith("CONNECT cluster.example:6443 HTTP/1.")
        assert secure_server.requests == [f"GET {SLICES_PATH} HTTP/1.1"] * 3
        assert secure_server.headers["host"] == "cluster.example:6443"


@pytest.mark.parametrize("exempt", ["127.0.0.1", "127.0.0.0/8", "*"])
def test_no_proxy_is_heeded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    authority: trustme.CA,
    secure_server: RawServer,
    exempt: str,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", exempt)
    settings = {"server": url(secure_server, "https"), **trusting(tmp_path, authority)}

    assert Api(kubeconfig(tmp_path, **settings)).call("GET", SLICES_PATH) == {}


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000, "header line|more than 65536"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000, "more than 100 headers|closed"),
        (b"nonsense\r\n\r\n", "nonsense"),
        (b"", "."),
    ],
    ids=["refused", "long-line", "long-head", "nonsense", "closed"],
)
def test_refusal_of_a_proxy_is_reported(tmp_path: Path, answer: bytes, found: str) -> None:
    proxy = TunnelProxy(("127.0.0.1", 1), answer)
    with running(proxy):
        settings = {"server": "https://cluster.example:6443", "proxy-url": url(proxy)}
        api = Api(kubeconfig(tmp_path, **settings))

        with pytest.raises(RetryableError, match=rf"^GET {SLICES_PATH}: .*({found})"):
            api.call("GET", SLICES_PATH)
