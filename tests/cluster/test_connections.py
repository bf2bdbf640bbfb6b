"""Connections and logins: certificates, proxies, tokens, and errors of broken kubeconfigs."""

import base64
import itertools
import json
import socket
import socketserver
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import trustme

from tensorfusion_dra.cluster import login
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.login import Login
from tensorfusion_dra.core.errors import InputError, RetryableError
from tests.support.answers import SLICES_PATH, Answers, failing
from tests.support.raw_server import HANG_UP, RawServer, head, served
from tests.support.servers import serving, url, write_kubeconfig
from tests.support.waiting import PATIENCE_SECONDS

EMPTY = head("Content-Length: 2") + b"{}"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")


class Authority:
    """A certificate authority without key usage, as openssl creates it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._key = folder, folder / "ca.key"
        self.certificate = folder / "ca.crt"
        config = folder / "ca.cnf"
        config.write_text(
            "[req]\ndistinguished_name=dn\nx509_extensions=ca\n[dn]\n[ca]\nbasicConstraints=CA:TRUE\n"
        )
        files = ("-config", config, "-keyout", self._key, "-out", self.certificate)
        _openssl("req", "-x509", *KEY, "-subj", "/CN=cluster", *files)

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a server at 127.0.0.1, certified by this authority."""
        request, key, certificate, names = (
            self._folder / name for name in ("csr", "key", "crt", "ext")
        )
        names.write_text("subjectAltName=IP:127.0.0.1\n")
        _openssl("req", *KEY, "-subj", "/CN=server", "-keyout", key, "-out", request)
        authority = ("-CA", self.certificate, "-CAkey", self._key)
        _openssl("x509", "-req", "-in", request, *authority, "-extfile", names, "-out", certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(
        ["openssl", *arguments], check=True, capture_output=True, timeout=PATIENCE_SECONDS
    )


class SecureServer(RawServer):
    """A server with TLS.

    Attributes:
        clients: The name in the certificate of each connection's client, if it has sent one.
    """

    def __init__(self, context: ssl.SSLContext, *answer: bytes) -> None:
        super().__init__(lambda: answer, pause_seconds=0.0)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.clients: list[str] = []

    def finish_request(self, request: Any, client_address: Any) -> None:
        subject = (request.getpeercert() or {}).get("subject", ())
        self.clients += [text for ((name, text),) in subject if name == "commonName"]
        super().finish_request(request, client_address)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that certified the API server."""
    return Authority(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="module")
def tls_url(authority: Authority) -> Iterator[str]:
    """URL of an API server with TLS."""
    server = SecureServer(authority.context(), EMPTY, HANG_UP)
    with serving(server):
        yield url(server, "https")


def api(
    folder: Path,
    tls_url: str,
    trusted: Authority | None,
    user: dict[str, str] | None = None,
    **settings: Any,
) -> Api:
    """Return a client that trusts this authority; None trusts any server."""
    trust: dict[str, Any] = {"insecure-skip-tls-verify": True}
    if trusted is not None:
        trust = {"certificate-authority": str(trusted.certificate)}
    return Api(write_kubeconfig(folder / "kubeconfig", user, server=tls_url, **trust, **settings))


@pytest.mark.process
@pytest.mark.parametrize(
    ("host", "trusts", "settings"),
    [
        # A CA without key usage, which Go clients trust.
        ("127.0.0.1", True, {}),
        ("127.0.0.1", False, {}),
        ("localhost", True, {"tls-server-name": "127.0.0.1"}),
    ],
    ids=["by its CA", "without verification", "by another name"],
)
def test_kubeconfig_says_how_the_server_is_verified(
    authority: Authority,
    tls_url: str,
    tmp_path: Path,
    host: str,
    settings: dict[str, Any],
    *,
    trusts: bool,
) -> None:
    there = tls_url.replace("127.0.0.1", host)
    client = api(tmp_path, there, authority if trusts else None, **settings)

    assert client.call("GET", SLICES_PATH, wait_seconds=5) == {}


@pytest.mark.process
def test_server_of_another_ca_is_not_trusted(tls_url: str, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")

    with pytest.raises(RetryableError, match="CERTIFICATE_VERIFY_FAILED"):
        api(tmp_path, tls_url, other).call("GET", SLICES_PATH, wait_seconds=5)


class ClientFiles:
    """Certificate and key of a client."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.certificate, self.key = folder / "client.crt", folder / "client.key"
        self.write("first")

    def write(self, name: str) -> None:
        """Replace the files by new ones with this name, as a rotation does."""
        issued = self.authority.issue_cert(common_name=name)
        for file, text in (
            (self.key, issued.private_key_pem.bytes()),
            (self.certificate, issued.cert_chain_pems[0].bytes()),
        ):
            file.with_suffix(".new").write_bytes(text)
            file.with_suffix(".new").replace(file)


@pytest.fixture
def client_files(tmp_path: Path) -> ClientFiles:
    return ClientFiles(tmp_path)


@pytest.fixture
def certified(authority: Authority, client_files: ClientFiles) -> Iterator[SecureServer]:
    """A server that requires a client certificate, and ends each connection with its answer."""
    context = authority.context()
    context.verify_mode = ssl.CERT_REQUIRED
    client_files.authority.configure_trust(context)
    server = SecureServer(context, EMPTY, HANG_UP)
    with serving(server):
        yield server


@pytest.fixture
def api_with_certificate(
    certified: SecureServer, authority: Authority, client_files: ClientFiles, tmp_path: Path
) -> Api:
    user = {
        "client-certificate": str(client_files.certificate),
        "client-key": str(client_files.key),
    }
    return api(tmp_path, url(certified, "https"), authority, user)


@pytest.mark.process
def test_no_context_is_changed_once_a_connection_uses_it(
    api_with_certificate: Api, certified: SecureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[ssl.SSLContext] = []
    load = ssl.SSLContext.load_cert_chain

    def noted(context: ssl.SSLContext, *arguments: Any, **named: Any) -> None:
        loaded.append(context)
        load(context, *arguments, **named)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", noted)

    # A change of a context that another thread uses crashes the process.
    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(partial(api_with_certificate.call, "GET"), [SLICES_PATH] * 24)
        assert list(answers) == [{}] * 24

    assert certified.clients == ["first"] * 24
    assert len(set(map(id, loaded))) == len(loaded)


@pytest.mark.process
def test_renewed_certificate_is_used_for_new_connections(
    api_with_certificate: Api, certified: SecureServer, client_files: ClientFiles
) -> None:
    for name in ("first", "second"):
        client_files.write(name)
        api_with_certificate.call("GET", SLICES_PATH)

    assert certified.clients == ["first", "second"]


@pytest.mark.process
def test_certificate_that_is_half_renewed_is_retryable(
    api_with_certificate: Api, certified: SecureServer, client_files: ClientFiles
) -> None:
    key = client_files.key.read_bytes()
    client_files.write("second")
    renewed = client_files.key.read_bytes()
    client_files.key.write_bytes(key)
    with pytest.raises(RetryableError, match=r"(?i)key.values.mismatch"):
        api_with_certificate.call("GET", SLICES_PATH)
    client_files.key.unlink()
    with pytest.raises(RetryableError, match="No such file"):
        api_with_certificate.call("GET", SLICES_PATH)

    client_files.key.write_bytes(renewed)

    assert api_with_certificate.call("GET", SLICES_PATH) == {}
    assert certified.clients == ["second"]


@pytest.mark.process
def test_key_with_a_password_is_refused(
    api_with_certificate: Api, client_files: ClientFiles
) -> None:
    plain = client_files.key.rename(client_files.key.with_suffix(".plain"))
    files = ("-in", plain, "-out", client_files.key)
    _openssl("pkey", "-aes128", "-passout", "pass:abcd", *files)

    with pytest.raises(RetryableError, match="key is encrypted, password is required"):
        api_with_certificate.call("GET", SLICES_PATH)


TUNNEL_HEAD = b"HTTP/1.1 200 Connection established\r\n\r\n"


@pytest.fixture(autouse=True)
def _no_proxies_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def kubeconfig(folder: Path, **cluster: Any) -> Path:
    """Write a kubeconfig with the token ``abc`` and these settings, and return its path."""
    return write_kubeconfig(folder / "kubeconfig", {"token": "abc"}, **cluster)


class TunnelProxy(socketserver.ThreadingTCPServer):
    """An HTTP proxy that connects to one address, whichever the client requests.

    Attributes:
        requests: The first lines of all requests so far.
        answer: What the client gets before it is connected.
    """

    daemon_threads = True

    def __init__(self, target: tuple[str, int], answer: bytes = TUNNEL_HEAD) -> None:
        self.target, self.answer = target, answer
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


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure_server(ca: trustme.CA) -> Iterator[SecureServer]:
    """A server with TLS, certified for 127.0.0.1 and for cluster.example."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1", "cluster.example").configure_cert(context)
    server = SecureServer(context, EMPTY)
    with serving(server):
        yield server
        server.closing.set()


def trusting(folder: Path, ca: trustme.CA) -> dict[str, str]:
    file = folder / "ca.crt"
    ca.cert_pem.write_to_path(str(file))
    return {"certificate-authority": str(file)}


def test_plain_requests_go_through_a_tunnel_to_the_servers_path(tmp_path: Path) -> None:
    with served(lambda: [EMPTY]) as server:
        proxy = TunnelProxy(("127.0.0.1", server.server_address[1]))
        with serving(proxy):
            settings = {"server": "http://cluster.example:8080/a/", "proxy-url": url(proxy)}
            api = Api(kubeconfig(tmp_path, **settings))
            for _ in range(2):
                assert api.call("GET", SLICES_PATH, query={"limit": "1"}) == {}

    (request,) = proxy.requests
    assert request.startswith("CONNECT cluster.example:8080 HTTP/1.")
    assert server.requests == [f"GET /a{SLICES_PATH}?limit=1 HTTP/1.1"] * 2
    expected = {"host": "cluster.example:8080", "authorization": "Bearer abc"}
    assert server.headers.items() >= expected.items()


@pytest.mark.parametrize("from_environment", [False, True])
def test_tls_goes_through_a_tunnel_once_for_each_connection(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ca: trustme.CA,
    secure_server: RawServer,
    from_environment: bool,
) -> None:
    proxy = TunnelProxy(("127.0.0.1", secure_server.server_address[1]))
    with serving(proxy):
        settings = {"server": "https://cluster.example:6443", **trusting(tmp_path, ca)}
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
    ca: trustme.CA,
    secure_server: RawServer,
    exempt: str,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", exempt)
    settings = {"server": url(secure_server, "https"), **trusting(tmp_path, ca)}

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
    with serving(proxy):
        settings = {"server": "https://cluster.example:6443", "proxy-url": url(proxy)}

        with pytest.raises(RetryableError, match=rf"^GET {SLICES_PATH}: .*({found})"):
            Api(kubeconfig(tmp_path, **settings)).call("GET", SLICES_PATH)


@pytest.mark.parametrize("scheme", ["https", "socks5"])
def test_proxy_that_speaks_no_plain_http_is_refused_without_its_password(
    tmp_path: Path, scheme: str
) -> None:
    settings = {"server": "https://cluster.example", "proxy-url": f"{scheme}://me:s3cr3t@a:1"}
    path = kubeconfig(tmp_path, **settings)
    expected = f"kubeconfig {path}: proxy: found '{scheme}', expected http://HOST:PORT"

    with pytest.raises(InputError, match=f"^{expected}$"):
        Api(path).connect()


def test_answer_of_a_proxy_that_drips_bytes_times_out(tmp_path: Path) -> None:
    pieces = itertools.chain([b"HTTP/1.1 200 "], itertools.repeat(b"x"))
    with served(lambda: pieces, pause_seconds=0.05) as proxy:
        settings = {"server": "https://cluster.example:6443", "proxy-url": url(proxy)}

        with pytest.raises(RetryableError, match="no answer within the time"):
            Api(kubeconfig(tmp_path, **settings)).call("GET", SLICES_PATH, wait_seconds=1)


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({}, ""),
        (
            {"username": "admin", "password": "s3cr3t"},
            f"Basic {base64.b64encode(b'admin:s3cr3t').decode()}",
        ),
        ({"tokenFile": "token"}, "Bearer abc"),
    ],
    ids=["no credentials", "password", "token file, which may end with a line break"],
)
def test_credentials_of_a_kubeconfigs_user_are_sent(
    answers: Answers, tmp_path: Path, user: dict[str, str], header: str
) -> None:
    (tmp_path / "token").write_text("abc\n")

    Api(answers.kubeconfig(tmp_path, user)).call("GET", SLICES_PATH)

    assert answers.tokens == [header]


def plugin(folder: Path, **status: str) -> dict[str, Any]:
    """Return a user whose tokens a plugin prints: ``token-1``, ``token-2`` and so on."""
    script = folder / "plugin"
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "token-N", **status},
    }
    script.write_text(
        f"#!/bin/sh\necho >>{folder}/runs\n"
        f"echo '{json.dumps(answer)}' | sed s/-N/-$(wc -l <{folder}/runs)/\n"
    )
    script.chmod(0o755)
    return {"exec": {"apiVersion": answer["apiVersion"], "command": str(script)}}


@pytest.mark.process
@pytest.mark.parametrize(
    ("expires", "tokens"),
    [
        ("2020-01-01T00:00:00Z", ["Bearer token-2", "Bearer token-3"]),
        ("2999-01-01T00:00:00Z", ["Bearer token-1", "Bearer token-1"]),
    ],
    ids=["expired", "lasting"],
)
def test_plugin_runs_again_only_when_its_token_has_expired(
    answers: Answers,
    tmp_path: Path,
    expires: str,
    tokens: list[str],
) -> None:
    user = plugin(tmp_path, expirationTimestamp=expires)
    api = Api(answers.kubeconfig(tmp_path, user))
    for _ in tokens:
        api.call("GET", SLICES_PATH)

    assert answers.tokens == tokens


@pytest.mark.process
def test_late_rejection_of_an_old_login_leaves_the_new_one(tmp_path: Path) -> None:
    arrived, late = Event(), Event()
    rejected = head("Content-Length: 2", status=401) + b"{}"
    answers = iter([rejected, rejected, EMPTY, EMPTY])

    def answer() -> Iterable[bytes]:
        own = next(answers)
        if not arrived.is_set():  # the first request is rejected last
            arrived.set()
            assert late.wait(PATIENCE_SECONDS)
        return [own]

    with served(answer) as server, ThreadPoolExecutor(1) as thread:
        api = Api(server.kubeconfig(tmp_path, plugin(tmp_path)))
        waiting = thread.submit(failing, api, PATIENCE_SECONDS)
        assert arrived.wait(PATIENCE_SECONDS)
        assert failing(api).status == 401
        api.call("GET", SLICES_PATH)

        late.set()
        assert waiting.result().status == 401
        api.call("GET", SLICES_PATH)

    assert (tmp_path / "runs").read_text().count("\n") == 2


@pytest.fixture
def pod(answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    """A client in a process that looks like a pod; the test's server has no TLS."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(answers.server_address[1]))
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("any")
    log_in = partial(login.of_service_account, folder=tmp_path, scheme="http")
    monkeypatch.setattr(login, "of_service_account", log_in)
    return Api(None)


def test_service_account_token_is_read_for_each_request(
    pod: Api, answers: Answers, tmp_path: Path
) -> None:
    for token in ("first", "second"):
        (tmp_path / "token").write_text(token)
        pod.call("GET", SLICES_PATH)

    assert answers.tokens == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (partial(Path.write_text, data=""), r"credentials: found no token in .*/token"),
        (Path.unlink, "credentials: No such file or directory"),
    ],
)
def test_service_account_token_that_is_gone_is_retryable(
    pod: Api, tmp_path: Path, damage: Callable[[Path], object], error: str
) -> None:
    pod.call("GET", SLICES_PATH)
    damage(tmp_path / "token")

    with pytest.raises(RetryableError, match=error):
        pod.call("GET", SLICES_PATH)


def test_process_without_a_service_account_is_an_input_error(pod: Api, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").unlink()

    with pytest.raises(InputError, match="in-cluster configuration: found no API server"):
        pod.connect()


@pytest.mark.process
def test_login_in_a_pod_loads_no_kubernetes_library(tmp_path: Path) -> None:
    code = """
import os, pathlib, sys
from tensorfusion_dra.cluster import login
os.environ |= {"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": "1"}
folder = pathlib.Path(sys.argv[1])
assert login.of_service_account(folder=folder).header(wait_seconds=1)
assert not {"kubernetes", "pydantic", "requests", "urllib3", "yaml"} & set(sys.modules)
"""
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("any")

    subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)],
        timeout=PATIENCE_SECONDS,
        check=True,
    )


def reading(read: Callable[[], str | None]) -> Login:
    """Return a login whose header is read in this way."""
    return Login("https://a", read, ssl.create_default_context)


def test_line_break_in_a_token_is_refused_without_the_token() -> None:
    found = reading(lambda: "Bearer s3cr3t\r\nX-Remote-User: root")

    with pytest.raises(ValueError, match="control character") as caught:
        found.header(wait_seconds=1)

    assert "s3cr3t" not in str(caught.value)


def test_latest_two_tokens_are_secrets() -> None:
    values = iter(["Bearer a", "Bearer b", "Bearer b", "Basic c"])
    found = reading(lambda: next(values))
    for _ in range(4):
        found.header(wait_seconds=1)

    assert found.secrets() == {"b", "c"}


def test_others_wait_for_a_renewal_within_their_time() -> None:
    asked, ready = Event(), Event()

    def read() -> str:
        asked.set()
        assert ready.wait(PATIENCE_SECONDS)
        return "Bearer a"

    found = reading(read)
    with ThreadPoolExecutor(1) as thread:
        renewal = thread.submit(found.header, wait_seconds=1)
        assert asked.wait(PATIENCE_SECONDS)
        with pytest.raises(TimeoutError):
            found.header(wait_seconds=0.01)
        ready.set()

        assert renewal.result() == {"Authorization": "Bearer a"}


USER = "users: [{name: u, user: %s}]"
CONTEXT = "contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
CLUSTER = "clusters: [{name: c, cluster: {server: %s}}]\n"
WRONG_FORM = "a field has the wrong type or form; compare the file with kubectl config view"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "file is empty"),
        ("[]", WRONG_FORM),
        ("5", WRONG_FORM),
        ("hello", WRONG_FORM),
        ("a: 1", "Expected key current-context"),
        (f"{CONTEXT}clusters: 5\nusers: 7", WRONG_FORM),
        (CONTEXT + CLUSTER % "5" + USER % "{}", WRONG_FORM),
        (CONTEXT + CLUSTER % "http://a" + USER % "5", WRONG_FORM),
        (CONTEXT + CLUSTER % "http://a" + USER % "{tokenFile: 5}", WRONG_FORM),
    ],
)
def test_kubeconfig_of_another_form_is_an_error_about_the_file(
    tmp_path: Path, text: str, error: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)

    with pytest.raises(InputError, match=f"^kubeconfig {path}: .*{error}"):
        login.log_in(path)


@pytest.fixture
def rejected(answers: Answers, tmp_path: Path) -> Api:
    """A client whose token of a kubeconfig has been used once and then rejected."""
    api = Api(answers.kubeconfig(tmp_path, {"token": "first-token"}))
    api.call("GET", SLICES_PATH)
    answers.status = 401
    failing(api)
    answers.status = 200
    return api


def test_rejected_token_is_read_again(rejected: Api, answers: Answers, tmp_path: Path) -> None:
    answers.kubeconfig(tmp_path, {"token": "second-token"})

    rejected.call("GET", SLICES_PATH)

    assert answers.tokens == ["Bearer first-token", "Bearer first-token", "Bearer second-token"]


def test_kubeconfig_that_breaks_later_is_retryable(rejected: Api, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("{")

    with pytest.raises(RetryableError, match="kubeconfig"):
        rejected.call("GET", SLICES_PATH)
