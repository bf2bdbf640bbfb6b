"""Responses of an API server: objects, watch streams and errors."""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core.errors import RetryableError

Json = dict[str, Any]

JSON_TYPE: Final = "application/json"


class RestError(RetryableError):
    """A request to the API server failed."""


class UnreachableError(RestError):
    """The API server sent no complete response."""


class ApiError(RestError):
    """The API server rejected a request.

    Attributes:
        status: HTTP status code, for example 409.
        reason: Reason of the returned Status object, for example ``Conflict``.
        message: Message of the returned Status object.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class Watch:
    """Event stream of one watch request; another thread may close it."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection: Final = connection
        self._response: Final = response

    def __iter__(self) -> Iterator[Json]:
        """Yield each event as the API encodes it, with type and object.

        Raises:
            ApiError: The server ended the watch with an error, such as 410 Expired.
            UnreachableError: The connection broke.
        """
        try:
            while line := self._response.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise refusal(event["object"])
                yield event
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise UnreachableError(f"watch broke off: {error}") from error

    def close(self) -> None:
        """End the watch, and with it an iteration that waits in another thread."""
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Free the connection; the iterating thread calls this after its iteration has ended."""
        self._response.close()
        self._connection.close()


def response(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> http.client.HTTPResponse:
    """Send a request and return the response.

    Raises:
        ApiError: The server answered with status 400 or above.
        UnreachableError: The server sent no response.
    """
    try:
        connection.request(
            method, path, body=body, headers={"Accept": JSON_TYPE, **(headers or {})}
        )
        response = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"{method} {path}: {error}") from error
    if response.status >= http.client.BAD_REQUEST:
        try:
            raise refusal({"code": response.status, **document(response)})
        finally:
            response.close()
    return response


def document(response: http.client.HTTPResponse) -> Json:
    """Return the JSON object in a response; any other text becomes its ``message``.

    Raises:
        UnreachableError: The connection broke before the end of the body.
    """
    try:
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        response.close()  # http.client's connection forgets a response that ends with it
        raise UnreachableError(f"response broke off: {error}") from error
    try:
        found = json.loads(text)
    except ValueError:
        found = {"message": text.decode(errors="replace").strip()}
    return found if isinstance(found, dict) else {}


def refusal(status: Mapping[str, Any]) -> ApiError:
    """Return the error that a Status object describes."""
    return ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
