"""Requests to the API server, each bounded as a whole in time and in bytes.

Requests are written and answers read on the sockets themselves. The layers of urllib3, http.client
and the Kubernetes client for that cost five times as much processor time as all the rest of a
request; docs/adr/0023-requests-below-http-client.md has the table.

    login.py         makes all of these from a kubeconfig or a service account
    credentials.py   the token of each request
    tls.py           the certificates, shared by all connections
    connections.py   opened by urllib3, kept while they are idle
    http_answer.py   status, headers and body, within limits.py
"""

import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final
from urllib.parse import quote, urlencode

from urllib3.util import parse_url

from tensorfusion_dra.cluster.connections import Connection, Connections
from tensorfusion_dra.cluster.credentials import Credentials
from tensorfusion_dra.cluster.http_answer import Answer
from tensorfusion_dra.cluster.limits import Limits

_MOST_ANSWER_BYTES: Final = 64 * 2**20
"""The largest answer is the list of all slices of a large cluster."""
_REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})
"""Methods that are safe to repeat if the server has already executed the first try."""
_ENDED: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""Errors of a connection that its other end has closed."""
_TARGET: Final = re.compile(r"[\x21-\x7e]+")


class Transport:
    """Requests to one API server with one login. Any thread may send."""

    __slots__ = ("_connections", "_credentials", "_headers", "_prefix")

    def __init__(
        self, url: str, connections: Connections, credentials: Credentials, *, user_agent: str
    ) -> None:
        """Store the arguments; nothing is sent yet.

        Args:
            url: The server's URL, which may end with a path.
        """
        server = parse_url(url)
        path = (server.path or "").rstrip("/")
        self._prefix = f"{server.scheme}://{server.netloc}{path}" if connections.forwards else path
        self._headers = (
            f" HTTP/1.1\r\nHost: {server.netloc}\r\nUser-Agent: {user_agent}\r\n"
            "Accept: application/json\r\nAccept-Encoding: identity\r\n"
        ).encode()
        self._connections = connections
        self._credentials = credentials

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        content: bytes | None,
        content_type: str,
        seconds: float,
    ) -> Answer:
        """Send a request and return the answer; the caller reads its body in the remaining time.

        A server may just have closed an idle connection. Then the request is repeated once, on a
        new connection and in the remaining time. Error statuses, 429 included, are returned to the
        caller, which has its own back-off.

        Args:
            seconds: For the whole request, including the body of the answer. If the server's name
                has several addresses that are all dead, each may take 3 seconds.

        Raises:
            TimeoutError: There was no answer within the time.
            OSError: There was no connection, it broke, or the answer is too large.
            ValueError: The answer is malformed.
        """
        limits = Limits(seconds=seconds, most_bytes=_MOST_ANSWER_BYTES)
        target = f"{self._prefix}{path}"
        if query:
            target = f"{target}?{urlencode(query, quote_via=quote)}"
        if not _TARGET.fullmatch(target):
            raise ValueError(f"request: found {target!r}, expected a path without spaces")
        credentials = self._credentials.line(wait_seconds=limits.seconds_left())
        request = f"{method} {target}".encode("ascii") + self._headers + credentials
        if content is None:
            request += b"\r\n"
        else:
            length = f"Content-Type: {content_type}\r\nContent-Length: {len(content)}\r\n\r\n"
            request += length.encode() + content
        try:
            idle = self._connections.take(seconds=limits.seconds_left())
            return self._exchange(idle, request, limits)
        except _ENDED:
            if method not in _REPEATABLE:
                raise
        new = self._connections.open(seconds=limits.seconds_left())
        return self._exchange(new, request, limits)

    def secrets(self) -> frozenset[str]:
        """Return the latest credentials, which must never appear in a log."""
        return self._credentials.secrets()

    def close(self) -> None:
        """Close each connection that serves no request, now or later."""
        self._connections.close()

    def _exchange(self, connection: Connection, request: bytes, limits: Limits) -> Answer:
        try:
            connection.socket.settimeout(limits.seconds_left())
            # The server may have answered before it closed the connection.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.socket.sendall(request)
            return Answer(connection.socket, limits, partial(self._release, connection))
        except BaseException:
            connection.close()
            raise

    def _release(self, connection: Connection, is_reusable: bool) -> None:
        if is_reusable:
            self._connections.give_back(connection)
        else:
            connection.close()
