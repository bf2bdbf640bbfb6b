"""A request as it came over HTTP, and what it asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request.

    Attributes:
        query: Each parameter's last value.
        headers: By lower-case name.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""

    @classmethod
    def of(cls, method: str, target: str, headers: Mapping[str, str], body: bytes) -> "Request":
        """The request with this line, these headers and this body."""
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
        """Whether a boolean parameter is set."""
        return self.query.get(name, "") in {"1", "true", "True"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The resource that a path names.

    Attributes:
        namespace, name, subresource: "" where the path has none.
    """

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def verb(self, request: Request) -> str:
        """What the request does, in the words of RBAC."""
        if request.method == "GET":
            if self.name:
                return "get"
            return "watch" if request.flag("watch") else "list"
        verb = _VERBS.get(request.method, request.method.lower())
        return "deletecollection" if verb == "delete" and not self.name else verb

    @property
    def resource(self) -> str:
        """The resource in the words of RBAC: ``resourceclaims/status``."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a client asked for, in the words of RBAC.

    Attributes:
        agent: How the client calls itself (User-Agent); "" if it does not say.
        namespace, name: "" where the request has none.
    """

    agent: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str

    @classmethod
    def of(cls, request: Request, found: Route) -> "Asked":
        """What this request for this resource asks for."""
        return cls(
            agent=request.headers.get("user-agent", ""),
            verb=found.verb(request),
            group=found.group,
            resource=found.resource,
            namespace=found.namespace,
            name=found.name,
        )


def route(path: str) -> Route | None:
    """The resource of a path such as /apis/resource.k8s.io/v1/resourceslices; None for others."""
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
