"""The API server's API over plain dicts, so that no field of an answer is lost.

Api sends requests and opens watches; RetriedReads repeats reads after transient faults, for calls
that the kubelet waits for.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from tensorfusion_dra.cluster import error_text
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import (
    InputError,
    MissingPermissionError,
    RetryableError,
    UnreadableError,
)
from tensorfusion_dra.core.kubernetes import untyped_json
from tensorfusion_dra.core.kubernetes.untyped_json import as_map
from tensorfusion_dra.driver.ports import Exchanges
from tensorfusion_dra.runtime.calls import MOST_READING, WaitingCalls
from tensorfusion_dra.runtime.loops import Backoff

if TYPE_CHECKING:
    from tensorfusion_dra.cluster.connections import Answer, Connections

READ_SECONDS: Final = 30.0
_JSON: Final = "application/json"
USER_AGENT: Final = "tensorfusion-dra"
"""Identifies this driver in the API server's audit log."""
APPLY: Final = "application/apply-patch+yaml"
"""Server-side apply. Its body may be JSON."""
_MOST_ERROR_BYTES: Final = 64 * 2**10
"""A Status object has a few hundred bytes. The rest of a longer error answer is not read."""
_MOST_EVENT_BYTES: Final = 8 * 2**20
"""An API server accepts objects of at most 3 MiB. As JSON, some are a little larger."""
RESOURCE_VERSION: Final = f"{names.RESOURCE_GROUP}/v1"
"""The field apiVersion of claims, slices and classes. Kubernetes serves it from 1.34 on."""
Result = TypeVar("Result")
_ALL_SECONDS: Final = 15.0
"""The kubelet repeats a failed call after a minute, so some patience pays off. But each waiting
call takes a worker from the calls that need no API server."""
_TRY_SECONDS: Final = 5.0
"""A connection that died silently never answers, but a new one may."""
_LASTING: Final = frozenset({400, 403, 405, 406, 410, 415, 422})
"""HTTP statuses that a quick retry does not change."""


class TooLargeError(OSError):
    """An answer has more bytes than any valid answer."""


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
    """The connections to one API server, for all threads."""

    def __init__(
        self,
        kubeconfig: Path | None,
        *,
        user_agent: str = USER_AGENT,
        exchanges: Sequence[Exchanges] = (),
    ) -> None:
        """Store the settings; connect() reads the kubeconfig.

        Args:
            kubeconfig: None selects the pod's service account.
            user_agent: Identifies the sender in the API server's audit log.
            exchanges: Observers of every request.
        """
        self._kubeconfig = kubeconfig
        self._user_agent = user_agent
        self._exchanges = tuple(exchanges)
        self._connecting = Lock()  # guards changes of all below
        self._login: Connections | None = None
        self._was_connected = False
        self._old_secrets: frozenset[str] = frozenset()

    def connect(self) -> "Connections":
        """Log in at the first call, and return the login.

        Not before, because the libraries take a while to load.

        Raises:
            InputError: The kubeconfig cannot be read, or the pod has no service account.
        """
        with self._connecting:
            if self._login is None:
                # Imported here so that the kubelet's sockets serve before the library has loaded.
                from tensorfusion_dra.cluster import login  # noqa: PLC0415

                self._login = login.log_in(self._kubeconfig, user_agent=self._user_agent)
            return self._login

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        wait_seconds: float = READ_SECONDS,
        right: str = "",
    ) -> dict[str, Any]:
        """Send a request and return the JSON object of the answer.

        Args:
            content_type: The media type of the body. It selects the kind of PATCH.
            wait_seconds: For the whole call: connection, headers and body.
            right: The right that the call needs; the error names it if it is missing.

        Raises:
            StatusError: The API server answered with an error.
            MissingPermissionError: It answered 403 Forbidden, and the needed right is given.
            UnreadableError: The answer is not a JSON object, or is too large.
            RetryableError: The API server did not answer within the time.
        """
        subject = f"{method} {path}"
        try:
            answer = self._send(
                method,
                path,
                query=query,
                body=body,
                content_type=content_type,
                wait_seconds=wait_seconds,
            )
            if answer.status >= 400:
                raise self._status_error(subject, answer, right)
            text = answer.body()
            self._report_answer(subject, answer.status)
        except (OSError, ValueError) as error:
            raise self._unanswered(subject, error) from error
        try:
            found = untyped_json.parse(text)
        except ValueError as error:
            excerpt = error_text.one_line(_excerpt(text), self._secrets())
            raise UnreadableError(f"{subject}: found no JSON: {excerpt}") from error
        if not isinstance(found, dict):
            raise UnreadableError(f"{subject}: found {type(found).__name__}, expected an object")
        return found

    def find(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        wait_seconds: float = READ_SECONDS,
        right: str = "",
    ) -> dict[str, Any] | None:
        """Return the object or the list at a path; None if the API server has nothing there.

        Raises:
            RetryableError: See call().
        """
        try:
            return self.call("GET", path, query=query, wait_seconds=wait_seconds, right=right)
        except StatusError as error:
            if error.status == 404:
                return None
            raise

    @contextmanager
    def watch(
        self, path: str, *, query: Mapping[str, str], silent_seconds: float
    ) -> Iterator["WatchStream"]:
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
        try:
            answer = self._send(
                "GET", path, query={**query, "watch": "true"}, wait_seconds=silent_seconds
            )
            try:
                if answer.status >= 400:
                    raise self._status_error(subject, answer)
                self._report_answer(subject, answer.status)
                yield WatchStream(
                    answer,
                    subject=subject,
                    silent_seconds=silent_seconds,
                    on_event=self._report_event,
                )
            finally:
                answer.close()
        except (OSError, ValueError) as error:
            raise self._unanswered(subject, error) from error

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        wait_seconds: float,
    ) -> "Answer":
        if wait_seconds <= 0:
            raise TimeoutError
        try:
            login = self.connect()
        except InputError as error:
            if not self._was_connected:
                raise
            # The kubeconfig was readable before, so it is probably being replaced right now.
            raise RetryableError(str(error)) from error
        self._was_connected = True
        answer = login.send(
            method,
            path,
            query=query,
            content=None if body is None else json.dumps(body).encode(),
            headers={} if body is None else {"Content-Type": content_type},
            seconds=wait_seconds,  # without the time to load the library
        )
        if answer.status == 401:
            # The next request logs in again: the library never reads a kubeconfig's token again.
            with self._connecting:
                self._old_secrets = login.credentials.secrets()
                if self._login is login:
                    self._login = None
            login.close()
        return answer

    def _status_error(self, subject: str, answer: "Answer", right: str = "") -> RetryableError:
        """Return the error that the API server answered with."""
        secrets = self._secrets()
        text = answer.body(cut_at=_MOST_ERROR_BYTES)
        try:
            answered = as_map(untyped_json.parse(text))
        except ValueError:
            answered = {}
        message = error_text.one_line(answered.get("message", _excerpt(text)), secrets)
        message = f"{subject}: {answer.status}: {message}"
        self._report_answer(subject, answer.status, message)
        if answer.status == 403 and right:
            return MissingPermissionError(f"expected the right to {right}: {message}", right)
        return StatusError(
            message,
            answer.status,
            details=as_map(answered.get("details")),
            after_seconds=answer.retry_after_seconds(),
        )

    def _unanswered(self, subject: str, error: Exception) -> RetryableError:
        """Return the error of a request that has no complete answer."""
        text = f"{subject}: {error_text.one_line(error_text.cause(error), self._secrets())}"
        method, _, path = subject.partition(" ")
        for each in self._exchanges:
            each.unanswered(method, text, path=path)
        return UnreadableError(text) if isinstance(error, TooLargeError) else RetryableError(text)

    def _report_answer(self, subject: str, status: int, error: str = "") -> None:
        method, _, path = subject.partition(" ")
        for each in self._exchanges:
            each.answered(method, status, error, path=path)

    def _report_event(self) -> None:
        for each in self._exchanges:
            each.watch_event()

    def _secrets(self) -> frozenset[str]:
        """Return the known credentials, which must never appear in a log."""
        login = self._login
        return self._old_secrets | (login.credentials.secrets() if login else frozenset())


class WatchStream:
    """The events of one watch, each bounded in time and size."""

    def __init__(
        self, answer: "Answer", *, subject: str, silent_seconds: float, on_event: Callable[[], None]
    ) -> None:
        """Store the arguments; nothing is read yet.

        Args:
            answer: Its deadline is renewed for each event.
            subject: Prefix of error texts.
            silent_seconds: Longest wait for one complete event.
            on_event: Called for each complete event.
        """
        self._answer = answer
        self._subject = subject
        self._silent_seconds = silent_seconds
        self._on_event = on_event

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._answer.deadline.renew(self._silent_seconds)
        rest = bytearray()
        for piece in self._answer.pieces():
            rest += piece
            if len(rest) > _MOST_EVENT_BYTES:
                raise TooLargeError(f"event: found more than {_MOST_EVENT_BYTES} bytes")
            if b"\n" not in piece:
                continue
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in filter(bytes.strip, lines):
                try:
                    event = untyped_json.parse(line)
                except ValueError as error:
                    text = error_text.one_line(error)
                    raise UnreadableError(f"{self._subject}: found no JSON: {text}") from error
                self._answer.deadline.renew(self._silent_seconds)
                self._on_event()
                if isinstance(event, dict):
                    yield event

    def cut(self) -> None:
        """End the iteration; another thread may call this while it waits or is just ending."""
        self._answer.cut()


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


def _excerpt(text: bytes) -> str:
    """Return the beginning of a body, cut between words: half a secret would not be redacted."""
    if len(text) >= _MOST_ERROR_BYTES:
        text = text[:_MOST_ERROR_BYTES].rpartition(b" ")[0] or text[:_MOST_ERROR_BYTES]
    return text.decode(errors="replace")


def resource_path(plural: str, *, namespace: str = "", name: str = "") -> str:
    """Return a path of resource.k8s.io: of all objects of a kind, or of the one with this name."""
    scope = f"/namespaces/{segment(namespace)}" if namespace else ""
    one = f"/{segment(name)}" if name else ""
    return f"/apis/{RESOURCE_VERSION}{scope}/{plural}{one}"


class RetriedReads:
    """Retries of reads after transient faults, for a bounded number of callers at a time."""

    def __init__(self) -> None:
        self._waiting = WaitingCalls(MOST_READING, reason="wait for the API server")

    def with_retries(
        self, subject: str, ask: Callable[[float], Result], *, wait_seconds: float
    ) -> Result:
        """Return the result of ask(), which is called again after a transient fault.

        Args:
            subject: Prefix of error texts.
            ask: Sends the request. Its argument is the number of seconds that it may take.
            wait_seconds: For all tries together.

        Raises:
            UnreadableError: The answer cannot be read.
            RetryableError: The API server did not answer within the time or refused, or too many
                callers are waiting already.
        """
        with self._waiting.slot(subject):
            deadline = time.monotonic() + min(wait_seconds, _ALL_SECONDS)
            backoff = Backoff(first_seconds=0.2, longest_seconds=2)
            answer: RetryableError | None = None  # the last one of the API server
            while True:
                try:
                    return ask(min(_TRY_SECONDS, deadline - time.monotonic()))
                except UnreadableError as error:
                    raise UnreadableError(f"{subject}: {error}") from error
                except RetryableError as error:
                    is_lasting = isinstance(error, MissingPermissionError)
                    if isinstance(error, StatusError):
                        answer, is_lasting = error, error.status in _LASTING
                    delay = backoff.failed(at_least=error.after_seconds)
                    if is_lasting or time.monotonic() + delay >= deadline:
                        # An answer says more than the silence of a last try without time.
                        raise RetryableError(f"{subject}: {answer or error}") from error
                    time.sleep(delay)
