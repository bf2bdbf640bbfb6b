"""Verification of the API server's certificate."""

import json
import ssl
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

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


def api(folder: Path, url: str, trusted: Authority | None) -> Api:
    """Return a client that trusts this authority; None trusts any server."""
    named = {"name": "x"}
    cluster: dict[str, object] = {"server": url, "insecure-skip-tls-verify": True}
    if trusted is not None:
        cluster = {"server": url, "certificate-authority": str(trusted.certificate)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{**named, "cluster": cluster}],
        "users": [{**named, "user": {}}],
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


def test_server_with_another_name_is_not_trusted(
    authority: Authority, url: str, tmp_path: Path
) -> None:
    elsewhere = url.replace("127.0.0.1", "localhost")

    with pytest.raises(RetryableError, match="CERTIFICATE_VERIFY_FAILED"):
        api(tmp_path, elsewhere, authority).call("GET", "/api/v1/nodes/a", wait_seconds=5)


def test_kubeconfig_may_disable_verification(url: str, tmp_path: Path) -> None:
    with pytest.warns(match="Unverified HTTPS request"):
        assert api(tmp_path, url, None).call("GET", "/api/v1/nodes/a", wait_seconds=5) == {}
