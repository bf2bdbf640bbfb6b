"""A server that gives every request the same answer, and a call for slices that it refuses."""

from collections.abc import Iterable
from typing import Final

import pytest

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.errors import StatusError
from tests.support.raw_server import RawServer, head

SLICES_PATH: Final = "/apis/resource.k8s.io/v1/resourceslices"


def nothing() -> None:
    """Do nothing: a callback for tests that need none."""


def failing(api: Api, wait_seconds: float = 5) -> StatusError:
    """Make a call that the server refuses, and return its error."""
    with pytest.raises(StatusError) as caught:
        api.call("GET", SLICES_PATH, wait_seconds=wait_seconds)
    return caught.value


class Answers(RawServer):
    """A server that gives every request the same answer.

    Attributes:
        status, body: The status and body of its answers.
        tokens: The Authorization header of each request so far.
    """

    def __init__(self) -> None:
        self.status = 200
        self.body = b"{}"
        self.tokens: list[str] = []
        super().__init__(self._same, pause_seconds=0.0)

    def _same(self) -> Iterable[bytes]:
        self.tokens.append(self.headers.get("authorization", ""))
        return [head(f"Content-Length: {len(self.body)}", status=self.status), self.body]
