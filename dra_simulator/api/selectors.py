"""Field and label selectors of a list, a watch or a deletecollection."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dra_simulator.api import failures, kinds
from dra_simulator.api.kinds import Kind

Json = dict[str, object]
Test = Callable[[Mapping[str, object]], bool]

_SWITCHES: Final = frozenset({"spec.unschedulable"})
"""Fields that are false if they are absent."""

_SET: Final = re.compile(r"(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)")
_EQUAL: Final = re.compile(r"(?P<key>[^!=\s]+)\s*(?P<op>==|!=|=)\s*(?P<value>\S*)")
_EXISTS: Final = re.compile(r"(?P<not>!?)\s*(?P<key>[A-Za-z0-9][\w./-]*)")


@dataclass(frozen=True, slots=True)
class Selector:
    """A selector of objects; one without tests selects all."""

    tests: tuple[Test, ...] = ()

    def chooses(self, document: Mapping[str, object]) -> bool:
        """Return True if the object is selected."""
        return all(test(document) for test in self.tests)


def parse(kind: Kind, version: str, *, fields: str, labels: str) -> Selector:
    """Parse the selectors of a request.

    Raises:
        ApiError: 400 if a selector cannot be parsed or names a field that is not selectable.
    """
    return Selector((*_field_tests(kind, version, fields), *_label_tests(labels)))


def _field_tests(kind: Kind, version: str, text: str) -> list[Test]:
    tests: list[Test] = []
    for part in filter(None, text.split(",")):
        match = _EQUAL.fullmatch(part.strip())
        if match is None:
            raise failures.bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
        path = match["key"]
        metadata = {"metadata.name"} | ({"metadata.namespace"} if kind.namespaced else set())
        if path not in metadata and path not in kind.selectable:
            served = kinds.api_version(kind.group, version)
            raise failures.bad_request(
                f"field label not supported for {served}, Kind={kind.kind}: {path}"
            )
        tests.append(_field_test(path, match["value"], equal=match["op"] != "!="))
    return tests


def _field_test(path: str, value: str, *, equal: bool) -> Test:
    return lambda document: (field_text(document, path) == value) is equal


def field_text(document: Mapping[str, object], path: str) -> str:
    """Return a field as selectors see it: its text, or "" if it is absent."""
    found: object = document
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, bool) or path in _SWITCHES:
        return str(bool(found)).lower()
    return str(found) if found is not None else ""


def _label_tests(text: str) -> list[Test]:
    return [_label_test(part.strip()) for part in _split(text) if part.strip()]


def _split(text: str) -> list[str]:
    """Split into requirements; a comma in parentheses separates values, not requirements."""
    return re.findall(r"(?:[^,(]|\([^)]*\))+", text)


def _label_test(part: str) -> Test:
    if match := _SET.fullmatch(part):
        key, wanted = match["key"], {value.strip() for value in match["values"].split(",")}
        if match["op"] == "in":
            return lambda document: _labels(document).get(key) in wanted
        return lambda document: _labels(document).get(key) not in wanted
    if match := _EQUAL.fullmatch(part):
        key, value, equal = match["key"], match["value"], match["op"] != "!="
        return lambda document: (_labels(document).get(key) == value) is equal
    if match := _EXISTS.fullmatch(part):
        key, exists = match["key"], not match["not"]
        return lambda document: (key in _labels(document)) is exists
    raise failures.bad_request(
        f"unable to parse requirement: found '{part}', expected: in, notin, =, ==, !="
    )


def _labels(document: Mapping[str, object]) -> Mapping[str, object]:
    metadata = document.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return labels if isinstance(labels, dict) else {}
