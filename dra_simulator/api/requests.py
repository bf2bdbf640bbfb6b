"""HTTP requests: the resource and the verb of each as in RBAC, parameters, selectors and body."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from dra_simulator.api import failures, kinds
from dra_simulator.api.failures import ApiError
from dra_simulator.api.formats import not_supported
from dra_simulator.api.kinds import Kind
from dra_simulator.api.registry import DeleteOptions
from dra_simulator.api.schema import DecodeError, Json, Schema, part
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.field_errors import required
from tensorfusion_dra.runtime import untyped_yaml

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request.

    Attributes:
        query: Last value of each parameter.
        headers: Headers by lower-case name.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""

    @classmethod
    def of(cls, method: str, target: str, headers: Mapping[str, str], body: bytes) -> "Request":
        """Parse a request from its request line, headers and body."""
        parts = urlsplit(target)
        pairs = parse_qs(parts.query, keep_blank_values=True)
        return cls(
            method=method,
            path=parts.path,
            query={name: values[-1] for name, values in pairs.items()},
            headers={name.lower(): value for name, value in headers.items()},
            body=body,
        )

    def flag(self, name: str) -> bool:
        """Return True if a boolean parameter is set."""
        return self.query.get(name, "") in {"1", "true", "True"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The resource that a path names.

    Attributes:
        namespace, name, subresource: "" if the path has none.
    """

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def verb(self, request: Request) -> str:
        """Return the RBAC verb of the request."""
        if request.method == "GET":
            if self.name:
                return "get"
            return "watch" if request.flag("watch") else "list"
        verb = _VERBS.get(request.method, request.method.lower())
        return "deletecollection" if verb == "delete" and not self.name else verb

    def asked(self, request: Request) -> "Asked":
        """Return the request in terms of RBAC."""
        return Asked(
            agent=request.headers.get("user-agent", ""),
            verb=self.verb(request),
            group=self.group,
            resource="/".join(filter(None, (self.plural, self.subresource))),
            namespace=self.namespace,
            name=self.name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A client's request in terms of RBAC.

    Attributes:
        agent: User-Agent of the client; "" if it sends none.
        resource: With the subresource, such as ``resourceclaims/status``.
        namespace, name: "" if the request has none.
    """

    agent: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str


def route(path: str) -> Route | None:
    """Return the resource of a path such as /apis/resource.k8s.io/v1/resourceslices, or None."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    match parts:
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    namespace = ""
    # /namespaces/x/status is the namespace's own subresource.
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3 or not all(rest):
        return None
    plural, name, subresource = (*rest, "", "")[:3]
    return Route(
        group=group,
        version=version,
        plural=plural,
        namespace=namespace,
        name=name,
        subresource=subresource,
    )


_VALIDATIONS: Final = ("", "Ignore", "Strict", "Warn")
_YAML_TYPES: Final = {"application/yaml", "application/apply-patch+yaml"}


def is_dry_run(request: Request, kind: str) -> bool:
    """Check the parameters of a create, update or patch; return True if it stores nothing.

    Args:
        kind: Name of the parameters in errors.

    Raises:
        ApiError: 422 if one has an unknown value.
    """
    errors = []
    dry_run = request.query.get("dryRun", "")
    if dry_run not in {"", "All"}:
        errors.append(not_supported("dryRun", [dry_run], ["All"]))
    validation = request.query.get("fieldValidation", "")
    if validation not in _VALIDATIONS:
        errors.append(not_supported("fieldValidation", validation, _VALIDATIONS))
    if errors:
        raise failures.invalid(kind, "meta.k8s.io", "", errors)
    return dry_run == "All"


def check_version(text: str, latest: int | None) -> None:
    """Check that a list or watch may request this resourceVersion.

    Args:
        latest: The current version; None if the request may wait for a later one.

    Raises:
        ApiError: 500 if the text is not a number, 504 if the version lies in the future.
    """
    if not text:
        return
    if not (text.isascii() and text.isdigit()):
        raise ApiError(
            500,
            "",
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}":'
            " invalid syntax",
        )
    if latest is not None and int(text) > latest:
        raise ApiError(
            504,
            "Timeout",
            f"Timeout: Too large resource version: {text}, current: {latest}",
            details={
                "causes": [
                    {
                        "reason": "ResourceVersionTooLarge",
                        "message": "Too large resource version",
                    }
                ]
            },
            retry_after_seconds=1,
        )


def document(request: Request, expected: str) -> Json:
    """Parse the body into a JSON object; it may be YAML if the content type is.

    Raises:
        ApiError: 400 if the body cannot be parsed, 415 for an unknown content type.
    """
    content_type = request.headers.get("content-type", "application/json").partition(";")[0]
    text = request.body.decode("utf-8", errors="replace")
    if not content_type.endswith(("json", "yaml", "form-urlencoded")):
        raise failures.unsupported_media(
            "the body of the request was in an unknown format - accepted media types include:"
            " application/json, application/yaml"
        )
    try:
        found = json.loads(text)
    except ValueError as error:
        found = _yaml(text) if content_type in _YAML_TYPES else None
        if found is None:
            raise failures.bad_request(
                f"the object provided is unrecognized (must be of type {expected}): couldn't get"
                f" version/kind; json parse error: {error} ({text[:64] or '<empty>'})"
            ) from error
    if not isinstance(found, dict):
        raise failures.bad_request(
            f"the object provided is unrecognized (must be of type {expected}): expected an object"
        )
    return found


def _yaml(text: str) -> object:
    try:
        return untyped_yaml.document(text)
    except InputError:
        return None


def decode(
    known: Schema, request: Request, kind: Kind, version: str
) -> tuple[Json, tuple[str, ...]]:
    """Return the object in a body without unknown fields, and the warnings about these fields.

    Raises:
        ApiError: 400 if the object is of another kind, has a value of the wrong type or, in a
            strict request, an unknown field.
    """
    return checked(known, request, document(request, kind.kind), kind, version)


def applied(known: Schema, request: Request, kind: Kind, version: str) -> Json:
    """Decode an applied object, like decode; it must name its type and may not own its owners.

    Raises:
        ApiError: As for decode; 422 without a fieldManager, 500 for an unknown field, whatever the
            validation.
    """
    if not request.query.get("fieldManager"):
        error = required("fieldManager", "is required for apply patch")
        raise failures.invalid("PatchOptions", "meta.k8s.io", "", [error])
    body = document(request, kind.kind)
    if not (body.get("apiVersion") and body.get("kind")):
        raise failures.bad_request("invalid object type: /, Kind=")
    if "managedFields" in part(body, "metadata"):
        raise failures.bad_request("metadata.managedFields must be nil")
    warned = replace(request, query={**request.query, "fieldValidation": "Warn"})
    decoded, complaints = checked(known, warned, body, kind, version)
    if complaints:
        raise ApiError(500, "", f"failed to create typed patch object: {', '.join(complaints)}")
    return decoded


def checked(
    known: Schema, request: Request, body: Mapping[str, object], kind: Kind, version: str
) -> tuple[Json, tuple[str, ...]]:
    """Decode a parsed body, like decode."""
    expected = kinds.api_version(kind.group, version)
    found_version, found_kind = body.get("apiVersion", expected), body.get("kind", kind.kind)
    if found_kind != kind.kind:
        raise failures.bad_request(
            f'{found_kind} in version "{version}" cannot be handled as a {kind.kind}: no kind'
            f' "{found_kind}" is registered for version "{found_version}"'
        )
    if found_version != expected:
        raise failures.bad_request(
            f"the API version in the data ({found_version}) does not match the expected API"
            f" version ({expected})"
        )
    where = f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}'
    foreign = set(kind.renamed.values())
    fields = {n: v for n, v in body.items() if n not in {"apiVersion", "kind"} | foreign}
    try:
        decoded, complaints = known.decode(kind.struct, kind.inward(fields))
    except DecodeError as error:
        raise failures.bad_request(f"{where}: {error}") from error
    complaints += tuple(f'unknown field "{name}"' for name in body if name in foreign)
    validation = request.query.get("fieldValidation") or "Warn"
    if complaints and validation == "Strict":
        raise failures.bad_request(f"{where}: strict decoding error: {', '.join(complaints)}")
    return decoded, complaints if validation == "Warn" else ()


def delete_options(known: Schema, request: Request) -> DeleteOptions:
    """Parse the DeleteOptions in the body, completed by the query parameters.

    Raises:
        ApiError: 400 if the body cannot be decoded.
    """
    options: Json = {}
    if request.body:
        try:
            options, _ = known.decode("DeleteOptions", document(request, "DeleteOptions"))
        except DecodeError as error:
            raise failures.bad_request(str(error)) from error
    grace = options.get("gracePeriodSeconds")
    text = request.query.get("gracePeriodSeconds", "")
    if grace is None and text.isascii() and text.isdigit():
        grace = int(text)
    conditions = part(options, "preconditions")
    uid, version = conditions.get("uid"), conditions.get("resourceVersion")
    return DeleteOptions(
        uid=uid if isinstance(uid, str) else None,
        version=version if isinstance(version, str) else None,
        grace_seconds=grace if isinstance(grace, int) else None,
        dry_run=options.get("dryRun") == ["All"] or request.query.get("dryRun") == "All",
    )


Test = Callable[[Mapping[str, object]], bool]

_SWITCHES: Final = frozenset({"spec.unschedulable"})
"""Fields that are false if they are absent."""

_SET: Final = re.compile(r"(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)")
_EQUAL: Final = re.compile(r"(?P<key>[^!=\s]+)\s*(?P<op>==|!=|=)\s*(?P<value>\S*)")
_EXISTS: Final = re.compile(r"(?P<not>!?)\s*(?P<key>[A-Za-z0-9][\w./-]*)")


def selector(kind: Kind, version: str, query: Mapping[str, str]) -> Test:
    """Return a function that returns True for the objects that a request selects.

    Raises:
        ApiError: 400 if a selector cannot be parsed or names a field that is not selectable.
    """
    # A comma in parentheses separates values, not requirements.
    labels = re.findall(r"(?:[^,(]|\([^)]*\))+", query.get("labelSelector", ""))
    tests = [
        *_field_tests(kind, version, query.get("fieldSelector", "")),
        *(_label_test(part.strip()) for part in labels if part.strip()),
    ]
    return lambda document: all(test(document) for test in tests)


def _field_tests(kind: Kind, version: str, text: str) -> list[Test]:
    tests: list[Test] = []
    for each in filter(None, text.split(",")):
        match = _EQUAL.fullmatch(each.strip())
        if match is None:
            raise failures.bad_request(f"invalid selector: '{each}'; can't understand '{each}'")
        path = match["key"]
        metadata = {"metadata.name"} | ({"metadata.namespace"} if kind.namespaced else set())
        if path not in metadata and path not in kind.selectable:
            served = kinds.api_version(kind.group, version)
            raise failures.bad_request(
                f"field label not supported for {served}, Kind={kind.kind}: {path}"
            )
        tests.append(_field_test(path, match["value"], equal=match["op"] != "!="))
    return tests


def _field_test(path: str, value: str, *, equal: bool) -> Test:
    return lambda document: (field_text(document, path) == value) is equal


def field_text(document: Mapping[str, object], path: str) -> str:
    """Return a field as selectors see it: its text, or "" if it is absent."""
    found: object = document
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, bool) or path in _SWITCHES:
        return str(bool(found)).lower()
    return str(found) if found is not None else ""


def _label_test(part: str) -> Test:
    if match := _SET.fullmatch(part):
        key, wanted = match["key"], {value.strip() for value in match["values"].split(",")}
        if match["op"] == "in":
            return lambda document: _labels(document).get(key) in wanted
        return lambda document: _labels(document).get(key) not in wanted
    if match := _EQUAL.fullmatch(part):
        key, value, equal = match["key"], match["value"], match["op"] != "!="
        return lambda document: (_labels(document).get(key) == value) is equal
    if match := _EXISTS.fullmatch(part):
        key, exists = match["key"], not match["not"]
        return lambda document: (key in _labels(document)) is exists
    raise failures.bad_request(
        f"unable to parse requirement: found '{part}', expected: in, notin, =, ==, !="
    )


def _labels(document: Mapping[str, object]) -> Mapping[str, object]:
    metadata = document.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return labels if isinstance(labels, dict) else {}
