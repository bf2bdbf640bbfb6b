"""Pages of the health endpoint: what a page learns of a request, and what it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import BoundedSemaphore, Lock
from typing import Final

import structlog

from tensorfusion_dra.runtime.log_throttle import LogThrottle

log = structlog.get_logger()

_MOST_ANSWERED: Final = 4
"""Pages that are answered at a time; the endpoint answers 16 requests, those of probes included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """One GET or HEAD request for a page.

    Attributes:
        path: Without the query.
        query: What follows the question mark; "" if there is none.
        accept: The Accept header; "" if there is none.
        host: The Host header; "" if there is none. A page for loopback only has to compare it with
            loopback's names: a browser on this machine can be made to ask for any host.
        from_loopback: True if the client's address is one of this machine's loopback.
    """

    path: str
    query: str = ""
    accept: str = ""
    host: str = ""
    from_loopback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAnswer:
    """The answer to a request for a page.

    Attributes:
        content_type: With its charset.
        headers: Headers besides those of content type and length.
    """

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


Page = Callable[[PageRequest], PageAnswer]
"""Answers requests for one path, from any thread. If it raises, the answer is 500."""


def is_loopback(address: str) -> bool:
    """Return True for an address of loopback, as the kernel writes it for a connected socket."""
    # On a socket for both families an IPv4 client is written as an IPv6 address.
    return address == "::1" or address.removeprefix("::ffff:").startswith("127.")


class Pages:
    """Pages by path, bounded in the number that are answered at a time; for all threads."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self.paths: Final = tuple(pages)
        self._pages: Final = pages
        self._room: Final = BoundedSemaphore(_MOST_ANSWERED)
        self._guard: Final = Lock()  # guards _throttle
        self._throttle: Final = LogThrottle()

    def answer(self, request: PageRequest, send: Callable[[PageAnswer], None]) -> None:
        """Send the page's answer, or an error if the page fails or too many are being read."""
        if not self._room.acquire(blocking=False):
            send(text_answer(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are being read"))
            return
        try:
            send(self._answer(request))
        finally:
            self._room.release()

    def _answer(self, request: PageRequest) -> PageAnswer:
        try:
            answer = self._pages[request.path](request)
        except Exception as error:
            # A fault of a page must end neither the process nor the probes.
            with self._guard:
                is_new = self._throttle.is_new(repr(error), key=request.path)
            if is_new:
                log.error("page_failed", path=request.path, error=repr(error), exc_info=True)
            text = f"{type(error).__name__}, see the log"
            return text_answer(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        with self._guard:
            self._throttle.over(key=request.path)
        return answer


def text_answer(status: HTTPStatus, text: str) -> PageAnswer:
    """Return an answer of one line of text."""
    return PageAnswer(body=f"{text}\n".encode(), status=status)
