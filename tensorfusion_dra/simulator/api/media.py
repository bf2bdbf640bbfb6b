"""In which form a client wants its answer: the Accept header, as apiserver negotiates it.

apiserver, pkg/endpoints/handlers: negotiation/negotiate.go and response.go, release 1.36. JSON is
the only encoding here, where a real server has YAML, CBOR and protobuf as well.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from tensorfusion_dra.core.kubernetes.field_errors import invalid
from tensorfusion_dra.simulator.api import failures
from tensorfusion_dra.simulator.api.failures import ApiError
from tensorfusion_dra.simulator.api.requests import Request

Shape = Literal["", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"]
Included = Literal["Metadata", "None", "Object"]

_GROUP: Final = "meta.k8s.io"
_VERSIONS: Final = ("v1", "v1beta1")
_SHAPES: Final = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
_JSON: Final = ("application/json", "application/*", "*/*")


@dataclass(frozen=True, slots=True)
class Form:
    """How an answer shows objects.

    Attributes:
        shape: The kind of meta.k8s.io that objects are converted to; "" for the objects themselves.
        version: Of meta.k8s.io.
        included: What a row of a Table has of its object.
    """

    shape: Shape = ""
    version: str = "v1"
    included: Included = "Metadata"

    @property
    def api_version(self) -> str:
        """The apiVersion of what objects are converted to."""
        return f"{_GROUP}/{self.version}"


AS_IT_IS: Final = Form()
"""Objects as they are stored."""


def form(request: Request) -> Form:
    """Return the form that a request asks for: the first it accepts that can be served.

    Raises:
        ApiError: 406 if none can be served, 400 if what a Table is to include is unknown.
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
    """The media types with their parameters, the most wanted first."""
    clauses = []
    for clause in header.split(","):
        media_type, *rest = (piece.strip() for piece in clause.split(";"))
        pairs = (piece.partition("=") for piece in rest)
        clauses.append((media_type, {name: value.strip('"') for name, _, value in pairs}))
    yield from sorted(clauses, key=_wanted, reverse=True)


def _wanted(clause: tuple[str, Mapping[str, str]]) -> float:
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
