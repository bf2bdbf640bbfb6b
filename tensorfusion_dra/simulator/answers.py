"""What comes back from an API server: an object, a stream of changes, a refusal or nothing."""

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
    """A request did not do what it should."""


class UnreachableError(RestError):
    """There was no complete answer."""


class ApiError(RestError):
    """The API server refused.

    Attributes:
        status: HTTP's, for example 409.
        reason: The API's word for it, for example ``Conflict``.
        message: What the API server says.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class Watch:
    """The changes of one watch request; another thread may close it."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection: Final = connection
        self._response: Final = response

    def __iter__(self) -> Iterator[Json]:
        """Events as the API has them: type and object.

        Raises:
            ApiError: The server ended the watch with an error, such as 410 Expired.
            UnreachableError: The stream broke off.
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
        """Ends the watch; an iteration that waits in another thread ends too."""
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Frees the connection; for the thread that iterated, after it has ended."""
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
    """The answer to a request, if it is a good one."""
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
    try:
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"answer broke off: {error}") from error
    try:
        found = json.loads(text)
    except ValueError:
        found = {"message": text.decode(errors="replace").strip()}
    return found if isinstance(found, dict) else {}


def refusal(status: Mapping[str, Any]) -> ApiError:
    return ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
