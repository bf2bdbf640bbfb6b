"""HTTP requests, and the resource and verb of each in terms of RBAC."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

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

    @property
    def resource(self) -> str:
        """The resource as in RBAC, such as ``resourceclaims/status``."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A client's request in terms of RBAC.

    Attributes:
        agent: User-Agent of the client; "" if it sends none.
        namespace, name: "" if the request has none.
    """

    agent: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str

    @classmethod
    def of(cls, request: Request, found: Route) -> "Asked":
        """Return a request for this resource in terms of RBAC."""
        return cls(
            agent=request.headers.get("user-agent", ""),
            verb=found.verb(request),
            group=found.group,
            resource=found.resource,
            namespace=found.namespace,
            name=found.name,
        )


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
