"""Servers of tests on loopback, and kubeconfigs that lead to them."""

import json
import socketserver
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve in a thread of its own during the block."""
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def answering(answer: Callable[[str, str, bytes], tuple[int, object]]) -> ThreadingHTTPServer:
    """Return an HTTP server on loopback which answers in JSON.

    Args:
        answer: Gets the method, the path with its query, and the body of a request; returns the
            status and the document, None for an empty body.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # an answer is two writes

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing."""

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, document = answer(self.command, self.path, body)
            text = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    return server


def url(server: socketserver.TCPServer, scheme: str = "http") -> str:
    """Return the URL of a server on loopback."""
    return f"{scheme}://127.0.0.1:{server.server_address[1]}"


def write_kubeconfig(path: Path, user: Mapping[str, Any] | None = None, **cluster: Any) -> Path:
    """Write a kubeconfig with these settings of its user and cluster, and return its path."""
    document = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
