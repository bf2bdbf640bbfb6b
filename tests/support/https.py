"""The webhook's server on a loopback port, with certificates of a test authority."""

import http.client
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

import trustme

from tensorfusion_dra.app.simulate.webhook import renew
from tensorfusion_dra.runtime.http_server import Respond
from tensorfusion_dra.webhook.certificates import Certificates
from tensorfusion_dra.webhook.server import Bounds, ReviewServer
from tests.support.waiting import FOREVER, PATIENCE_SECONDS

HOST: Final = "127.0.0.1"
JSON: Final = {"Content-Type": "application/json"}
PATIENT: Final = Bounds(handshake_seconds=FOREVER, request_seconds=FOREVER)
"""The server's own bounds, except those by which a slow machine would lose connections."""


class Files:
    """Files with a certificate and its key, which can be renewed."""

    def __init__(self, folder: Path) -> None:
        self.certificate: Final = folder / "tls.crt"
        self.key: Final = folder / "tls.key"
        self.client_ca: Path | None = None
        self.authority: Final = trustme.CA()
        self.renew()

    def renew(self) -> None:
        """Replace the certificate and key by new ones of the same authority."""
        renew(self.authority, self.certificate, self.key)

    def trusting(self) -> ssl.SSLContext:
        """Return the TLS context of a client that trusts the authority."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context


@contextmanager
def serving(respond: Respond, files: Files, bounds: Bounds = PATIENT) -> Iterator[ReviewServer]:
    """Run a server with this respond function during the block."""
    certificates = Certificates(files.certificate, files.key, files.client_ca)
    server = ReviewServer(respond, host=HOST, port=0, context=certificates.context, bounds=bounds)
    thread = Thread(target=server.run, name="server")
    thread.start()
    try:
        yield server
    finally:
        server.stop(grace_seconds=2)
        thread.join()


def connection(port: int, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    """Return a connection that is opened by its first request."""
    return http.client.HTTPSConnection(HOST, port, timeout=PATIENCE_SECONDS, context=context)


def posted(client: http.client.HTTPSConnection, path: str, body: bytes) -> tuple[int, bytes]:
    """Post a request; return the status and body of the answer."""
    client.request("POST", path, body, JSON)
    answer = client.getresponse()
    return answer.status, answer.read()
