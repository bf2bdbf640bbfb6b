"""The Kubernetes API over plain dicts: what the server said, with every field it has."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tensorfusion_dra.core.errors import InputError, RetryableError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient
    from kubernetes.client.rest import RESTResponse

_CONNECT_SECONDS: Final = 3.05
READ_SECONDS: Final = 30.0
_JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
"""Server-side apply; JSON is YAML as well."""
_MAX_TEXT: Final = 300


class StatusError(RetryableError):
    """The API server answered with an error.

    Attributes:
        status: The HTTP status.
        details: Of its Status object, such as kind and name of an object that is not there; empty
            if something between us and the API server answered, or it has no such path.
    """

    def __init__(self, text: str, status: int, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.details = details or {}


class Api:
    """One connection pool to the API server, for all threads."""

    def __init__(self, kubeconfig: Path | None) -> None:
        """Reads nothing yet.

        Args:
            kubeconfig: None stands for the pod's service account.
        """
        self._kubeconfig = kubeconfig
        self._connecting = Lock()  # guards _client
        self._client: ApiClient | None = None

    def connect(self) -> "ApiClient":
        """The client, made at the first call: its library takes a fifth of a second to load.

        Raises:
            InputError: The kubeconfig cannot be read, or the pod has no service account.
        """
        with self._connecting:
            if self._client is None:
                self._client = _client(self._kubeconfig)
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
        """The answer's object.

        Args:
            content_type: Of the body; tells the kinds of PATCH apart.

        Raises:
            StatusError: The API server answered with an error.
            RetryableError: It did not answer within the time, or not in JSON.
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
            text = bytes(response.response.data)
        if response.status >= 400:
            raise StatusError(
                f"{subject}: {_said(response.status, text)}", response.status, _details(text)
            )
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise RetryableError(f"{subject}: found no JSON: {text[:_MAX_TEXT]!r}") from error
        if not isinstance(answer, dict):
            raise RetryableError(f"{subject}: found {type(answer).__name__}, expected an object")
        return answer

    @contextmanager
    def watch(
        self, path: str, *, query: Mapping[str, str], silent_seconds: float
    ) -> Iterator["WatchStream"]:
        """The server's watch events while the block runs.

        Args:
            silent_seconds: A server that says nothing for so long, not even a bookmark, is gone.

        Raises:
            StatusError: The API server refused the watch.
            RetryableError: The connection broke.
        """
        subject = f"WATCH {path}"
        with _transport_errors(subject):
            response = self._send(
                "GET", path, query={**query, "watch": "true"}, wait_seconds=silent_seconds
            )
            try:
                if response.status >= 400:
                    raise StatusError(
                        f"{subject}: {_said(response.status, response.response.data)}",
                        response.status,
                    )
                yield WatchStream(response)
            finally:
                response.response.close()

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        wait_seconds: float,
    ) -> "RESTResponse":
        client = self.connect()
        headers = {"Accept": _JSON}
        if body is not None:
            headers["Content-Type"] = content_type
        serialized = client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        wait = max(wait_seconds, 0.1)
        return client.call_api(*serialized, _request_timeout=(min(_CONNECT_SECONDS, wait), wait))


class WatchStream:
    """The events of one watch; may be cut from another thread."""

    def __init__(self, response: "RESTResponse") -> None:
        self._response = response.response

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rest = b""
        for chunk in self._response.stream(amt=None, decode_content=False):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in filter(None, lines):
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event

    def cut(self) -> None:
        """Ends the iteration, also one that waits for the server."""
        self._response.shutdown()


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def _client(kubeconfig: Path | None) -> "ApiClient":
    # Imported here because the kubelet's sockets are to serve before this has loaded.
    import urllib3  # noqa: PLC0415
    import yaml  # noqa: PLC0415
    from kubernetes import client, config  # noqa: PLC0415

    settings = client.Configuration()
    settings.keep_alive = True
    # A pooled connection that the server closed meanwhile is worth one more try; everything else
    # is retried by those who asked, with a back-off of their own.
    settings.retries = urllib3.Retry(total=1, status=0, redirect=0, other=0)
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig), client_configuration=settings, persist_config=False
            )
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError) as error:
        subject = f"kubeconfig {kubeconfig}" if kubeconfig else "in-cluster configuration"
        raise InputError(f"{subject}: {error}") from error
    return client.ApiClient(configuration=settings)


@contextmanager
def _transport_errors(subject: str) -> Iterator[None]:
    import urllib3  # noqa: PLC0415 - as in _client

    try:
        yield
    except urllib3.exceptions.HTTPError as error:
        raise RetryableError(f"{subject}: {str(error)[:_MAX_TEXT]}") from error
    except OSError as error:
        raise RetryableError(f"{subject}: {error.strerror or error}") from error
    except ValueError as error:
        raise RetryableError(f"{subject}: found no JSON: {error}") from error


def _said(status: int, text: bytes) -> str:
    """The message of a Status object, else the beginning of whatever came."""
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        message = text.decode(errors="replace").strip()
    return f"{status}: {str(message)[:_MAX_TEXT]}"


def _details(text: bytes) -> Mapping[str, Any]:
    try:
        details = json.loads(text)["details"]
    except (ValueError, KeyError, TypeError):
        return {}
    return details if isinstance(details, dict) else {}
