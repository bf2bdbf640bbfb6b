"""Kubernetes' syntax rules for names: labels, subdomains, drivers, attributes, label keys."""

import re
from collections.abc import Iterator
from typing import Final

from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    invalid,
    required,
    too_long,
    wrong_type,
)

DRIVER_NAME_BYTES: Final = 63
POOL_NAME_BYTES: Final = 253
ID_BYTES: Final = 32

LABEL_BYTES: Final = 63
SUBDOMAIN_BYTES: Final = 253

_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
SUBDOMAIN: Final = re.compile(rf"{_LABEL.pattern}(?:\.{_LABEL.pattern})*")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_NAME: Final = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")


def size(text: str) -> int:
    """Return the size in bytes of UTF-8; an unpaired surrogate, which JSON allows, counts as 3."""
    return len(text.encode(errors="surrogatepass"))


def label(path: str, name: object) -> Iterator[FieldError]:
    """Yield errors unless the name is an RFC 1123 label (devices, requests, counters)."""
    yield from _spelled(path, name, _LABEL, "a lowercase RFC 1123 label", LABEL_BYTES)


def subdomain(path: str, name: object) -> Iterator[FieldError]:
    """Yield errors unless the name is an RFC 1123 subdomain (objects, nodes, device classes)."""
    yield from _spelled(path, name, SUBDOMAIN, "a lowercase RFC 1123 subdomain", SUBDOMAIN_BYTES)


def driver(path: str, name: object) -> Iterator[FieldError]:
    """Yield errors unless it is a driver's name; upper case is valid, as in the API."""
    yield from sized(path, name, DRIVER_NAME_BYTES)
    if name and isinstance(name, str) and not SUBDOMAIN.fullmatch(name.lower()):
        yield invalid(path, name, f"must be an RFC 1123 subdomain: {SUBDOMAIN.pattern}")


def qualified(path: str, name: str) -> Iterator[FieldError]:
    """Yield errors unless it is the key of an attribute or a capacity: ``[domain/]identifier``.

    The API server accepts a key with more than one slash unchecked. Here it is an error, because
    no selector could name it.
    """
    domain, slash, identifier = name.rpartition("/")
    if slash and not domain:
        yield invalid(path, "", "the domain must not be empty")
    elif slash:
        yield from driver(path, domain)
    if slash and not identifier:
        yield invalid(path, "", "the name must not be empty")
        return
    if size(identifier) > ID_BYTES:
        yield too_long(path, ID_BYTES)
    if not _IDENTIFIER.fullmatch(identifier):
        yield invalid(path, identifier, f"must be a C identifier: {_IDENTIFIER.pattern}")


def label_key(path: str, key: object) -> Iterator[FieldError]:
    """Yield errors unless it is the key of a label: ``[prefix/]name``."""
    if not isinstance(key, str):
        yield wrong_type(path, key, "string")
        return
    prefix, slash, name = key.rpartition("/")
    if slash:
        yield from subdomain(path, prefix)
    if size(name) > LABEL_BYTES or not _LABEL_NAME.fullmatch(name):
        text = f"name part must be {_LABEL_NAME.pattern}, at most {LABEL_BYTES} bytes"
        yield invalid(path, key, text)


def label_value(path: str, value: object) -> Iterator[FieldError]:
    """Yield errors unless it is the value of a label; an empty value is valid."""
    if not isinstance(value, str):
        yield wrong_type(path, value, "string")
    elif value and (size(value) > LABEL_BYTES or not _LABEL_NAME.fullmatch(value)):
        text = f"a valid label must be empty or {_LABEL_NAME.pattern}, at most {LABEL_BYTES} bytes"
        yield invalid(path, value, text)


def sized(path: str, name: object, max_bytes: int) -> Iterator[FieldError]:
    """Yield an error unless it is a text of at most so many bytes, and not empty."""
    if name in (None, ""):
        yield required(path)
    elif not isinstance(name, str):
        yield wrong_type(path, name, "string")
    elif size(name) > max_bytes:
        yield too_long(path, max_bytes)


def _spelled(
    path: str, name: object, shape: re.Pattern[str], wanted: str, max_bytes: int
) -> Iterator[FieldError]:
    name = "" if name is None else name
    if not isinstance(name, str):
        yield wrong_type(path, name, "string")
        return
    if size(name) > max_bytes:
        yield invalid(path, name, f"must be no more than {max_bytes} bytes")
    if not shape.fullmatch(name):
        yield invalid(path, name, f"must be {wanted}: {shape.pattern}")
