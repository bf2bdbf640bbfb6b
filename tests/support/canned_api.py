"""An HTTP server with prepared answers, for APIs that the simulated API server does not have."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from tests.support.servers import answering, serving, url, write_kubeconfig


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
        answers: Answers by ``GET /path``: a document, or a status and message of an error.
    """
    api = CannedApi(answers)

    def answer(method: str, target: str, body: bytes) -> tuple[int, Any]:
        return api.answer(method, target, json.loads(body) if body else None)

    server = answering(answer)
    api.url = url(server)
    with serving(server):
        yield api
