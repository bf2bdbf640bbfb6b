"""The Kubernetes API over plain dicts: what the server said, with every field it has."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tensorfusion_dra.cluster import error_text
from tensorfusion_dra.core.errors import InputError, RetryableError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient
    from kubernetes.client.rest import RESTResponse

_CONNECT_SECONDS: Final = 3.05
READ_SECONDS: Final = 30.0
_JSON: Final = "application/json"
USER_AGENT: Final = "tensorfusion-dra"
"""How the API server's audit log knows this driver."""

APPLY: Final = "application/apply-patch+yaml"
"""Server-side apply; JSON is YAML as well."""
_UNAUTHORIZED: Final = 401
_LONGEST_RETRY_AFTER_SECONDS: Final = 120.0


class StatusError(RetryableError):
    """The API server answered with an error.

    Attributes:
        status: The HTTP status.
        details: Of its Status object, such as kind and name of an object that is not there; empty
            if something between us and the API server answered, or it has no such path.
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
        """Reads nothing yet.

        Args:
            kubeconfig: None stands for the pod's service account.
        """
        self._kubeconfig = kubeconfig
        self._connecting = Lock()  # guards all below
        self._client: ApiClient | None = None
        self._was_connected = False
        self._secrets: frozenset[str] = frozenset()

    def connect(self) -> "ApiClient":
        """The client, made at the first call: its library takes a fifth of a second to load.

        Raises:
            InputError: The kubeconfig cannot be read, or the pod has no service account.
        """
        with self._connecting:
            if self._client is None:
                self._client = _client(self._kubeconfig)
                self._secrets |= _secrets(self._client)
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
            raise self._refused(subject, response, text)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError) as error:
            found = error_text.one_line(text.decode(errors="replace"), self._secrets)
            raise RetryableError(f"{subject}: found no JSON: {found}") from error
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
                    raise self._refused(subject, response, bytes(response.response.data))
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
        client = self._connected()
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

    def _connected(self) -> "ApiClient":
        try:
            client = self.connect()
        except InputError as error:
            if not self._was_connected:
                raise
            # It was good once: somebody is just replacing the file.
            raise RetryableError(str(error)) from error
        self._was_connected = True
        return client

    def _refused(self, subject: str, response: "RESTResponse", text: bytes) -> StatusError:
        """The error that the API server answered."""
        if response.status == _UNAUTHORIZED:
            # The library reads a token's file again after a minute of the clock on the wall, which
            # may have been put back; a kubeconfig's it never reads again.
            with self._connecting:
                self._client = None
        said = error_text.one_line(_message(text), self._secrets)
        return StatusError(
            f"{subject}: {response.status}: {said}",
            response.status,
            details=_details(text),
            after_seconds=_retry_after_seconds(response),
        )


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
        """Ends the iteration, also one that waits for the server or that is just ending."""
        # Whoever iterates closes the response when the server has ended it. Then its socket is
        # closed already, or the response has let go of it before or within this very call.
        with suppress(OSError, RuntimeError, ValueError, TypeError):
            self._response.shutdown()


def items(listed: Mapping[str, Any], subject: str) -> list[dict[str, Any]]:
    """The objects of a list that the API server answered.

    Raises:
        RetryableError: It is none; what stands between us and the server may be broken.
    """
    found = listed.get("items") or []
    if not isinstance(found, list) or not all(metadata(item).get("name") for item in found):
        raise RetryableError(f"{subject}: found no list of objects with names, expected one")
    return found


def metadata(item: object) -> Mapping[str, Any]:
    """The object's metadata; empty if it is no object or has none."""
    found = item.get("metadata") if isinstance(item, dict) else None
    return found if isinstance(found, dict) else {}


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def _client(kubeconfig: Path | None) -> "ApiClient":
    # Imported here because the kubelet's sockets are to serve before this has loaded.
    import ssl  # noqa: PLC0415

    import urllib3  # noqa: PLC0415
    import yaml  # noqa: PLC0415
    from kubernetes import client, config  # noqa: PLC0415

    from tensorfusion_dra.cluster.transport import StaleConnectionRetry  # noqa: PLC0415

    settings = client.Configuration()
    settings.keep_alive = True
    settings.retries = StaleConnectionRetry()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig), client_configuration=settings, persist_config=False
            )
    # Beside its own errors the library lets out whatever its way through a damaged file meets.
    except (
        *(config.ConfigException, yaml.YAMLError, OSError),
        *(ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError),
    ) as error:
        subject = f"kubeconfig {kubeconfig}" if kubeconfig else "in-cluster configuration"
        raise InputError(f"{subject}: {error}") from error
    api_client = client.ApiClient(configuration=settings)
    api_client.user_agent = USER_AGENT
    # From Python 3.13 on, certificates are held to RFC 5280 to the letter by default. Authorities
    # of clusters need not be: every client in Go takes one without key usage, and so does this.
    # What is verified stays: chain, names, dates.
    wanted = ssl.CERT_REQUIRED if settings.verify_ssl else ssl.CERT_NONE
    context = urllib3.util.ssl_.create_urllib3_context(cert_reqs=wanted)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    api_client.rest_client.pool_manager.connection_pool_kw["ssl_context"] = context
    return api_client


@contextmanager
def _transport_errors(subject: str) -> Iterator[None]:
    # As in _client.
    import urllib3  # noqa: PLC0415

    from tensorfusion_dra.cluster import transport  # noqa: PLC0415

    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError) as error:
        said = error_text.one_line(transport.cause(error))
        raise RetryableError(f"{subject}: {said}") from error
    except ValueError as error:
        raise RetryableError(f"{subject}: found no JSON: {error}") from error


def _message(text: bytes) -> object:
    """The message of a Status object, else whatever came."""
    try:
        return json.loads(text)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text.decode(errors="replace")


def _retry_after_seconds(response: "RESTResponse") -> float:
    asked = response.response.headers.get("Retry-After", "")
    # Kubernetes writes seconds; the other form, a date, would depend on two clocks.
    return min(float(asked), _LONGEST_RETRY_AFTER_SECONDS) if asked.isdecimal() else 0.0


def _secrets(client: "ApiClient") -> frozenset[str]:
    """What must never be seen in a log, as far as it is known."""
    settings = client.configuration
    tokens = (str(value) for value in settings.api_key.values())
    bare = (token.rpartition(" ")[2] for token in tokens)
    return frozenset(secret for secret in (*bare, settings.password or "") if secret)


def _details(text: bytes) -> Mapping[str, Any]:
    try:
        details = json.loads(text)["details"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return details if isinstance(details, dict) else {}
