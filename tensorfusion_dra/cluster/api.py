"""The API server's API over plain dicts, so that no field of an answer is lost.

Api sends requests and opens watches; RetriedReads repeats reads after transient faults, for calls
that the kubelet waits for.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar
from urllib.parse import quote

from tensorfusion_dra.cluster import error_text, login
from tensorfusion_dra.cluster.connections import Answer, Connections, TooLargeError
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import (
    InputError,
    MissingPermissionError,
    RetryableError,
    StatusError,
    UnreadableError,
)
from tensorfusion_dra.core.kubernetes import untyped_json
from tensorfusion_dra.core.kubernetes.untyped_json import as_map
from tensorfusion_dra.driver.ports import Exchanges
from tensorfusion_dra.runtime.calls import MAX_READING, WaitingCalls
from tensorfusion_dra.runtime.loops import Backoff

READ_SECONDS: Final = 30.0
_JSON: Final = "application/json"
_PAGE: Final = "500"
USER_AGENT: Final = "tensorfusion-dra"
"""Identifies this driver in the API server's audit log."""
APPLY: Final = "application/apply-patch+yaml"
"""Server-side apply. Its body may be JSON."""
_MAX_ERROR_BYTES: Final = 64 * 2**10
"""A Status object has a few hundred bytes. The rest of a longer error answer is not read."""
_MAX_EVENT_BYTES: Final = 8 * 2**20
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


class RetriedReads:
    """Retries of reads after transient faults, for a bounded number of callers at a time."""

    def __init__(self) -> None:
        self._waiting = WaitingCalls(MAX_READING, reason="wait for the API server")

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


class Api:
    """The connections to one API server, for all threads.

    Attributes:
        reads: Retries of reads that somebody waits for.
    """

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
        self.reads: Final = RetriedReads()
        self._connecting = Lock()  # guards changes of all below
        self._login: Connections | None = None
        self._rejected: Connections | None = None
        """The last login that the server did not accept any more."""

    def connect(self) -> Connections:
        """Log in at the first call, and return the login.

        Not before, because a kubeconfig takes a while to load.

        Raises:
            InputError: The kubeconfig cannot be read, or the pod has no service account.
        """
        with self._connecting:
            if self._login is None:
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
        permission: str = "",
    ) -> dict[str, Any]:
        """Send a request and return the JSON object of the answer.

        Args:
            content_type: The media type of the body. It selects the kind of PATCH.
            wait_seconds: For the whole call: connection, headers and body.
            permission: What the call needs; the error names it if it is missing.

        Raises:
            StatusError: The API server answered with an error.
            MissingPermissionError: It answered 403 Forbidden, and the permission is given.
            UnreadableError: The answer is not a JSON object, or is too large.
            RetryableError: The API server did not answer within the time.
        """
        subject = f"{method} {path}"
        try:
            answer = self._send(
                subject,
                path,
                method=method,
                query=query,
                body=body,
                content_type=content_type,
                wait_seconds=wait_seconds,
                permission=permission,
            )
            text = answer.body()
            self._report_answer(subject, answer.status)
        except (HTTPException, OSError, ValueError) as error:
            raise self._unanswered(subject, error) from error
        try:
            found = untyped_json.parse(text)
        except ValueError as error:
            excerpt = error_text.one_line(_excerpt(text), self._secrets())
            raise UnreadableError(f"{subject}: found no JSON: {excerpt}") from error
        if not isinstance(found, dict):
            raise UnreadableError(f"{subject}: found {type(found).__name__}, expected an object")
        return found

    def listed(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        wait_seconds: float = READ_SECONDS,
        permission: str = "",
    ) -> Iterator[dict[str, Any]]:
        """Yield the objects of a collection, which is read in pages.

        Args:
            wait_seconds: For each page.
            permission: See call().

        Raises:
            RetryableError: See call().
        """
        page = {**(query or {}), "limit": _PAGE}
        while True:
            found = self.call(
                "GET", path, query=page, wait_seconds=wait_seconds, permission=permission
            )
            yield from found.get("items") or ()
            if not (token := metadata(found).get("continue")):
                return
            page["continue"] = str(token)

    def find(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        wait_seconds: float = READ_SECONDS,
        permission: str = "",
    ) -> dict[str, Any] | None:
        """Return the object or the list at a path; None if the API server has nothing there.

        Raises:
            RetryableError: See call().
        """
        try:
            return self.call(
                "GET", path, query=query, wait_seconds=wait_seconds, permission=permission
            )
        except StatusError as error:
            if error.status == 404:
                return None
            raise

    def watch(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        silent_seconds: float,
        on_open: Callable[[Answer], None] = lambda _: None,
    ) -> Iterator[dict[str, Any]]:
        """Open a watch and yield its events.

        Args:
            silent_seconds: Time after which a server that sends no complete event, not even a
                bookmark, counts as gone.
            on_open: Called once the server has begun to answer. Answer.cut() ends the watch.

        Raises:
            StatusError: The API server refused the watch.
            UnreadableError: An event is not JSON, or is too large.
            RetryableError: The connection broke.
        """
        subject = f"WATCH {path}"
        try:
            answer = self._send(
                subject, path, query={**query, "watch": "true"}, wait_seconds=silent_seconds
            )
            self._report_answer(subject, answer.status)
            on_open(answer)
            answer.deadline.renew(silent_seconds)
            rest = bytearray()
            for piece in answer.pieces():
                rest += piece
                if len(rest) > _MAX_EVENT_BYTES:
                    raise TooLargeError(f"event: found more than {_MAX_EVENT_BYTES} bytes")
                if b"\n" not in piece:
                    continue
                *lines, last = bytes(rest).split(b"\n")
                rest = bytearray(last)
                for line in filter(bytes.strip, lines):
                    try:
                        event = untyped_json.parse(line)
                    except ValueError as error:
                        text = error_text.one_line(error)
                        raise UnreadableError(f"{subject}: found no JSON: {text}") from error
                    answer.deadline.renew(silent_seconds)
                    for each in self._exchanges:
                        each.watch_event()
                    if isinstance(event, dict):
                        yield event
        except (HTTPException, OSError, ValueError) as error:
            raise self._unanswered(subject, error) from error

    def _send(
        self,
        subject: str,
        path: str,
        *,
        method: str = "GET",
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        wait_seconds: float,
        permission: str = "",
    ) -> Answer:
        if wait_seconds <= 0:
            raise TimeoutError
        try:
            login = self.connect()
        except InputError as error:
            if self._rejected is None:
                raise
            # The kubeconfig was readable before, so it is probably being replaced right now.
            raise RetryableError(str(error)) from error
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
                self._rejected = login
                if self._login is login:
                    self._login = None
            login.close()
        if answer.status >= 400:
            raise self._status_error(subject, answer, permission)
        return answer

    def _status_error(self, subject: str, answer: Answer, permission: str) -> RetryableError:
        """Return the error that the API server answered with."""
        secrets = self._secrets()
        text = answer.body(cut_at=_MAX_ERROR_BYTES)
        try:
            answered = as_map(untyped_json.parse(text))
        except ValueError:
            answered = {}
        message = error_text.one_line(answered.get("message", _excerpt(text)), secrets)
        message = f"{subject}: {answer.status}: {message}"
        self._report_answer(subject, answer.status, message)
        if answer.status == 403 and permission:
            message = f"expected the right to {permission}: {message}"
            return MissingPermissionError(message, permission)
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

    def _secrets(self) -> frozenset[str]:
        """Return the known credentials, which must never appear in a log."""
        logins = filter(None, (self._rejected, self._login))
        return frozenset().union(*(each.credentials.secrets() for each in logins))


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
    if len(text) >= _MAX_ERROR_BYTES:
        text = text[:_MAX_ERROR_BYTES].rpartition(b" ")[0] or text[:_MAX_ERROR_BYTES]
    return text.decode(errors="replace")


def resource_path(plural: str, *, namespace: str = "", name: str = "") -> str:
    """Return a path of resource.k8s.io: of all objects of a kind, or of the one with this name."""
    scope = f"/namespaces/{segment(namespace)}" if namespace else ""
    one = f"/{segment(name)}" if name else ""
    return f"/apis/{RESOURCE_VERSION}{scope}/{plural}{one}"
