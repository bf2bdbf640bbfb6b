"""The Kubernetes API over plain dicts, so that no field of an answer is lost."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tensorfusion_dra.cluster import error_text, json_text, limits
from tensorfusion_dra.cluster.watch_stream import WatchStream
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.driver.ports.cluster import UnreadableError

if TYPE_CHECKING:
    import urllib3
    from kubernetes.client import ApiClient

READ_SECONDS: Final = 30.0
_JSON: Final = "application/json"
USER_AGENT: Final = "tensorfusion-dra"
"""Identifies this driver in the API server's audit log."""
APPLY: Final = "application/apply-patch+yaml"
"""Server-side apply. Its body may be JSON."""
_UNAUTHORIZED: Final = 401
_LONGEST_RETRY_AFTER_SECONDS: Final = 120.0
_MOST_ERROR_BYTES: Final = 64 * 2**10
"""A Status object has a few hundred bytes. The rest of a longer error answer is not read."""


class StatusError(RetryableError):
    """The API server answered with an error.

    Attributes:
        status: The HTTP status.
        details: The details of its Status object, such as kind and name of a missing object. Empty
            if a proxy answered instead of the API server, or if the API server does not have the
            path.
    """

    def __init__(
        self,
        text: str,
        status: int,
        *,
        details: Mapping[str, Any] | None = None,
        after_seconds: float = 0.0,
    ) -> None:
        super().__init__(text, after_seconds=after_seconds)
        self.status = status
        self.details = details or {}


class Api:
    """One connection pool to the API server, for all threads."""

    def __init__(self, kubeconfig: Path | None) -> None:
        """Store the settings; connect() reads the kubeconfig.

        Args:
            kubeconfig: None selects the pod's service account.
        """
        self._kubeconfig = kubeconfig
        self._connecting = Lock()  # guards all below
        self._client: ApiClient | None = None
        self._was_connected = False
        self._secrets: frozenset[str] = frozenset()

    def connect(self) -> "ApiClient":
        """Return the client; create it at the first call.

        The creation is delayed because the client library takes a fifth of a second to load.

        Raises:
            InputError: The kubeconfig cannot be read, or the pod has no service account.
        """
        with self._connecting:
            if self._client is None:
                # Imported here so that the kubelet's sockets serve before the library has loaded.
                from tensorfusion_dra.cluster import login  # noqa: PLC0415

                self._client = login.client_of(self._kubeconfig, user_agent=USER_AGENT)
                self._secrets |= login.secrets(self._client)
            return self._client

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        wait_seconds: float = READ_SECONDS,
    ) -> dict[str, Any]:
        """Send a request and return the JSON object of the answer.

        Args:
            content_type: The media type of the body. It selects the kind of PATCH.
            wait_seconds: For the whole call: connection, headers and body.

        Raises:
            StatusError: The API server answered with an error.
            UnreadableError: The answer is not a JSON object, or is too large.
            RetryableError: The API server did not answer within the time.
        """
        subject = f"{method} {path}"
        with _transport_errors(subject):
            response = self._send(
                method,
                path,
                query=query,
                body=body,
                content_type=content_type,
                wait_seconds=wait_seconds,
            )
            if response.status >= 400:
                raise self._status_error(subject, response)
            text = _body(response)
        try:
            answer = json_text.parse(text)
        except ValueError as error:
            found = error_text.one_line(_excerpt(text), self._secrets)
            raise UnreadableError(f"{subject}: found no JSON: {found}") from error
        if not isinstance(answer, dict):
            raise UnreadableError(f"{subject}: found {type(answer).__name__}, expected an object")
        return answer

    @contextmanager
    def watch(
        self, path: str, *, query: Mapping[str, str], silent_seconds: float
    ) -> Iterator[WatchStream]:
        """Open a watch and yield its stream of events; close it at the end of the block.

        Args:
            silent_seconds: Time after which a server that sends no complete event, not even a
                bookmark, counts as gone.

        Raises:
            StatusError: The API server refused the watch.
            UnreadableError: An event is not JSON, or is too large.
            RetryableError: The connection broke.
        """
        subject = f"WATCH {path}"
        with _transport_errors(subject):
            response = self._send(
                "GET", path, query={**query, "watch": "true"}, wait_seconds=silent_seconds
            )
            try:
                if response.status >= 400:
                    raise self._status_error(subject, response)
                yield _stream(response, subject, silent_seconds)
            finally:
                response.close()

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        wait_seconds: float,
    ) -> "urllib3.BaseHTTPResponse":
        from tensorfusion_dra.cluster import transport  # noqa: PLC0415 - as in connect()

        if wait_seconds <= 0:
            raise TimeoutError
        client = self._connected()  # the time to load the library does not count as waiting
        headers = {"Accept": _JSON}
        if body is not None:
            headers["Content-Type"] = content_type
        method, url, headers, content, _ = client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        return transport.send(
            client.rest_client.pool_manager,
            method,
            url,
            headers=headers,
            body=None if content is None else json.dumps(content),
            seconds=wait_seconds,
        )

    def _connected(self) -> "ApiClient":
        try:
            client = self.connect()
        except InputError as error:
            if not self._was_connected:
                raise
            # The kubeconfig was readable before, so it is probably being replaced right now.
            raise RetryableError(str(error)) from error
        self._was_connected = True
        return client

    def _status_error(self, subject: str, response: "urllib3.BaseHTTPResponse") -> StatusError:
        """Return the error that the API server answered with."""
        if response.status == _UNAUTHORIZED:
            # A new client reads the credentials again. The library reads a service account's token
            # file again only after a minute of wall-clock time, and that clock may be set back. It
            # never reads a kubeconfig's token again.
            with self._connecting:
                self._client = None
        text = _body(response, cut_at=_MOST_ERROR_BYTES)
        try:
            answer = json_text.parse(text)
        except ValueError:
            answer = None
        answered = answer if isinstance(answer, dict) else {}
        details = answered.get("details")
        message = error_text.one_line(answered.get("message", _excerpt(text)), self._secrets)
        return StatusError(
            f"{subject}: {response.status}: {message}",
            response.status,
            details=details if isinstance(details, dict) else {},
            after_seconds=_retry_after_seconds(response),
        )


def items(listed: Mapping[str, Any], subject: str) -> list[dict[str, Any]]:
    """Return the objects of a list answer.

    Raises:
        RetryableError: The answer is not a list of named objects. A proxy in between may be broken.
    """
    found = listed.get("items") or []
    if not isinstance(found, list) or not all(metadata(item).get("name") for item in found):
        raise RetryableError(f"{subject}: found no list of objects with names, expected one")
    return found


def metadata(item: object) -> Mapping[str, Any]:
    """Return the object's metadata; empty if it is not an object or has none."""
    found = item.get("metadata") if isinstance(item, dict) else None
    return found if isinstance(found, dict) else {}


def segment(name: str) -> str:
    """Return a name, quoted as one segment of a URL path."""
    return quote(name, safe="")


@contextmanager
def _transport_errors(subject: str) -> Iterator[None]:
    # As in connect().
    import urllib3  # noqa: PLC0415

    from tensorfusion_dra.cluster import transport  # noqa: PLC0415

    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError) as error:
        text = f"{subject}: {error_text.one_line(transport.cause(error))}"
        if isinstance(transport.innermost(error), limits.TooLargeError):
            raise UnreadableError(text) from error
        raise RetryableError(text) from error
    except ValueError as error:  # raised by a response that another thread has just closed
        raise RetryableError(f"{subject}: {error_text.one_line(error)}") from error


def _body(response: "urllib3.BaseHTTPResponse", *, cut_at: int | None = None) -> bytes:
    from tensorfusion_dra.cluster import transport  # noqa: PLC0415 - as in connect()

    return transport.body(response, cut_at=cut_at)


def _stream(
    response: "urllib3.BaseHTTPResponse", subject: str, silent_seconds: float
) -> WatchStream:
    from tensorfusion_dra.cluster import transport  # noqa: PLC0415 - as in connect()

    return WatchStream(
        response, transport.limits_of(response), subject=subject, silent_seconds=silent_seconds
    )


def _excerpt(text: bytes) -> str:
    """Return the beginning of a body that is not JSON, cut between words.

    A word cut in two could be half a secret, which the redaction would not recognise.
    """
    if len(text) >= _MOST_ERROR_BYTES:
        text = text[:_MOST_ERROR_BYTES].rpartition(b" ")[0] or text[:_MOST_ERROR_BYTES]
    return text.decode(errors="replace")


def _retry_after_seconds(response: "urllib3.BaseHTTPResponse") -> float:
    value = response.headers.get("Retry-After", "")
    # Kubernetes writes seconds. The other form, a date, would compare two clocks and is ignored.
    # Nine digits are enough: the result is capped, and Python refuses to convert very long numbers.
    if not (value.isascii() and value.isdecimal()):
        return 0.0
    return min(float(value[:9]), _LONGEST_RETRY_AFTER_SECONDS)
