"""Verification of the API server's certificate."""

import json
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trustme

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.errors import RetryableError
from tests.support.waiting import PATIENCE_SECONDS

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")


class Authority:
    """A certificate authority without key usage, as openssl creates it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.certificate = folder / "ca.crt"
        self._key = folder / "ca.key"
        files = ("-keyout", str(self._key), "-out", str(self.certificate))
        config = folder / "ca.cnf"
        config.write_text(
            "[req]\ndistinguished_name=dn\nx509_extensions=ca\n[dn]\n[ca]\nbasicConstraints=CA:TRUE\n"
        )
        _openssl("req", "-x509", *KEY, "-subj", "/CN=cluster", "-config", str(config), *files)

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a server at 127.0.0.1, certified by this authority."""
        request, key, certificate, names = (
            self._folder / name for name in ("csr", "key", "crt", "ext")
        )
        names.write_text("subjectAltName=IP:127.0.0.1\n")
        _openssl("req", *KEY, "-subj", "/CN=server", "-keyout", str(key), "-out", str(request))
        authority = ("-CA", str(self.certificate), "-CAkey", str(self._key))
        _openssl(
            *("x509", "-req", "-in", str(request), *authority),
            *("-extfile", str(names), "-out", str(certificate)),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context


def _openssl(*arguments: str) -> None:
    subprocess.run(
        ["openssl", *arguments], check=True, capture_output=True, timeout=PATIENCE_SECONDS
    )


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that certified the API server."""
    return Authority(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="module")
def url(authority: Authority) -> Iterator[str]:
    """URL of an API server with TLS."""
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    server.socket = authority.context().wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def api(
    folder: Path,
    url: str,
    trusted: Authority | None,
    user: dict[str, str] | None = None,
    **settings: Any,
) -> Api:
    """Return a client that trusts this authority; None trusts any server."""
    named = {"name": "x"}
    cluster: dict[str, object] = {"server": url, "insecure-skip-tls-verify": True}
    if trusted is not None:
        cluster = {"server": url, "certificate-authority": str(trusted.certificate)}
    cluster |= settings
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{**named, "cluster": cluster}],
        "users": [{**named, "user": user or {}}],
        "contexts": [{**named, "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return Api(path)


def test_ca_without_key_usage_is_trusted_as_by_go_clients(
    authority: Authority, url: str, tmp_path: Path
) -> None:
    assert api(tmp_path, url, authority).call("GET", "/api/v1/nodes/a", wait_seconds=5) == {}


def test_server_of_another_ca_is_not_trusted(url: str, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")

    with pytest.raises(RetryableError, match="CERTIFICATE_VERIFY_FAILED"):
        api(tmp_path, url, other).call("GET", "/api/v1/nodes/a", wait_seconds=5)


def test_kubeconfig_may_disable_verification(url: str, tmp_path: Path) -> None:
    with pytest.warns(match="Unverified HTTPS request"):
        assert api(tmp_path, url, None).call("GET", "/api/v1/nodes/a", wait_seconds=5) == {}


class ClientFiles:
    """Certificate and key of a client, and the names that the server has seen in them."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.certificate = folder / "client.crt"
        self.key = folder / "client.key"
        self.seen: list[str] = []

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
def api_with_certificate(
    authority: Authority, client_files: ClientFiles, tmp_path: Path
) -> Iterator[Api]:
    """Client of a server that requires a client certificate for each connection."""

    class Handler(_Handler):
        def do_GET(self) -> None:
            assert isinstance(self.connection, ssl.SSLSocket)
            subject: Any = (self.connection.getpeercert() or {})["subject"]
            client_files.seen.append(dict(pair for (pair,) in subject)["commonName"])
            super().do_GET()

    context = authority.context()
    context.verify_mode = ssl.CERT_REQUIRED
    client_files.authority.configure_trust(context)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    client_files.write("first")
    user = {
        "client-certificate": str(client_files.certificate),
        "client-key": str(client_files.key),
    }
    yield api(tmp_path, f"https://127.0.0.1:{server.server_address[1]}", authority, user)
    server.shutdown()
    thread.join()
    server.server_close()


def test_no_context_is_changed_once_a_connection_uses_it(
    api_with_certificate: Api, client_files: ClientFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[ssl.SSLContext] = []
    load = ssl.SSLContext.load_cert_chain

    def noted(context: ssl.SSLContext, *arguments: Any, **named: Any) -> None:
        loaded.append(context)
        load(context, *arguments, **named)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", noted)

    # A change of a context that another thread uses crashes the process.
    with ThreadPoolExecutor(8) as threads:
        paths = ["/api/v1/nodes/a"] * 24
        assert list(threads.map(lambda path: api_with_certificate.call("GET", path), paths)) == (
            [{}] * 24
        )

    assert client_files.seen == ["first"] * 24
    assert len(set(map(id, loaded))) == len(loaded)


def test_renewed_certificate_is_used_for_new_connections(
    api_with_certificate: Api, client_files: ClientFiles
) -> None:
    for name in ("first", "second"):
        client_files.write(name)
        api_with_certificate.call("GET", "/api/v1/nodes/a")

    assert client_files.seen == ["first", "second"]


def test_certificate_that_is_half_renewed_is_retryable(
    api_with_certificate: Api, client_files: ClientFiles
) -> None:
    key = client_files.key.read_bytes()
    client_files.write("second")
    renewed = client_files.key.read_bytes()
    client_files.key.write_bytes(key)
    with pytest.raises(RetryableError, match=r"(?i)key.values.mismatch"):
        api_with_certificate.call("GET", "/api/v1/nodes/a")
    client_files.key.unlink()
    with pytest.raises(RetryableError, match="No such file"):
        api_with_certificate.call("GET", "/api/v1/nodes/a")

    client_files.key.write_bytes(renewed)

    assert api_with_certificate.call("GET", "/api/v1/nodes/a") == {}
    assert client_files.seen == ["second"]


def test_key_with_a_password_is_refused(
    api_with_certificate: Api, client_files: ClientFiles
) -> None:
    plain = client_files.key.rename(client_files.key.with_suffix(".plain"))
    files = ("-in", str(plain), "-out", str(client_files.key))
    _openssl("pkey", "-aes128", "-passout", "pass:abcd", *files)

    with pytest.raises(RetryableError, match="key is encrypted, password is required"):
        api_with_certificate.call("GET", "/api/v1/nodes/a")


def test_server_may_have_another_name(authority: Authority, url: str, tmp_path: Path) -> None:
    elsewhere = url.replace("127.0.0.1", "localhost")
    settings: dict[str, Any] = {"tls-server-name": "127.0.0.1"}
    named = api(tmp_path, elsewhere, authority, **settings)

    assert named.call("GET", "/api/v1/nodes/a", wait_seconds=5) == {}
