"""Formats of names that the API server checks and the driver does not use."""

import re
from collections.abc import Iterator
from typing import Final

from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, invalid, wrong_type

_UID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


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
