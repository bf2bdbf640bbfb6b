"""An HTTP server with prepared answers, for APIs that the simulated API server does not have."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from tests.support.servers import serving, url, write_kubeconfig


class CannedApi:
    """Prepared answers by method and path; 404 for all other requests.

    Attributes:
        answers: Answers by ``GET /path``; see served(). A callable gets the request's body and
            returns the answer.
        requests: The requests so far, as ``GET /path?query`` and body.
        other_url: Server that answers the GET requests without a prepared answer; "" for none.
    """

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.requests: list[tuple[str, Any]] = []
        self.url = ""
        self.other_url = ""

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for this server, and return its path."""
        return write_kubeconfig(path, server=self.url)

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        """Return the status and document that answer a request."""
        self.requests.append((f"{method} {target}", body))
        found = self.answers.get(f"{method} {urlsplit(target).path}")
        if callable(found):
            found = found(body)
        if found is None and self.other_url:
            try:
                with urlopen(f"{self.other_url}{target}", timeout=10) as answer:
                    return answer.status, json.load(answer)
            except HTTPError as error:
                found = (error.code, error.reason)
        if found is None:
            return 404, {"kind": "Status", "message": "the server could not find it"}
        if isinstance(found, tuple):
            status, message = found
            return status, {"kind": "Status", "message": message}
        return 200, found


@contextmanager
def served(answers: Mapping[str, Any]) -> Iterator[CannedApi]:
    """Run a server on loopback during the block.

    Args:
        answers: Answers by ``GET /path``: a document, a text that is not JSON, or a status and
            message of an error.
    """
    api = CannedApi(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # an answer is two writes

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing."""

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, document = api.answer(self.command, self.path, body)
            text = (document if isinstance(document, str) else json.dumps(document)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.url = url(server)
    with serving(server):
        yield api
