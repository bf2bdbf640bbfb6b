"""Servers of tests on loopback, and kubeconfigs that lead to them."""

import json
import socketserver
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
