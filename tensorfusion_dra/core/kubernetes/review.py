"""AdmissionReview (admission.k8s.io/v1): the API server's request and the webhook's response."""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tensorfusion_dra.core.errors import DriverError, RetryableError
from tensorfusion_dra.core.kubernetes import name_rules, untyped_json
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.untyped_json import map_at, objects_at

Json = dict[str, Any]

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

INVALID: Final = 422
UNAVAILABLE: Final = 503
"""The same request may succeed later; the client retries it."""

_REASONS: Final = {INVALID: "Invalid", UNAVAILABLE: "ServiceUnavailable"}
_MAX_WARNING_CHARACTERS: Final = 256
"""The API server truncates a longer one (apiserver's admission/plugin/webhook)."""
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""What an unpaired surrogate begins with. An API server stores none, and URLs cannot have any."""


class ReviewError(DriverError):
    """The body is not an AdmissionReview that can be answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One request that the API server submits for admission.

    Attributes:
        uid: Identifies the review; the response repeats it.
        group, kind: Of the object, such as resource.k8s.io and ResourceClaim.
        operation: CREATE, UPDATE, DELETE or CONNECT.
        subresource: "" for the object itself.
        name: "" where the API server will generate one from generateName.
        document: The object, with its metadata; empty for a DELETE.
        old: The object that is replaced or deleted; empty for a CREATE.
        wait_seconds: How long the API server waits for the response.
        dry_run: True if the object will not be stored.
    """

    uid: str
    group: str
    version: str
    kind: str
    operation: str
    subresource: str
    namespace: str
    name: str
    document: Json
    old: Json
    wait_seconds: float
    dry_run: bool = False

    def __str__(self) -> str:
        metadata = self.document.get("metadata", {})
        name = self.name or metadata.get("name") or f"{metadata.get('generateName') or ''}*"
        return f"{self.namespace}/{name}" if self.namespace else str(name)

    @property
    def is_creation(self) -> bool:
        """True if the object itself is new, not one of its subresources."""
        return self.operation == "CREATE" and not self.subresource

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the object."""
        return annotations_of(self.document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The webhook's decision on one review.

    Attributes:
        changed: The object to store instead; None leaves it unchanged.
        errors: Reasons for refusing the request; without any, it passes.
        code: HTTP status code of a refusal.
    """

    changed: Mapping[str, Any] | None = None
    warnings: Sequence[str] = ()
    errors: Sequence[FieldError] = ()
    code: int = INVALID


PASSED: Final = Decision()


def unavailable(error: RetryableError) -> Decision:
    """Return the refusal of a request that may succeed later."""
    return Decision(errors=[FieldError("", Reason.INVALID, str(error))], code=UNAVAILABLE)


class ReviewOutcome(StrEnum):
    """End of a review."""

    CHANGED = "changed"
    PASSED = "passed"
    DENIED = "denied"
    UNAVAILABLE = "unavailable"
    """Refused, because the API server did not give what the decision needs."""
    FAILED = "failed"
    """The webhook has a fault; the failure policy of its configuration decides."""


def outcome(decision: Decision) -> ReviewOutcome:
    """Return the outcome of a review with this decision."""
    if decision.errors:
        return ReviewOutcome.UNAVAILABLE if decision.code == UNAVAILABLE else ReviewOutcome.DENIED
    return ReviewOutcome.PASSED if decision.changed is None else ReviewOutcome.CHANGED


def parse(text: bytes, *, wait_seconds: float) -> Review:
    """Parse a request's body into a review.

    Args:
        wait_seconds: How long the API server waits for the response.

    Raises:
        ReviewError: The body is not an AdmissionReview with a complete request.
    """
    try:
        document = untyped_json.parse(text)
        if _SURROGATE.search(text):  # those in pairs can be encoded
            untyped_json.compact_json(document, ensure_ascii=False).encode()
    except ValueError as error:
        raise ReviewError(f"body: found no JSON that can be read: {error}") from error
    if not isinstance(document, dict):
        raise ReviewError(f"body: found {type(document).__name__}, expected an {KIND}")
    shown = (document.get("apiVersion"), document.get("kind"))
    if shown != (API_VERSION, KIND):
        raise ReviewError(f"body: found {shown[1]} of {shown[0]}, expected {KIND} of {API_VERSION}")
    request = _object(document, "request")
    kind = _object(request, "kind")
    for name in ("object", "oldObject"):
        if found := _object(request, name, empty=True):
            for part in ("annotations", "labels"):
                _object(_object(found, "metadata"), part, empty=True)
    return Review(
        uid=_text(request, "uid"),
        group=_text(kind, "group", empty=True),
        version=_text(kind, "version"),
        kind=_text(kind, "kind"),
        operation=_text(request, "operation"),
        subresource=_text(request, "subResource", empty=True),
        namespace=_text(request, "namespace", empty=True),
        name=_text(request, "name", empty=True),
        document=_object(request, "object", empty=True),
        old=_object(request, "oldObject", empty=True),
        wait_seconds=wait_seconds,
        dry_run=request.get("dryRun") is True,
    )


def answer(review: Review, decision: Decision) -> Json:
    """Return the AdmissionReview that carries the decision."""
    response: Json = {"uid": review.uid, "allowed": not decision.errors}
    if decision.warnings:
        response["warnings"] = [text[:_MAX_WARNING_CHARACTERS] for text in decision.warnings]
    if decision.errors:
        causes = [
            {"reason": error.reason.value, "message": error.text, "field": error.path}
            for error in decision.errors
        ]
        details = {"name": review.name, "group": review.group, "kind": review.kind}
        response["status"] = {  # a metav1.Status; kubectl prints each of its causes on a line
            "status": "Failure",
            "code": decision.code,
            "reason": _REASONS[decision.code],
            "message": "; ".join(map(str, decision.errors)),
            "details": {name: value for name, value in details.items() if value}
            | {"causes": causes},
        }
    # A JSON patch (RFC 6902), in which "add" also replaces. Each changed field of the object is
    # replaced as a whole: metadata, spec.
    elif operations := [
        {"op": "add", "path": f"/{name}", "value": value}
        for name, value in (decision.changed or {}).items()
        if value != review.document.get(name)
    ]:
        response["patchType"] = "JSONPatch"
        patch = untyped_json.compact_json(operations, ensure_ascii=False)
        response["patch"] = base64.b64encode(patch.encode()).decode()
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def annotations_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations of any object."""
    found = map_at(document, "metadata", "annotations")
    return {str(name): text for name, text in found.items() if isinstance(text, str)}


def controller(document: Mapping[str, Any], namespace: str) -> dict[str, str]:
    """Return the controller of an object, as an Event refers to it; empty if it has none.

    Anybody can write owners, so each field is cut to the length of the longest name.
    """
    for owner in objects_at(document, "metadata", "ownerReferences"):
        if owner.get("controller") is True and owner.get("uid"):
            fields = ("apiVersion", "kind", "name", "uid")
            named = {each: str(owner.get(each))[: name_rules.SUBDOMAIN_BYTES] for each in fields}
            return {"namespace": namespace, **named}
    return {}


def _object(holder: Mapping[str, Any], name: str, *, empty: bool = False) -> Json:
    found = holder.get(name)
    if found is None and empty:
        return {}
    if not isinstance(found, dict):
        raise ReviewError(f"{name}: found {type(found).__name__}, expected an object")
    return found


def _text(holder: Mapping[str, Any], name: str, *, empty: bool = False) -> str:
    found = holder.get(name, "" if empty else None)
    if not isinstance(found, str) or not (found or empty):
        raise ReviewError(f"{name}: found {str(found)[:80]!r}, expected a string")
    return found
