"""Formats of names, and errors, that the API server knows and the driver does not need.

The others are in core.kubernetes.name_rules and core.kubernetes.field_errors.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    Reason,
    invalid,
    shown,
    wrong_type,
)

_UID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def pool(path: str, name: object) -> Iterator[FieldError]:
    """Yield errors unless it is a pool's name: RFC 1123 subdomains separated by slashes."""
    yield from name_rules.sized(path, name, name_rules.POOL_NAME_BYTES)
    for part in name.split("/") if name and isinstance(name, str) else ():
        yield from name_rules.subdomain(path, part)


def fully_qualified(path: str, name: object) -> Iterator[FieldError]:
    """Yield errors unless it is an attribute's name with its domain."""
    if not isinstance(name, str):
        yield wrong_type(path, name, "string")
        return
    yield from name_rules.qualified(path, name)
    if "/" not in name:
        yield invalid(
            path, name, "a fully qualified name must be a domain and a name separated by a slash"
        )


def extended_resource(path: str, name: object) -> Iterator[FieldError]:
    """Yield errors unless it is None or the name of an extended resource: ``domain/name``.

    It is not of Kubernetes itself, and a quota can name it with the prefix ``requests.``.
    """
    if not isinstance(name, str):
        return
    if "/" not in name:
        text = "a name must be a domain-prefixed path, such as 'example.com/my-prop'"
        yield invalid(path, name, text)
    elif "kubernetes.io/" in name:
        yield invalid(path, name, 'must not have "kubernetes.io/" domain')
    if name.startswith("requests."):
        yield invalid(path, name, 'must not have "requests." prefix')
    for error in name_rules.label_key(path, f"requests.{name}"):
        yield invalid(path, name, error.text)


def uid(path: str, value: object) -> Iterator[FieldError]:
    """Yield errors unless it is a UUID in RFC 4122 normalized form."""
    if not isinstance(value, str) or not _UID.fullmatch(value):
        yield invalid(path, value, "uid must be in RFC 4122 normalized form, in lower case")


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
    return FieldError(path, Reason.FORBIDDEN, f"Forbidden: {expected}")


def too_many(path: str, found: int, maximum: int) -> FieldError:
    """Return the error for a list or map with too many entries."""
    text = f"Too many: {found}: must have at most {maximum} items"
    return FieldError(path, Reason.TOO_MANY, text)


def not_found(path: str, found: object) -> FieldError:
    """Return the error for a reference to something that does not exist."""
    return FieldError(path, Reason.NOT_FOUND, f"Not found: {shown(found)}")
