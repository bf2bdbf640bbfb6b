"""The API server's API over plain dicts, so that no field of an answer is lost.

From top to bottom, one call is:

    read()   repeats call() after transient faults, for callers that somebody waits for
    call()   sends a request and returns the JSON object of its answer; watch() yields its events,
             listed() returns what is kept of a collection's objects
    send()   logs in, and writes the request to a connection that is kept between requests
    Answer   its body, bounded in bytes
    _Socket  its bytes, bounded in time

Anybody may store objects of up to 3 MiB, and a parsed one takes up to forty times the memory of its
text. So every object, in an answer of its own, a list or an event, is counted before it is parsed
(untyped_json.py); of those above 32 KiB only two at a time are held by all threads together, until
they are reduced to what their reader keeps.

http.client speaks HTTP. A socket's timeout applies to a single read, and a server that sends one
byte now and then never exceeds it. So every answer, also a proxy's, is read from a socket that
counts down over all reads: the seconds of the call, or those until the next event of a watch.
"""

import json
import math
import re
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import structlog

from tensorfusion_dra.cluster import error_text, login
from tensorfusion_dra.cluster.login import Login
from tensorfusion_dra.cluster.shared_reads import SharedReads
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import (
    InputError,
    MissingPermissionError,
    RetryableError,
    StatusError,
    UnreadableError,
)
from tensorfusion_dra.core.kubernetes import untyped_json
from tensorfusion_dra.core.kubernetes.item_stream import ItemStream, PassedOver
from tensorfusion_dra.core.kubernetes.projection import Projection, projected
from tensorfusion_dra.core.kubernetes.untyped_json import (
    MAX_OBJECT_BYTES,
    BoundError,
    as_map,
    map_at,
)
from tensorfusion_dra.core.observed import NO_ANSWER, ApiServerView
from tensorfusion_dra.runtime.calls import MAX_READING, WaitingCalls
from tensorfusion_dra.runtime.loops import Backoff

log = structlog.get_logger()

Found = TypeVar("Found")

USER_AGENT: Final = "tensorfusion-dra"
"""Identifies this driver in the API server's audit log."""
APPLY: Final = "application/apply-patch+yaml"
"""Server-side apply. Its body may be JSON."""
RESOURCE_VERSION: Final = f"{names.RESOURCE_GROUP}/v1"
"""The field apiVersion of claims, slices and classes. Kubernetes serves it from 1.34 on."""
MERGE_PATCH: Final = "application/merge-patch+json"
CORE: Final = "/api/v1"
READ_SECONDS: Final = 30.0
_JSON: Final = "application/json"
_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Media type of an object without its spec and status."""
_METADATA_BYTES: Final = 4 * 2**20
"""Labels have 1.5 MiB at most, which etcd takes. Annotations come next: 256 KiB, and up to six
times as much in JSON."""
_FIRST_PAGE: Final = 25
_MAX_PAGE: Final = 500
_PAGE_BYTES: Final = 4 * 2**20
"""Of a page, about. Objects of a tenant may be large, and a page has to arrive within its time."""

_ALL_SECONDS: Final = 15.0
"""The kubelet repeats a failed call after a minute, so some patience pays off. But each waiting
call takes a worker from the calls that need no API server."""
_TRY_SECONDS: Final = 5.0
"""A connection that died silently never answers, but a new one may."""
_LASTING: Final = frozenset({400, 403, 405, 406, 410, 415, 422})
"""HTTP statuses that a quick retry does not change."""
_REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})
"""Methods that are safe to repeat if the server has already executed the first try."""

_CONNECT_SECONDS: Final = 3.05
"""For each IP address that the server's name resolves to."""
_MAX_RETRY_AFTER_SECONDS: Final = 120.0
_MAX_ERROR_BYTES: Final = 64 * 2**10
"""A Status object has a few hundred bytes. The rest of a longer error answer is not read."""
_MAX_EVENT_BYTES: Final = 20 * 2**20
"""An API server stores objects of at most 3 MiB, and JSON may have six bytes for one of these."""
_PIECE_BYTES: Final = 64 * 2**10
_SMALL_BYTES: Final = 32 * 2**10
_LARGE_AT_A_TIME: Final = 2
_MAX_KEPT_ELEMENTS: Final = 5_000
"""What is kept of a claim with 32 devices, each with parameters, and 256 pods has about 2,000."""

_REFUSALS: Final = frozenset({401, 403, 429})
"""Errors that concern this driver as a whole; the others below 500, such as 404, are answers."""
_VERBS: Final = {
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
    "WATCH": "watch",
}
_RESOURCE: Final = re.compile(
    r"/(?:api/v1|apis/[^/]+/[^/]+)/(?:namespaces/[^/]+/)?([a-z]+)(?:/([^/]+)(?:/([a-z]+))?)?"
)
_RESOURCES: Final = frozenset(
    {
        *("resourceslices", "resourceclaims", "resourceclaims/status", "pods", "nodes", "events"),
        *("resourceclaimtemplates", "deviceclasses"),
        *("gpupools", "schedulingconfigtemplates", "gpuresourcequotas"),
    }
)

_IDENTITY: Final = re.compile(r'"(name|namespace|uid)":\s*"([^"\\]{1,253})"')
"""Of an object, at the beginning of its text: the API server writes metadata first, in the order of
its fields."""

segment: Final = partial(quote, safe="")
"""Returns a name, quoted as one segment of a URL path."""


def resource_path(
    plural: str, *, namespace: str = "", name: str = "", root: str = f"/apis/{RESOURCE_VERSION}"
) -> str:
    """Return a path of resource.k8s.io: of all objects of a kind, or of the one with this name.

    Args:
        root: The path of another group and version, such as CORE.
    """
    scope = f"/namespaces/{segment(namespace)}" if namespace else ""
    one = f"/{segment(name)}" if name else ""
    return f"{root}{scope}/{plural}{one}"


@dataclass(frozen=True, slots=True)
class Listed:
    """The objects of a collection, each reduced to what its reader keeps.

    Attributes:
        version: The collection's resourceVersion.
        passed_over: Name, namespace and UID of each object that has more bytes, elements or levels
            of nesting than is read.
    """

    items: list[dict[str, Any]]
    version: str
    passed_over: list[dict[str, str]] = field(default_factory=list)


class Api:
    """Client of one API server, for all threads.

    It has as many connections as were ever in use at a time: at most 64 for the kubelet's calls
    (see runtime/calls.py), and one for each loop. An API server closes those that are idle for
    90 s.

    Attributes:
        exchanges: Record of all requests.
    """

    def __init__(
        self, kubeconfig: Path | None, *, context: str | None = None, user_agent: str = USER_AGENT
    ) -> None:
        """Store the settings; connect() reads the kubeconfig.

        Args:
            kubeconfig: None selects the pod's service account.
            context: Of the kubeconfig; None for the current one.
            user_agent: Identifies the sender in the API server's audit log.
        """
        self._log_in: Final = partial(login.log_in, kubeconfig, context)
        self._user_agent = user_agent
        self.exchanges: Final = Exchanges()
        self._reading = WaitingCalls(MAX_READING, reason="wait for the API server")
        self._connecting = Lock()  # guards changes of both below
        self._login: Login | None = None
        self._rejected: Login | None = None
        """The last login that the server did not accept any more."""
        self._guard = Lock()  # guards the idle connections of every login
        self._large: Final = BoundedSemaphore(_LARGE_AT_A_TIME)
        self._lists: Final = SharedReads()

    def connect(self) -> Login:
        """Log in at the first call, and return the login.

        Not before, because a kubeconfig takes a while to load.

        Raises:
            InputError: The kubeconfig cannot be read, or the pod has no service account.
            RetryableError: The kubeconfig was readable before, so it is probably being replaced.
        """
        with self._connecting:
            if self._login is None:
                try:
                    self._login = self._log_in()
                except InputError as error:
                    if self._rejected is None:
                        raise
                    raise RetryableError(str(error)) from error
            return self._login

    def read(
        self,
        subject: str,
        path: str,
        keep: Projection,
        *,
        wait_seconds: float,
        permission: str = "",
    ) -> dict[str, Any]:
        """Return what is kept of the object at a path; empty if there is no such object.

        The request is repeated after transient faults. The number of callers at a time is bounded.

        Args:
            subject: Prefix of error texts.
            keep: See call().
            wait_seconds: For all tries together.
            permission: See call().

        Raises:
            UnreadableError: The answer cannot be read.
            RetryableError: The API server did not answer within the time or refused, or too many
                callers are waiting already.
        """

        def find(seconds: float) -> dict[str, Any]:
            try:
                return self.call(
                    "GET",
                    path,
                    keep=keep,
                    wait_seconds=min(_TRY_SECONDS, seconds),
                    permission=permission,
                )
            except StatusError as error:
                # Only a 404 with these details means that the object does not exist. One without
                # comes from a server that does not know the path, or from a proxy.
                kind, name = (error.details.get(key) for key in ("kind", "name"))
                if error.status == 404 and path.endswith(f"/{kind}/{segment(str(name))}"):
                    return {}
                raise

        return self._patiently(subject, find, wait_seconds)

    def read_list(
        self,
        subject: str,
        path: str,
        keep: Projection,
        *,
        query: Mapping[str, str] | None = None,
        wait_seconds: float,
        permission: str = "",
    ) -> Listed:
        """Return the objects of a collection, as read() does one object; see listed().

        Callers that ask for the same collection at the same time share a list, which began after
        each of them asked.
        """
        key = path, *(query or {}).items()

        def read(seconds: float) -> Listed:
            return self.listed(
                path,
                keep,
                query=query,
                wait_seconds=_TRY_SECONDS,
                all_seconds=seconds,
                permission=permission,
            )

        return self._patiently(
            subject, lambda seconds: self._lists.get(key, read, wait_seconds=seconds), wait_seconds
        )

    def _patiently(
        self, subject: str, attempt: Callable[[float], Found], wait_seconds: float
    ) -> Found:
        """Return what an attempt within these seconds returns; see read()."""
        with self._reading.slot(subject):
            deadline = time.monotonic() + min(wait_seconds, _ALL_SECONDS)
            backoff: Backoff | None = None
            answer: RetryableError | None = None  # the last one of the API server
            while True:
                try:
                    return attempt(deadline - time.monotonic())
                except UnreadableError as error:
                    raise UnreadableError(f"{subject}: {error}") from error
                except RetryableError as error:
                    is_lasting = isinstance(error, MissingPermissionError)
                    if isinstance(error, StatusError):
                        answer, is_lasting = error, error.status in _LASTING
                    backoff = backoff or Backoff(first_seconds=0.2, longest_seconds=2)
                    delay = backoff.failed(at_least=error.after_seconds)
                    if is_lasting or time.monotonic() + delay >= deadline:
                        # An answer says more than the silence of a last try without time.
                        raise RetryableError(f"{subject}: {answer or error}") from error
                    time.sleep(delay)

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        keep: Projection = dict,
        wait_seconds: float = READ_SECONDS,
        permission: str = "",
    ) -> dict[str, Any]:
        """Send a request and return the JSON object of the answer.

        Args:
            content_type: The media type of the body. It selects the kind of PATCH.
            keep: What is kept of the object, of at most 5,000 elements; by itself all of it.
            wait_seconds: For the whole call: connection, headers and body.
            permission: What the call needs; the error names it if it is missing.

        Raises:
            StatusError: The API server answered with an error.
            MissingPermissionError: It answered 403 Forbidden, and the permission is given.
            UnreadableError: The answer is not a JSON object of the form that is kept, or has more
                of something than is read.
            RetryableError: The API server did not answer within the time.
        """
        with self._text(
            method,
            path,
            query=query,
            body=body,
            content_type=content_type,
            wait_seconds=wait_seconds,
            permission=permission,
        ) as text:
            return _kept(untyped_json.parse(text), keep)

    def annotations(
        self, path: str, keep: Projection, *, wait_seconds: float, permission: str = ""
    ) -> dict[str, Any]:
        """Return what is kept of an object that has its name, namespace, UID and annotations alone.

        Whatever else it has, such as many labels, is not parsed.

        Raises:
            RetryableError: See call().
        """
        with self._text(
            "GET",
            path,
            accept=_METADATA,
            cut_at=_METADATA_BYTES,
            wait_seconds=wait_seconds,
            permission=permission,
        ) as text:
            annotations = untyped_json.annotations(text, is_whole=len(text) < _METADATA_BYTES)
            about = {**_identity(_excerpt(text)), "annotations": annotations}
            return _kept({"metadata": about}, keep)

    @contextmanager
    def _text(
        self, method: str, path: str, *, cut_at: int | None = None, **request: Any
    ) -> Iterator[bytes]:
        """Yield the JSON text of an answer; few threads have a large one at a time.

        Args:
            cut_at: See Answer.body().
            request: Other arguments of send().

        Raises:
            RetryableError: See call(). It takes the place of errors in the block, too.
        """
        with ExitStack() as stack:
            try:
                answer = self.send(method, path, **request)
                turn = stack.enter_context(closing(_Turn(self._large, answer.connection.deadline)))
                text = answer.body(cut_at=cut_at, on_large=turn.take)
            except (HTTPException, OSError, ValueError) as error:
                raise self._unanswered(method, path, error) from error
            self.exchanges.record(method, path, answer.response.status)
            try:
                yield text
            except (BoundError, InputError) as error:
                shown = error_text.one_line(error, self._secrets())
                raise UnreadableError(f"{method} {path}: {shown}") from error
            except ValueError as error:
                raise UnreadableError(
                    f"{method} {path}: found no JSON: "
                    f"{error_text.one_line(_excerpt(text), self._secrets())}"
                ) from error

    def change(self, method: str, path: str, **request: Any) -> None:
        """Send a request of which the answer, an object of any size, is not needed.

        Args:
            request: Other arguments of send().

        Raises:
            RetryableError: See call().
        """
        try:
            answer = self.send(method, path, **request)
            for _ in answer.pieces():
                pass
        except (HTTPException, OSError, ValueError) as error:
            raise self._unanswered(method, path, error) from error
        self.exchanges.record(method, path, answer.response.status)

    def find(
        self,
        path: str,
        *,
        wait_seconds: float = READ_SECONDS,
    ) -> dict[str, Any] | None:
        """Return the object or the list at a path; None if the API server has nothing there.

        Raises:
            RetryableError: See call().
        """
        try:
            return self.call("GET", path, wait_seconds=wait_seconds)
        except StatusError as error:
            if error.status == 404:
                return None
            raise

    def listed(
        self,
        path: str,
        keep: Projection,
        *,
        query: Mapping[str, str] | None = None,
        pages: bool = True,
        wait_seconds: float = READ_SECONDS,
        all_seconds: float = math.inf,
        permission: str = "",
    ) -> Listed:
        """Return the objects of a collection; the only way to read one.

        Each object is reduced before the next one is decoded, so only one is in memory at a time,
        however large they are. An object of another form than its reader expects is left out.

        Args:
            keep: What is kept of each object. If that is nothing, the object is left out, too.
            pages: True to have the API server make the answer in parts. The first one has 25
                objects, and each later one as many as have about 4 MiB.
            wait_seconds: For each page.
            all_seconds: For all pages together.
            permission: See call().

        Raises:
            RetryableError: See call().
        """
        page, size, ends = {**(query or {})}, _FIRST_PAGE, time.monotonic() + all_seconds
        found: list[dict[str, Any]] = []
        passed_over: list[dict[str, str]] = []
        while True:
            if pages:
                page["limit"] = str(size)
            seconds = min(wait_seconds, ends - time.monotonic())
            try:
                answer = self.send(
                    "GET", path, query=page, wait_seconds=seconds, permission=permission
                )
                with closing(_Turn(self._large, answer.connection.deadline)) as turn:
                    stream = ItemStream(answer.pieces(), on_large=turn.take)
                    for item in stream:
                        if isinstance(item, PassedOver):
                            passed_over.append(self._passed_over(path, item.head, item.error))
                        elif isinstance(item, dict):
                            found += self.reduced(path, item, keep)
                        else:  # a proxy in between may be broken
                            raise UnreadableError(f"GET {path}: found an item that is no object")
                        turn.close()
            except (HTTPException, OSError) as error:
                raise self._unanswered("GET", path, error) from error
            except ValueError as error:
                raise UnreadableError(
                    f"GET {path}: {error_text.one_line(error, self._secrets())}, expected a list"
                ) from error
            self.exchanges.record("GET", path, answer.response.status)
            about = map_at(stream.fields, "metadata")
            if not (token := about.get("continue")):
                return Listed(found, str(about.get("resourceVersion") or ""), passed_over)
            page["continue"] = str(token)
            size = max(1, min(_MAX_PAGE, size * _PAGE_BYTES // max(1, stream.length)))

    def _passed_over(self, path: str, head: str, error: object) -> dict[str, str]:
        """Return what is known of an object that is not decoded, after a line in the log.

        Args:
            head: The beginning of its text.
        """
        found = _identity(head)
        log.warning("object_passed_over", path=path, **found, error=str(error))
        return found

    def reduced(self, path: str, item: object, keep: Projection) -> list[dict[str, Any]]:
        """Return what is kept of an object; nothing, and a line in the log, if it is malformed.

        Args:
            path: That of its collection.
        """
        try:
            found = projected(item, keep)
        except InputError as error:
            log.warning(
                "object_left_out",
                path=path,
                name=error_text.one_line(map_at(item, "metadata").get("name"), self._secrets()),
                error=error_text.one_line(error, self._secrets()),
            )
            return []
        return [found] if found else []

    def watch(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        silent_seconds: float,
        on_open: Callable[["Answer"], None] = lambda _: None,
    ) -> Iterator[dict[str, Any]]:
        """Open a watch and yield its events, without those of objects that are too large to read.

        Args:
            silent_seconds: Time after which a server that sends no complete event, not even a
                bookmark, counts as gone.
            on_open: Called once the server has begun to answer. Answer.cut() ends the watch.

        Raises:
            StatusError: The API server refused the watch.
            UnreadableError: An event is not JSON, or endless.
            RetryableError: The connection broke.
        """
        try:
            answer = self.send(
                "WATCH", path, query={**query, "watch": "true"}, wait_seconds=silent_seconds
            )
            self.exchanges.record("WATCH", path, answer.response.status)
            on_open(answer)
            answer.connection.deadline.renew(silent_seconds)
            line, length = bytearray(), 0
            for piece in answer.pieces():
                for number, part in enumerate(piece.split(b"\n")):
                    if number:  # the line before is complete
                        answer.connection.deadline.renew(silent_seconds)
                        with closing(_Turn(self._large, answer.connection.deadline)) as turn:
                            yield from self._event_of(path, line, turn)
                        line, length = bytearray(), 0
                    length += len(part)
                    if length > _MAX_EVENT_BYTES:
                        raise TooLargeError(f"event: found more than {_MAX_EVENT_BYTES} bytes")
                    if len(line) <= MAX_OBJECT_BYTES:  # of a longer one only the beginning is held
                        line += part
        except (HTTPException, OSError, ValueError) as error:
            raise self._unanswered("WATCH", path, error) from error

    def _event_of(self, path: str, line: bytearray, turn: "_Turn") -> Iterator[dict[str, Any]]:
        """Yield the event of a line, if it is one."""
        if not line.strip():
            return
        self.exchanges.record_event()
        if len(line) > _SMALL_BYTES:
            turn.take()
        try:
            event = _parsed_line(line)
        except BoundError as error:
            self._passed_over(path, line[:_SMALL_BYTES].decode(errors="replace"), error)
            return
        except ValueError as error:
            raise UnreadableError(
                f"WATCH {path}: found no JSON: {error_text.one_line(error)}"
            ) from error
        if isinstance(event, dict):
            yield event

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        wait_seconds: float = READ_SECONDS,
        permission: str = "",
    ) -> "Answer":
        """Send a request and return the answer; the caller reads its body in the remaining time.

        A server may just have closed an idle connection. Then the request is repeated once, in the
        remaining time.

        Args:
            method: WATCH for the GET of a watch.
            wait_seconds: For the whole request, including the body of the answer. If the server's
                name has several addresses that are all dead, each may take 3 seconds, and so may a
                proxy.

        Raises:
            StatusError, MissingPermissionError: See call().
            TimeoutError: There was no answer within the time.
            HTTPException: The answer is no HTTP, or a proxy's.
            OSError: There was no connection, it broke, or its certificate is not trusted.
            RetryableError: The token cannot be read or renewed.
            ValueError: The request cannot be written.
        """
        if wait_seconds <= 0:
            raise TimeoutError
        login = self.connect()
        ends = time.monotonic() + wait_seconds  # without the time to load the library
        verb = "GET" if method == "WATCH" else method
        parameters = f"?{urlencode(query, quote_via=quote)}" if query else ""
        target = f"{login.server.path.rstrip('/')}{path}{parameters}"
        content = None if body is None else json.dumps(body).encode()
        headers = {
            "Host": login.server.netloc,
            "User-Agent": self._user_agent,
            "Accept": accept,
            "Accept-Encoding": "identity",
            **({} if body is None else {"Content-Type": content_type}),
            **login.header(wait_seconds=wait_seconds),
        }
        may_repeat = verb in _REPEATABLE
        answer: Answer | None = None
        while answer is None:
            connection = self._connection(login)
            connection.deadline.ends = ends
            try:
                if connection.sock is not None:
                    connection.sock.settimeout(connection.deadline.seconds_left())
                connection.request(verb, target, content, headers)
                answer = Answer(connection, connection.sock, login, connection.getresponse())
            except BaseException as error:
                connection.close()
                if not (may_repeat and isinstance(error, error_text.ENDED)):
                    raise
                may_repeat = False
        if answer.response.status == 401:
            # The next request logs in again: the library never reads a kubeconfig's token again.
            with self._connecting:
                self._rejected = login
                if self._login is login:
                    self._login = None
            idle, login.idle = login.idle or (), None
            for each in idle:
                each.close()
        if answer.response.status >= 400:
            raise self._status_error(f"{method} {path}", answer, permission)
        return answer

    def _connection(self, login: Login) -> "Connection":
        """Return an idle connection that its other end has not closed, or else a new one."""
        while True:
            with self._guard:
                connection = login.idle.pop() if login.idle else Connection(login)
            poll = select.poll()
            if connection.sock is not None:
                poll.register(connection.sock, select.POLLIN)
            if not poll.poll(0):  # the other end has neither closed it nor sent anything
                return connection
            connection.close()

    def _status_error(self, subject: str, answer: "Answer", permission: str) -> RetryableError:
        """Return the error that the API server answered with."""
        text = answer.body(cut_at=_MAX_ERROR_BYTES)
        try:
            answered = as_map(untyped_json.parse(text))
        except ValueError:
            answered = {}
        message = error_text.one_line(answered.get("message", _excerpt(text)), self._secrets())
        message = f"{subject}: {answer.response.status}: {message}"
        method, _, path = subject.partition(" ")
        self.exchanges.record(method, path, answer.response.status, message)
        if answer.response.status == 403 and permission:
            message = f"expected the right to {permission}: {message}"
            return MissingPermissionError(message, permission)
        # Kubernetes writes seconds. The other form, a date, would compare two clocks and is
        # ignored. Nine digits are enough: the result is capped, and Python refuses to convert very
        # long numbers.
        after = answer.response.headers.get("Retry-After", "")
        is_number = after.isascii() and after.isdecimal()
        return StatusError(
            message,
            answer.response.status,
            details=as_map(answered.get("details")),
            after_seconds=min(float(after[:9]), _MAX_RETRY_AFTER_SECONDS) if is_number else 0.0,
        )

    def _unanswered(self, method: str, path: str, error: Exception) -> RetryableError:
        """Return the error of a request that has no complete answer."""
        text = f"{method} {path}: {error_text.one_line(error_text.cause(error), self._secrets())}"
        self.exchanges.record(method, path, None, text)
        return UnreadableError(text) if isinstance(error, TooLargeError) else RetryableError(text)

    def _secrets(self) -> frozenset[str]:
        """Return the known credentials, which must never appear in a log."""
        return frozenset().union(
            *(login.secrets() for login in (self._rejected, self._login) if login)
        )


def _identity(head: str) -> dict[str, str]:
    """Return an object's name, namespace and UID from the beginning of its text."""
    return dict(reversed(_IDENTITY.findall(head)))  # the first of each


def _kept(found: object, keep: Projection) -> dict[str, Any]:
    """Return what is kept of an object.

    Raises:
        BoundError: It is not the whole object, but still has too many elements.
        InputError: The object has another form.
    """
    kept: dict[str, Any] = projected(found, keep)
    if keep is not dict:
        elements = untyped_json.elements(untyped_json.compact_json(kept))
        if elements > _MAX_KEPT_ELEMENTS:
            raise BoundError(
                f"found {elements} elements in the fields that are read, expected at most "
                f"{_MAX_KEPT_ELEMENTS}"
            )
    return kept


def _parsed_line(line: bytearray) -> object:
    """Return the JSON value of a line of a watch.

    Raises:
        BoundError: It has too much of something.
        ValueError: It is not JSON.
    """
    if len(line) > MAX_OBJECT_BYTES:
        raise BoundError(f"found more than {MAX_OBJECT_BYTES} bytes")
    return untyped_json.parse(line)


def _excerpt(text: bytes) -> str:
    """Return the beginning of a body, cut between words: half a secret would not be redacted."""
    if len(text) >= _MAX_ERROR_BYTES:
        text = text[:_MAX_ERROR_BYTES].rpartition(b" ")[0] or text[:_MAX_ERROR_BYTES]
    return text.decode(errors="replace")


class Exchanges:
    """Record of the requests to the API server: their number, the last success, the last error."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._guard = Lock()  # guards all below
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._success_at: datetime | None = None
        self._error_at: datetime | None = None
        self._error = ""

    def record(self, method: str, path: str, status: int | None, error: str = "") -> None:
        """Record a request once it is over, and a watch when it begins and again if it breaks.

        Args:
            method: Such as GET, or WATCH for a watch.
            path: Without the query. Only its resource is recorded, one of a bounded number.
            status: The HTTP status; None without a complete answer.
            error: Text of the error, without credentials; "" below status 400.
        """
        verb = _VERBS.get(method, "other")
        if found := _RESOURCE.fullmatch(path):
            kind, name, part = found.groups()
            resource = f"{kind}/{part}" if part else kind
            resource = resource if resource in _RESOURCES else "other"
        else:
            name, resource = path, "groups" if re.fullmatch("/apis/[^/]+", path) else "other"
        if method == "GET":
            verb = "get" if name else "list"
        with self._guard:
            self._requests[verb, resource, str(status or NO_ANSWER)] += 1
            if status is None or status >= 500 or status in _REFUSALS:
                self._error_at, self._error = self._now(), error
            else:
                self._success_at = self._now()

    def record_event(self) -> None:
        """Record an event of a watch, such as a bookmark."""
        with self._guard:
            self._success_at = self._now()

    def view(self) -> ApiServerView:
        """Return the record so far."""
        with self._guard:
            return ApiServerView(
                last_success_at=self._success_at,
                last_error_at=self._error_at,
                last_error=self._error,
                requests=dict(self._requests),
            )


class TooLargeError(OSError):
    """An answer has more bytes than an object that is read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer whose head was read. The body may be read once.

    Attributes:
        opened: The connection's socket, which the connection itself has forgotten if the server
            closes it after this answer.
    """

    connection: "Connection"
    opened: socket.socket
    login: Login
    response: HTTPResponse

    def pieces(self) -> Generator[bytes, None, None]:
        """Yield the body in pieces, as they arrive.

        The connection is kept for another request if the body is read to its end, and else closed.

        Raises:
            HTTPException: The connection ended before the body did, or it is no HTTP.
            OSError: The connection broke, or the time is over.
        """
        is_complete = False
        try:
            while piece := self.response.read1(_PIECE_BYTES):
                yield piece
            is_complete = not self.response.length
        finally:  # also if the caller stops before the end
            self.response.close()
            idle = self.login.idle
            if is_complete and not self.response.will_close and idle is not None:
                idle.append(self.connection)
            else:
                self.connection.close()
        if self.response.length:
            raise IncompleteRead(b"", self.response.length)

    def body(
        self, *, cut_at: int | None = None, on_large: Callable[[], None] = lambda: None
    ) -> bytes:
        """Return the body, or its beginning.

        Args:
            cut_at: Stop reading after this many bytes; None reads all.
            on_large: Called before more than 32 KiB and a piece are held; may wait, and raise.

        Raises:
            TooLargeError: There were more bytes than an object that is read has.
            HTTPException, OSError: See pieces().
        """
        found = bytearray()
        for piece in self.pieces():
            found += piece
            if cut_at is not None and len(found) >= cut_at:
                return bytes(found[:cut_at])
            if cut_at is None and len(found) > MAX_OBJECT_BYTES:
                raise TooLargeError(f"answer: found more than {MAX_OBJECT_BYTES} bytes")
            if len(found) > _SMALL_BYTES:
                on_large()
        return bytes(found)

    def cut(self) -> None:
        """End the body for the thread that reads it; another thread may call this at any time."""
        # The reader may close the connection before or during this call.
        with suppress(OSError):
            # Not SSLSocket's own method, after which a reader would get the encrypted bytes.
            socket.socket.shutdown(self.opened, socket.SHUT_RDWR)


@dataclass(slots=True)
class _Turn:
    """Permission to hold a large object, which few threads have at a time.

    It is taken while the object arrives, once that is known to be large, and given back by close()
    at the latest.
    """

    free: BoundedSemaphore
    deadline: "Deadline"
    is_taken: bool = False

    def take(self) -> None:
        """Wait for the permission, unless this already has it.

        Raises:
            TimeoutError: The time of the answer is over.
        """
        if not self.is_taken and not self.free.acquire(timeout=self.deadline.seconds_left()):
            raise TimeoutError
        self.is_taken = True

    def close(self) -> None:
        """Give the permission back, if this has it; it may be taken again."""
        if self.is_taken:
            self.is_taken = False
            self.free.release()


class Deadline:
    """Time left of a connection's present request. Use it from the thread of the request."""

    ends = 0.0

    def renew(self, seconds: float) -> None:
        """Start counting from the beginning."""
        self.ends = time.monotonic() + seconds

    def seconds_left(self) -> float:
        """Return the time for the next step.

        Raises:
            TimeoutError: No time is left.
        """
        left = self.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Socket(socket.socket):
    """A socket whose reads count down to a deadline."""

    deadline: Deadline

    def recv_into(self, *arguments: Any) -> int:
        self.settimeout(self.deadline.seconds_left())
        return super().recv_into(*arguments)

    def __del__(self) -> None:
        # An idle connection ends with its Api. A socket that ends open gives a ResourceWarning.
        self.close()


class _TlsSocket(_Socket, ssl.SSLSocket):
    """The same with TLS."""


class Connection(HTTPConnection):
    """A connection to an API server, which its first request opens.

    Attributes:
        deadline: Of its present request.
    """

    def __init__(self, login: Login) -> None:
        super().__init__(login.host, login.port)
        self._login = login
        self.deadline: Final = Deadline()
        # http.client calls this in place of socket.create_connection(), also for a proxy.
        self._create_connection = partial(_opened, self.deadline)
        if login.tunnel_to is not None:
            self.set_tunnel(*login.tunnel_to)

    def connect(self) -> None:
        self.timeout = min(_CONNECT_SECONDS, self.deadline.seconds_left())
        super().connect()
        self.sock.settimeout(self.deadline.seconds_left())
        if self._login.tls is not None:
            # Each connection has a context of its own, from the files as they are now: OpenSSL
            # crashes if one is changed while another thread uses it.
            context = self._login.tls()
            context.sslsocket_class = _TlsSocket
            self.sock = context.wrap_socket(self.sock, server_hostname=self._login.tls_name)
            assert isinstance(self.sock, _TlsSocket)
            self.sock.deadline = self.deadline


def _opened(deadline: Deadline, *arguments: Any) -> _Socket:
    opened = socket.create_connection(*arguments)
    timeout = opened.gettimeout()
    bounded = _Socket(fileno=opened.detach())
    bounded.settimeout(timeout)
    bounded.deadline = deadline
    return bounded
