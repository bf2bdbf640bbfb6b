"""Numbers of requests to the API server, by verb, resource and status."""

import re
from collections.abc import Iterator
from typing import Final

from tensorfusion_dra.metrics import prometheus
from tensorfusion_dra.metrics.prometheus import LabelValues

NO_ANSWER: Final = "none"
OTHER: Final = "other"

_RESOURCE: Final = re.compile(
    r"/(?:api/v1|apis/[^/]+/[^/]+)/(?:namespaces/[^/]+/)?([a-z]+)(?:/([^/]+)(?:/([a-z]+))?)?"
)
_GROUP: Final = re.compile(r"/apis/[^/]+")
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_RESOURCES: Final = frozenset(
    {
        *("resourceslices", "resourceclaims", "resourceclaims/status", "pods", "nodes", "events"),
        *("gpupools", "schedulingconfigtemplates"),
    }
)
_GROUPS: Final = "groups"
"""Resource of the request for the versions of an API group."""
_COMMON: Final = ("401", "403", "404", "409", "429", "500", "503", NO_ANSWER)
"""Codes of every kind of request that exist from the start, besides that of success."""

NODE_PLUGIN: Final = (
    ("get", _GROUPS),
    *((verb, "resourceslices") for verb in ("list", "watch", "create", "update", "delete")),
    ("get", "resourceclaims"),
    ("patch", "resourceclaims/status"),
    ("get", "nodes"),
    ("get", "pods"),
    ("create", "events"),
)
"""Requests of every node plugin. Some settings need more, which are counted when they are sent."""

WEBHOOK: Final = (
    ("get", _GROUPS),
    ("list", "resourceslices"),
    ("get", "pods"),
    *((verb, "gpupools") for verb in ("list", "watch")),
    *((verb, "schedulingconfigtemplates") for verb in ("list", "watch")),
)
"""Requests of the webhook."""


class ApiRequests:
    """Observer of the requests to the API server; implements ports.Exchanges."""

    def __init__(self, known: tuple[tuple[str, str], ...]) -> None:
        """Start at 0.

        Args:
            known: Verb and resource of the requests that exist from the start.
        """
        self.counter: Final = prometheus.new_counter(
            "api_requests",
            "Requests to the API server; the code is none if there was no complete answer.",
            ("verb", "resource", "code"),
            _known(known),
        )

    def answered(self, method: str, status: int, error: str, *, path: str) -> None:
        del error
        self.counter.labels(*_asked(method, path), str(status)).inc()

    def unanswered(self, method: str, error: str, *, path: str) -> None:
        del error
        self.counter.labels(*_asked(method, path), NO_ANSWER).inc()

    def watch_event(self) -> None:
        """Count nothing: an event of a watch is no request."""


def _known(requests: tuple[tuple[str, str], ...]) -> Iterator[LabelValues]:
    for verb, resource in requests:
        for code in ("201" if verb == "create" else "200", *_COMMON):
            yield verb, resource, code


def _asked(method: str, path: str) -> tuple[str, str]:
    """Return Kubernetes' verb and the resource of a request; the values are bounded in number."""
    found = _RESOURCE.fullmatch(path)
    if found is None:
        return _verb(method, has_name=True), _GROUPS if _GROUP.fullmatch(path) else OTHER
    kind, name, part = found.groups()
    resource = f"{kind}/{part}" if part else kind
    verb = _verb(method, has_name=name is not None)
    return verb, resource if resource in _RESOURCES else OTHER


def _verb(method: str, *, has_name: bool) -> str:
    if method == "WATCH":
        return "watch"
    if method == "GET":
        return "get" if has_name else "list"
    return _VERBS.get(method, OTHER)
