"""Error responses of the API server: an HTTP code and a Status object."""

from collections.abc import Sequence
from typing import Final

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes.field_errors import FieldError

Json = dict[str, object]

_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ApiError(DriverError):
    """An error that is answered with a Status object of status Failure.

    Attributes:
        code: The HTTP code.
        reason: Status.reason, such as ``NotFound``; "" for none.
        details: Status.details; None if there are none.
        retry_after_seconds: Sent as Retry-After; None to omit the header.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Json | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after_seconds = retry_after_seconds
        if retry_after_seconds is not None:
            self.details = {**(details or {}), "retryAfterSeconds": retry_after_seconds}

    def status(self) -> Json:
        """Return the Status object of the error."""
        document: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            document["reason"] = self.reason
        if self.details is not None:
            document["details"] = self.details
        document["code"] = self.code
        return document


def qualified(plural_or_kind: str, group: str) -> str:
    """Return ``resourceslices.resource.k8s.io``, or the bare word for the core group."""
    return f"{plural_or_kind}.{group}" if group else plural_or_kind


def _details(name: str, group: str, kind: str) -> Json:
    pairs = {"name": name, "group": group, "kind": kind}
    return {key: value for key, value in pairs.items() if value}


def bad_request(message: str) -> ApiError:
    """Return 400: the request itself is wrong."""
    return ApiError(400, "BadRequest", message)


def not_found(plural: str, group: str, name: str) -> ApiError:
    """Return 404: the object does not exist."""
    text = f'{qualified(plural, group)} "{name}" not found'
    return ApiError(404, "NotFound", text, details=_details(name, group, plural))


def no_such_path() -> ApiError:
    """Return 404: the resource does not exist."""
    text = "the server could not find the requested resource"
    return ApiError(404, "NotFound", text, details={})


def not_allowed() -> ApiError:
    """Return 405: the resource exists but does not support the request."""
    text = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", text, details={})


def unsupported_media(message: str) -> ApiError:
    """Return 415: the request does not accept the body's content type."""
    return ApiError(415, "UnsupportedMediaType", message, details={})


def refused(code: int, message: str, retry_after_seconds: int | None) -> ApiError:
    """Return an error that the request did not cause, with the usual reason of its code."""
    return ApiError(code, _REASONS.get(code, ""), message, retry_after_seconds=retry_after_seconds)


def already_exists(plural: str, group: str, name: str) -> ApiError:
    """Return 409: an object of the same name exists already."""
    text = f'{qualified(plural, group)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", text, details=_details(name, group, plural))


def conflict(plural: str, group: str, name: str, why: str) -> ApiError:
    """Return 409: the object is not in the state that the request expects."""
    text = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    return ApiError(409, "Conflict", text, details=_details(name, group, plural))


def modified(plural: str, group: str, name: str) -> ApiError:
    """Return 409: the resourceVersion in the request is not the stored one."""
    why = (
        "the object has been modified; please apply your changes to the latest version"
        " and try again"
    )
    return conflict(plural, group, name, why)


def invalid(kind: str, group: str, name: str, errors: Sequence[FieldError]) -> ApiError:
    """Return 422: fields break rules."""
    texts = list(dict.fromkeys(map(str, errors)))
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    causes = [
        {"reason": error.reason.value, "message": error.text, "field": error.path}
        for error in errors
    ]
    details = {**_details(name, group, kind), "causes": causes}
    text = f'{qualified(kind, group)} "{name}" is invalid: {listed}'
    return ApiError(422, "Invalid", text, details=details)


def unprocessable() -> ApiError:
    """Return 422: a patch can be parsed but does not fit the object."""
    text = "the server rejected our request due to an error in our request"
    return ApiError(422, "Invalid", text, details={})


def expired(version: int, oldest: int) -> ApiError:
    """Return 410: the history no longer reaches back to a resourceVersion."""
    return ApiError(410, "Expired", f"too old resource version: {version} ({oldest})")
