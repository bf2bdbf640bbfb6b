"""Negotiation of an answer's form from the Accept header, as in apiserver.

apiserver, pkg/endpoints/handlers: negotiation/negotiate.go and response.go, release 1.36. JSON is
the only encoding here; a real server also has YAML, CBOR and protobuf.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from dra_simulator.api import failures
from dra_simulator.api.failures import ApiError
from dra_simulator.api.requests import Request
from tensorfusion_dra.core.kubernetes.field_errors import invalid

Shape = Literal["", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"]
Included = Literal["Metadata", "None", "Object"]

_GROUP: Final = "meta.k8s.io"
_VERSIONS: Final = ("v1", "v1beta1")
_SHAPES: Final = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
_JSON: Final = ("application/json", "application/*", "*/*")


@dataclass(frozen=True, slots=True)
class Form:
    """Form in which an answer shows objects.

    Attributes:
        shape: The kind of meta.k8s.io that objects are converted to; "" for the objects themselves.
        version: Version of meta.k8s.io.
        included: Part of its object that a row of a Table includes.
    """

    shape: Shape = ""
    version: str = "v1"
    included: Included = "Metadata"

    @property
    def api_version(self) -> str:
        """The apiVersion of the converted objects."""
        return f"{_GROUP}/{self.version}"


AS_IT_IS: Final = Form()
"""Objects as they are stored."""


def form(request: Request) -> Form:
    """Return the first form in a request's Accept header that can be served.

    Raises:
        ApiError: 406 if none can be served, 400 if a Table's includeObject is unknown.
    """
    header = request.headers.get("accept", "")
    if not header:
        return AS_IT_IS
    for media_type, parameters in _clauses(header):
        if media_type not in _JSON or parameters.get("stream", "watch") not in {"", "watch"}:
            continue
        if not parameters.keys() & {"as", "g", "v"}:
            return AS_IT_IS
        shape, version = parameters.get("as", ""), parameters.get("v", "")
        if parameters.get("g") == _GROUP and version in _VERSIONS and shape in _SHAPES:
            included = _included(request) if shape == "Table" else "Metadata"
            return Form(cast("Shape", shape), version, included)
    text = "only the following media types are accepted: application/json"
    raise ApiError(406, "NotAcceptable", text)


def _clauses(header: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the media types with their parameters, the highest quality value first."""
    clauses = []
    for clause in header.split(","):
        media_type, *rest = (piece.strip() for piece in clause.split(";"))
        pairs = (piece.partition("=") for piece in rest)
        clauses.append((media_type, {name: value.strip('"') for name, _, value in pairs}))
    yield from sorted(clauses, key=_quality, reverse=True)


def _quality(clause: tuple[str, Mapping[str, str]]) -> float:
    try:
        return float(clause[1].get("q", "1"))
    except ValueError:
        return 1.0


def _included(request: Request) -> Included:
    found = request.query.get("includeObject", "")
    if found not in {"", "Metadata", "None", "Object"}:
        why = invalid("includeObject", found, "must be 'Metadata', 'Object', 'None', or empty")
        raise failures.bad_request(f"Unable to convert to Table as requested: {why}")
    return cast("Included", found or "Metadata")
