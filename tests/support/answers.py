"""A server that gives every request the same answer, and a call for slices that it refuses."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from tensorfusion_dra.cluster.api import Api, StatusError

SLICES_PATH: Final = "/apis/resource.k8s.io/v1/resourceslices"


def nothing() -> None:
    """Do nothing: a callback for tests that need none."""


def failing(api: Api, wait_seconds: float = 5) -> StatusError:
    """Make a call that the server refuses, and return its error."""
    with pytest.raises(StatusError) as caught:
        api.call("GET", SLICES_PATH, wait_seconds=wait_seconds)
    return caught.value


class Answers(ThreadingHTTPServer):
    """An HTTP server that gives every request the same answer.

    Attributes:
        status, body: The status and body of its answers.
        tokens: The Authorization header of each request so far.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.status = 200
        self.body = b"{}"
        self.tokens: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    def kubeconfig(self, folder: Path, token: str) -> Path:
        """Write a kubeconfig for this server with a token, and return its path."""
        path = folder / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{self.server_address[1]}"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(document))
        return path


class _Handler(BaseHTTPRequestHandler):
    server: Answers

    def do_GET(self) -> None:
        self.server.tokens.append(self.headers.get("Authorization", ""))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass
