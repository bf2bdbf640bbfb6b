"""Errors about single fields, worded as the API server words them, and a reader that collects them.

Example:
    fields = Fields({"qos": "best", "limiter": 1}, path="spec")
    fields.read("qos", partial(choice, choices=Qos), None)  # None
    fields.read("limiter", boolean, None)  # None
    fields.errors  # spec.qos: found 'best', expected one of ...; spec.limiter: found 1, ...
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from tensorfusion_dra.core import printable
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes import untyped_json

Value = TypeVar("Value")
Default = TypeVar("Default")
Choice = TypeVar("Choice", bound=StrEnum)

_MAX_SHOWN: Final = 80


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
    text = f"Required value: {expected}" if expected else "Required value"
    return FieldError(path, Reason.REQUIRED, text)


def invalid(path: str, found: object, expected: str) -> FieldError:
    """Return the error for a value that breaks a rule."""
    return FieldError(path, Reason.INVALID, f"Invalid value: {shown(found)}: {expected}")


def wrong_type(path: str, found: object, expected: str) -> FieldError:
    """Return the error for a value of the wrong JSON type."""
    return FieldError(path, Reason.TYPE, f"Invalid value: {shown(found)}: expected {expected}")


def too_long(path: str, max_bytes: int) -> FieldError:
    """Return the error for a string of too many bytes."""
    return FieldError(path, Reason.TOO_LONG, f"Too long: may not be more than {max_bytes} bytes")


def shown(value: object) -> str:
    """Return a value as JSON for an error text, truncated to 512 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 512 else f"{text[:509]}..."


class Fields:
    """The fields of one object, and the errors found in them so far.

    Attributes:
        found: The object; empty in place of a value that is not an object.
        errors: In the order in which they were found; objects inside this one share the list.
    """

    def __init__(
        self, found: object, *, path: str = "", errors: list[FieldError] | None = None
    ) -> None:
        self.errors: Final = [] if errors is None else errors
        self._path: Final = path
        if not isinstance(found, Mapping):
            self.errors.append(wrong(path, found, "an object"))
            found = {}
        self.found: Final[Mapping[str, object]] = found

    def path_of(self, key: str) -> str:
        """Return the path of a field; a key that is not a plain name stands in brackets."""
        if not self._path:
            return key
        return f"{self._path}.{key}" if key.isidentifier() else f"{self._path}[{key}]"

    def read(self, key: str, parse: Callable[[Any], Value], default: Default) -> Value | Default:
        """Return the parsed value of a field, or the default if it is absent, null or malformed.

        Args:
            parse: Parser; the text of its ValueError or DriverError becomes the field's error.
        """
        found = self.found.get(key)
        if found is None:
            return default
        try:
            return parse(found)
        except (ValueError, DriverError) as error:
            self.errors.append(FieldError(self.path_of(key), Reason.INVALID, str(error)))
            return default

    def read_all(
        self, readers: Mapping[str, tuple[str, Callable[[Any], object]]]
    ) -> dict[str, Any]:
        """Return read() of a key with a parser, None by default, for each name."""
        return {name: self.read(key, parse, None) for name, (key, parse) in readers.items()}

    def inner(self, key: str) -> "Fields":
        """Return the fields of an object in this one; an absent or null object is empty."""
        found = self.found.get(key)
        return Fields({} if found is None else found, path=self.path_of(key), errors=self.errors)

    def expect(self, key: str, expected: str) -> None:
        """Add an error unless the field has exactly this value."""
        if self.found.get(key) != expected:
            self.errors.append(wrong(self.path_of(key), self.found.get(key), expected))

    def refuse_others(self, known: Iterable[str]) -> None:
        """Add an error for each field that is not one of the known ones."""
        names = tuple(known)
        for key in self.found:
            if key not in names:
                text = f"found this field, expected one of {', '.join(names)}"
                self.errors.append(FieldError(self.path_of(key), Reason.INVALID, text))


def wrong(path: str, found: object, expected: str) -> FieldError:
    """Return the error for a value that was found in place of another."""
    return FieldError(path, Reason.INVALID, _text(found, expected))


def boolean(found: object) -> bool:
    """Return the value if it is true or false.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(found, bool):
        return found
    raise ValueError(_text(found, "true or false"))


def choice(found: object, choices: type[Choice]) -> Choice:
    """Return the choice with this value.

    Raises:
        ValueError: It is none of the choices.
    """
    try:
        return choices(str(found))
    except ValueError as error:
        raise ValueError(_text(found, f"one of {', '.join(choices)}")) from error


def whole_number(found: object, *, least: int, most: int) -> int:
    """Return the value if it is a whole number in the range, bounds included.

    Raises:
        ValueError: It is not.
    """
    if untyped_json.is_whole_number(found) and least <= found <= most:
        return found
    raise ValueError(_text(found, f"a whole number {least} to {most}"))


def _text(found: object, expected: str) -> str:
    return f"found {repr(found)[:_MAX_SHOWN]}, expected {expected}"
