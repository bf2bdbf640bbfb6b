"""Handling of requests to the simulated API server, independent of sockets."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from dra_simulator.api import failures, patches, rendering, requests
from dra_simulator.api.failures import ApiError
from dra_simulator.api.kinds import Kind, Served
from dra_simulator.api.registry import Registry, Target
from dra_simulator.api.rendering import View, Watch
from dra_simulator.api.requests import Request, Route, route
from dra_simulator.api.schema import Json, Schema, part
from dra_simulator.api.store import Store, Stored
from dra_simulator.api.webhooks import Admitting, Write

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
    headers = _warning_headers(error.warnings)
    if error.retry_after_seconds is not None:
        headers = (*headers, ("Retry-After", str(error.retry_after_seconds)))
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
        selector = self._selector(request, view)
        found, latest = self.store.listed(kind.storage, target.namespace or None)
        requests.check_version(request.query.get("resourceVersion", ""), latest)
        chosen = [stored for stored in found if selector.chooses(stored.document)]
        return Answer(200, view.many(chosen, latest).encode())

    def _selector(self, request: Request, view: View) -> requests.Selector:
        return requests.parse(
            view.kind,
            view.version,
            fields=request.query.get("fieldSelector", ""),
            labels=request.query.get("labelSelector", ""),
        )

    def _watch(self, request: Request, target: Target, view: View) -> Watch:
        since = request.query.get("resourceVersion", "")
        requests.check_version(since, latest=None)
        seconds = request.query.get("timeoutSeconds", "")
        bookmarks = request.flag("allowWatchBookmarks")
        return Watch(
            store=self.store,
            schema=self.schema,
            view=view,
            namespace=target.namespace,
            selector=self._selector(request, view),
            since=None if since in {"", "0"} or request.flag("sendInitialEvents") else int(since),
            seconds=float(seconds) if seconds.isdigit() else _WATCH_SECONDS,
            bookmarks=bookmarks,
            bookmark_seconds=self.bookmark_seconds,
        )

    def _create(self, request: Request, target: Target, view: View) -> Answer:
        options = requests.write_options(request, "CreateOptions")
        decoded, complaints = requests.decode(self.schema, request, target.kind, view.version)
        warnings = list(complaints)
        with _warned(warnings):
            stored = self.admitting.create(Write(target, view.version, options, warnings), decoded)
        return _object(stored, view, code=201, warnings=warnings)

    def _update(self, request: Request, target: Target, view: View) -> Answer:
        options = requests.write_options(request, "UpdateOptions")
        decoded, complaints = requests.decode(self.schema, request, target.kind, view.version)
        if not part(decoded, "metadata").get("name"):
            raise failures.bad_request(
                f"the name of the object ({target.name} based on URL) was undeterminable: name"
                " must be provided"
            )
        target.check_identity(part(decoded, "metadata"), None)
        warnings = list(complaints)
        with _warned(warnings):
            write = Write(target, view.version, options, warnings)
            stored = self.admitting.change(write, lambda _: decoded)
        return _object(stored, view, warnings=warnings)

    def _patch(self, request: Request, target: Target, view: View) -> Answer:
        options = requests.write_options(request, "PatchOptions")
        content_type = request.headers.get("content-type", "").partition(";")[0]
        if content_type == patches.APPLY_PATCH:
            return self._apply(request, target, view)
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

        with _warned(warnings):
            stored = self.admitting.change(Write(target, view.version, options, warnings), changed)
        return _object(stored, view, warnings=warnings)

    def _apply(self, request: Request, target: Target, view: View) -> Answer:
        options = requests.apply_options(request)
        decoded = requests.applied(self.schema, request, target.kind, view.version)
        warnings: list[str] = []
        with _warned(warnings):
            write = Write(target, view.version, options, warnings)
            stored, is_new = self.admitting.apply(write, decoded)
        return _object(stored, view, code=201 if is_new else 200, warnings=warnings)

    def _bind(self, request: Request, target: Target, _: View) -> Answer:
        options = requests.write_options(request, "CreateOptions")
        self.registry.bind(target, requests.binding_node(request), options)
        return Answer(201, _text(failures.success({}, 201)))

    def _delete(self, request: Request, target: Target, view: View) -> Answer:
        kind = target.kind
        options = requests.delete_options(self.schema, request)
        stored, gone = self.registry.delete(target, options)
        if not gone or kind.answers_deleted:
            return _object(stored, view)
        details: Json = {"name": target.name, "group": kind.group, "kind": kind.plural}
        details["uid"] = part(stored.document, "metadata")["uid"]
        shown = {name: value for name, value in details.items() if value}
        return Answer(200, _text(failures.success(shown)))

    def _delete_collection(self, request: Request, target: Target, view: View) -> Answer:
        options = requests.delete_options(self.schema, request)
        selector = self._selector(request, view)
        found = self.registry.delete_collection(target, selector.chooses, options)
        return Answer(200, view.many(found, self.store.version).encode())


def _object(stored: Stored, view: View, *, code: int = 200, warnings: Sequence[str] = ()) -> Answer:
    return Answer(code, view.one(stored).encode(), headers=_warning_headers(warnings))


def _warning_headers(warnings: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple(("Warning", f"299 - {rendering.text(warning)}") for warning in warnings)


@contextmanager
def _warned(warnings: Sequence[str]) -> Iterator[None]:
    """Add these warnings to an error that is raised in the block."""
    try:
        yield
    except ApiError as error:
        error.warnings = tuple(warnings)
        raise


def _text(document: Json) -> bytes:
    return rendering.text(document).encode()
