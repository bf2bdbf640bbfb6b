"""Requests to the simulated API server: their handling, and the HTTP server that receives them."""

import contextlib
import select
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Final

from dra_simulator.api import failures, faults, patches, rendering, requests
from dra_simulator.api.failures import ApiError
from dra_simulator.api.faults import Action, Faults, RequestCounts
from dra_simulator.api.kinds import Kind, Served
from dra_simulator.api.registry import Registry, Target
from dra_simulator.api.rendering import View, Watch
from dra_simulator.api.requests import Request, Route, route
from dra_simulator.api.schema import Json, Schema, part
from dra_simulator.api.store import Store, Stored
from dra_simulator.api.webhooks import Admitting, Write
from tensorfusion_dra.core.kubernetes.field_errors import required

JSON_TYPE: Final = "application/json"
_WATCH_SECONDS: Final = 1800.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete HTTP response."""

    code: int
    body: bytes
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()


def answer_of(error: ApiError) -> Answer:
    """Return the response for an error."""
    seconds = error.retry_after_seconds
    headers = () if seconds is None else (("Retry-After", str(seconds)),)
    return Answer(error.code, _text(error.status()), headers=headers)


@dataclass(frozen=True, slots=True)
class Service:
    """The API. Reads go to the store, writes go through admission to the registry."""

    store: Store
    registry: Registry
    schema: Schema
    served: Served
    bookmark_seconds: float
    admitting: Admitting

    def answer(self, request: Request) -> Answer | Watch:
        """Return the response; a watch continues until its client or the server ends it."""
        try:
            return self._answer(request)
        except ApiError as error:
            return answer_of(error)

    def _answer(self, request: Request) -> Answer | Watch:
        if request.path in {"/readyz", "/livez", "/healthz"}:
            return Answer(200, b"ok", "text/plain; charset=utf-8")
        if request.method == "GET":
            document = self.served.discovery(request.path)
            if document is not None:
                return Answer(200, _text(document))
        found = route(request.path)
        if found is None or found.version not in self.served.versions.get(found.group, ()):
            return Answer(404, b"404 page not found\n", "text/plain; charset=utf-8")
        kind = self.served.kind(found.group, found.version, found.plural)
        if kind is None or (found.subresource and found.subresource not in kind.subresources):
            raise failures.no_such_path()
        return self._serve(request, found, kind)

    def _serve(self, request: Request, found: Route, kind: Kind) -> Answer | Watch:
        target = Target(
            kind=kind, namespace=found.namespace, name=found.name, subresource=found.subresource
        )
        verb = found.verb(request)
        self._check_allowed(verb, found, kind)
        table = rendering.wants_table(request)
        whole = request.query.get("includeObject") == "Object"
        view = View(kind, found.version, table, whole)
        if verb == "watch":
            return self._watch(request, target, view)
        answers: dict[str, Callable[[Request, Target, View], Answer]] = {
            "get": self._get,
            "list": self._list,
            "create": self._bind if found.subresource == "binding" else self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }
        if verb not in answers:
            raise failures.not_allowed()
        return answers[verb](request, target, view)

    def _check_allowed(self, verb: str, found: Route, kind: Kind) -> None:
        across = kind.namespaced and not found.namespace
        if (found.namespace and not kind.namespaced) or (across and found.name):
            raise failures.no_such_path()
        if across and verb not in {"list", "watch"}:
            raise failures.not_allowed()
        if found.subresource:
            if verb not in kind.subresources[found.subresource]:
                raise failures.not_allowed()
        elif (verb == "create") is bool(found.name) and verb in {"create", "update", "patch"}:
            raise failures.not_allowed()

    def _get(self, _: Request, target: Target, view: View) -> Answer:
        return _object(self.registry.existing(target), view)

    def _list(self, request: Request, target: Target, view: View) -> Answer:
        kind = target.kind
        chooses = requests.selector(kind, view.version, request.query)
        found, latest = self.store.listed(kind.storage, target.namespace or None)
        requests.check_version(request.query.get("resourceVersion", ""), latest)
        chosen = [stored for stored in found if chooses(stored.document)]
        return Answer(200, view.many(chosen, latest).encode())

    def _watch(self, request: Request, target: Target, view: View) -> Watch:
        since = request.query.get("resourceVersion", "")
        requests.check_version(since, latest=None)
        seconds = request.query.get("timeoutSeconds", "")
        return Watch(
            store=self.store,
            schema=self.schema,
            view=view,
            namespace=target.namespace,
            chooses=requests.selector(view.kind, view.version, request.query),
            since=None if since in {"", "0"} or request.flag("sendInitialEvents") else int(since),
            seconds=float(seconds) if seconds.isdigit() else _WATCH_SECONDS,
            bookmarks=request.flag("allowWatchBookmarks"),
            bookmark_seconds=self.bookmark_seconds,
        )

    def _create(self, request: Request, target: Target, view: View) -> Answer:
        dry_run = requests.is_dry_run(request, "CreateOptions")
        decoded, complaints = requests.decode(self.schema, request, target.kind, view.version)
        warnings = list(complaints)
        stored = self.admitting.create(Write(target, view.version, dry_run, warnings), decoded)
        return _object(stored, view, code=201, warnings=warnings)

    def _update(self, request: Request, target: Target, view: View) -> Answer:
        dry_run = requests.is_dry_run(request, "UpdateOptions")
        decoded, complaints = requests.decode(self.schema, request, target.kind, view.version)
        if not part(decoded, "metadata").get("name"):
            raise failures.bad_request(
                f"the name of the object ({target.name} based on URL) was undeterminable: name"
                " must be provided"
            )
        target.check_identity(part(decoded, "metadata"), None)
        warnings = list(complaints)
        write = Write(target, view.version, dry_run, warnings)
        stored = self.admitting.change(write, lambda _: decoded)
        return _object(stored, view, warnings=warnings)

    def _patch(self, request: Request, target: Target, view: View) -> Answer:
        dry_run = requests.is_dry_run(request, "PatchOptions")
        content_type = request.headers.get("content-type", "").partition(";")[0]
        if content_type == patches.APPLY_PATCH:
            return self._apply(request, target, view, dry_run=dry_run)
        kind = target.kind
        patch = patches.parse(request.body, content_type, schema=self.schema, kind=kind)
        warnings: list[str] = []

        def changed(before: Stored) -> Json:
            document = patch(kind.outward(before.document))
            decoded, complaints = requests.checked(
                self.schema, request, document, kind, view.version
            )
            warnings.extend(complaints)
            return decoded

        stored = self.admitting.change(Write(target, view.version, dry_run, warnings), changed)
        return _object(stored, view, warnings=warnings)

    def _apply(self, request: Request, target: Target, view: View, *, dry_run: bool) -> Answer:
        decoded = requests.applied(self.schema, request, target.kind, view.version)
        warnings: list[str] = []
        write = Write(target, view.version, dry_run, warnings)
        stored, is_new = self.admitting.apply(write, decoded)
        return _object(stored, view, code=201 if is_new else 200, warnings=warnings)

    def _bind(self, request: Request, target: Target, _: View) -> Answer:
        dry_run = requests.is_dry_run(request, "CreateOptions")
        name = part(requests.document(request, "Binding"), "target").get("name")
        if not isinstance(name, str) or not name:
            raise ApiError(500, "", str(required("target.name")))
        self.registry.bind(target, name, dry_run=dry_run)
        success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return Answer(201, _text({**success, "code": 201}))

    def _delete(self, request: Request, target: Target, view: View) -> Answer:
        options = requests.delete_options(self.schema, request)
        return _object(self.registry.delete(target, options), view)

    def _delete_collection(self, request: Request, target: Target, view: View) -> Answer:
        options = requests.delete_options(self.schema, request)
        chooses = requests.selector(view.kind, view.version, request.query)
        found = self.registry.delete_collection(target, chooses, options)
        return Answer(200, view.many(found, self.store.version).encode())


def _object(stored: Stored, view: View, *, code: int = 200, warnings: Sequence[str] = ()) -> Answer:
    headers = tuple(("Warning", f"299 - {rendering.text(warning)}") for warning in warnings)
    return Answer(code, view.one(stored).encode(), headers=headers)


def _text(document: Json) -> bytes:
    return rendering.text(document).encode()


_POLL_SECONDS: Final = 0.05


class Listener(ThreadingHTTPServer):
    """The listening socket, with one thread for each connection.

    Attributes:
        stopping: Set when the server stops; it ends every long wait.
    """

    daemon_threads = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self, service: Service, faults_: Faults, counts: RequestCounts, *, port: int
    ) -> None:
        self.service: Final = service
        self.faults: Final = faults_
        self.counts: Final = counts
        self.stopping: Final = Event()
        self._sockets: set[socket.socket] = set()
        self._sockets_lock = Lock()  # guards _sockets
        self._thread: Thread | None = None
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def port(self) -> int:
        """Port that the server listens on."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Start to accept connections."""
        self._thread = Thread(target=self._accept, name="apiserver")
        self._thread.start()

    def _accept(self) -> None:
        # Not serve_forever, which checks only periodically if it should end.
        while not self.stopping.is_set():
            try:
                connection, address = self.get_request()
            except OSError:
                self.stopping.wait(_POLL_SECONDS)
                continue
            with self._sockets_lock:
                self._sockets.add(connection)
            self.process_request(connection, address)

    def stop(self) -> None:
        """Close all connections and join all threads."""
        self.stopping.set()
        self.service.store.close()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join()
        with self._sockets_lock:
            for connection in self._sockets:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection that ended."""
        with self._sockets_lock:
            self._sockets.discard(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a traceback to stderr, unless the client just disconnected."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Listener

    def finish(self) -> None:
        self.server.closed(self.connection)
        super().finish()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        request = Request.of(self.command, self.path, dict(self.headers.items()), body)
        found = route(request.path)
        action: Action | None = None
        asked = None if found is None else found.asked(request)
        if asked is not None:
            self.server.counts.add(asked)
            action = self.server.faults.take(asked.verb, asked.resource, asked.name)
        match action:
            case faults.Refuse(code, message, retry_after):
                self._send(answer_of(failures.refused(code, message, retry_after)))
                return
            case faults.Forge(body):
                self._send(Answer(200, body))
                return
            case faults.Delay(seconds):
                self.server.stopping.wait(seconds)
            case faults.Cut(carried_out=False):
                self._cut()
                return
            case faults.HalfOpen() if not request.flag("watch"):
                self._hang()
                return
        answer = self.server.service.answer(request)
        if isinstance(answer, Watch):
            self._stream(answer, action)
        elif isinstance(action, faults.Cut):
            self._cut()
        else:
            if asked is not None:
                self.server.counts.add_answered(asked)
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers:
            self.send_header(name, value)
        self._flush(answer.body)

    def _flush(self, body: bytes) -> None:
        """Send headers and body in one piece, so that no delayed ACK comes between them."""
        self._headers_buffer: list[bytes]
        self._headers_buffer.append(b"\r\n")
        self.wfile.write(b"".join(self._headers_buffer) + body)
        self._headers_buffer = []

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _hang(self) -> None:
        """Send nothing more until the client disconnects or the server stops."""
        while not self.server.stopping.is_set() and not self._client_is_gone():
            self.server.stopping.wait(_POLL_SECONDS)
        self.close_connection = True

    def _stream(self, watch: Watch, action: Action | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self._flush(b"")
        match action:
            case faults.HalfOpen():
                self._hang()
            case faults.Expire():
                error = failures.expired(1, self.server.service.store.version)
                self._chunk(watch.error_line(error))
            case faults.Garble():
                self._chunk(b"\x00 this is no JSON\n")
            case _:
                for line in watch.lines():
                    if line and isinstance(action, faults.Cut):
                        half = line[: len(line) // 2]
                        self.wfile.write(b"%x\r\n%s" % (len(line), half))
                        self._cut()
                        return
                    if line:
                        self._chunk(line)
                    elif self._client_is_gone():
                        self.close_connection = True
                        return
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, line: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _client_is_gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        if not readable:
            return False
        try:
            peeked: bytes = self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True
        return not peeked
