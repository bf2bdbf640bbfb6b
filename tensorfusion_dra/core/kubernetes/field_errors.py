"""Errors about single fields, worded as the API server words them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tensorfusion_dra.core import printable


class Reason(StrEnum):
    """Reason for refusing a field (k8s.io/apimachinery/pkg/util/validation/field)."""

    REQUIRED = "FieldValueRequired"
    INVALID = "FieldValueInvalid"
    NOT_SUPPORTED = "FieldValueNotSupported"
    DUPLICATE = "FieldValueDuplicate"
    FORBIDDEN = "FieldValueForbidden"
    TOO_LONG = "FieldValueTooLong"
    TOO_MANY = "FieldValueTooMany"
    NOT_FOUND = "FieldValueNotFound"
    TYPE = "FieldValueTypeInvalid"


@dataclass(frozen=True, slots=True)
class FieldError:
    """One refused field.

    Attributes:
        path: Relative to the checked object, such as ``spec.devices[0].name``.
        text: What was found and what was expected.
    """

    path: str
    reason: Reason
    text: str

    def __str__(self) -> str:
        """Return path and text as one printable line: a path may contain untrusted names."""
        return printable.one_line(f"{self.path}: {self.text}" if self.path else self.text)


def required(path: str, expected: str = "") -> FieldError:
    """Return the error for a missing value."""
    return FieldError(path, Reason.REQUIRED, _joined("Required value", expected))


def invalid(path: str, found: object, expected: str) -> FieldError:
    """Return the error for a value that breaks a rule."""
    return FieldError(path, Reason.INVALID, f"Invalid value: {shown(found)}: {expected}")


def wrong_type(path: str, found: object, expected: str) -> FieldError:
    """Return the error for a value of the wrong JSON type."""
    return FieldError(path, Reason.TYPE, f"Invalid value: {shown(found)}: expected {expected}")


def not_supported(path: str, found: object, supported: Iterable[str]) -> FieldError:
    """Return the error for a value outside a closed set."""
    values = ", ".join(shown(value) for value in sorted(supported))
    text = f"Unsupported value: {shown(found)}: supported values: {values}"
    return FieldError(path, Reason.NOT_SUPPORTED, text)


def duplicate(path: str, found: object) -> FieldError:
    """Return the error for a value that must be unique and is not."""
    return FieldError(path, Reason.DUPLICATE, f"Duplicate value: {shown(found)}")


def forbidden(path: str, expected: str) -> FieldError:
    """Return the error for a field that must not be set here."""
    return FieldError(path, Reason.FORBIDDEN, _joined("Forbidden", expected))


def too_long(path: str, most_bytes: int) -> FieldError:
    """Return the error for a string of too many bytes."""
    return FieldError(path, Reason.TOO_LONG, f"Too long: may not be more than {most_bytes} bytes")


def too_many(path: str, found: int, most: int) -> FieldError:
    """Return the error for a list or map with too many entries."""
    text = f"Too many: {found}: must have at most {most} items"
    return FieldError(path, Reason.TOO_MANY, text)


def not_found(path: str, found: object) -> FieldError:
    """Return the error for a reference to something that does not exist."""
    return FieldError(path, Reason.NOT_FOUND, f"Not found: {shown(found)}")


def shown(value: object) -> str:
    """Return a value as JSON for an error text, truncated to 512 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 512 else f"{text[:509]}..."


def _joined(head: str, detail: str) -> str:
    return f"{head}: {detail}" if detail else head
