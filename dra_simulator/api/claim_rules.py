"""The API server's rules for the spec of claims, templates and device classes (validation.go)."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.device_rules import TAINT_EFFECTS
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    duplicate,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

Json = Mapping[str, object]
CheckExpression = Callable[[str], str | None]

MOST_REQUESTS: Final = 32
MOST_CONSTRAINTS: Final = 32
MOST_CONFIGS: Final = 32
MOST_SELECTORS: Final = 32
MOST_SUBREQUESTS: Final = 8
MOST_EXPRESSION_BYTES: Final = 10 * 1024
MOST_PARAMETERS_BYTES: Final = 10 * 1024

_REFERENCE: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest"
    " separated by '/'"
)


def any_expression(_: str) -> str | None:
    """Accept any CEL expression."""
    return None


def spec_errors(path: str, spec: Json, check: CheckExpression) -> Iterator[FieldError]:
    """Yield the errors in the spec of a claim or a template."""
    devices = as_map(spec.get("devices"))
    at = f"{path}.devices"
    requests = as_list(devices.get("requests"))
    if len(requests) > MOST_REQUESTS:
        yield too_many(f"{at}.requests", len(requests), MOST_REQUESTS)
        requests = []
    for index, request in enumerate(requests):
        yield from _request_errors(f"{at}.requests[{index}]", as_map(request), check)
    yield from _duplicates(f"{at}.requests", [as_map(r).get("name", "") for r in requests])
    names = request_names(spec)
    constraints = as_list(devices.get("constraints"))
    if len(constraints) > MOST_CONSTRAINTS:
        yield too_many(f"{at}.constraints", len(constraints), MOST_CONSTRAINTS)
        constraints = []
    for index, constraint in enumerate(constraints):
        yield from _constraint_errors(f"{at}.constraints[{index}]", as_map(constraint), names)
    configs = as_list(devices.get("config"))
    if len(configs) > MOST_CONFIGS:
        yield too_many(f"{at}.config", len(configs), MOST_CONFIGS)
        configs = []
    for index, config in enumerate(configs):
        where = f"{at}.config[{index}]"
        yield from references_errors(f"{where}.requests", as_map(config).get("requests"), names)
        yield from config_errors(where, as_map(config))


def request_names(spec: Json) -> frozenset[str]:
    """Return every name that can refer to a claim's requests: ``main`` and ``main/sub``."""
    names: set[str] = set()
    for request in as_list(as_map(spec.get("devices")).get("requests")):
        main = str(as_map(request).get("name", ""))
        names.add(main)
        for sub in as_list(as_map(request).get("firstAvailable")):
            names.add(f"{main}/{as_map(sub).get('name', '')}")
    return frozenset(names)


def _request_errors(path: str, request: Json, check: CheckExpression) -> Iterator[FieldError]:
    yield from name_rules.label(f"{path}.name", request.get("name"))
    exactly, subrequests = request.get("exactly"), as_list(request.get("firstAvailable"))
    expected = "exactly one of `exactly` or `firstAvailable` is required"
    if exactly is None and not subrequests:
        yield required(path, expected)
    elif exactly is not None and subrequests:
        yield invalid(path, None, f"{expected}, but multiple fields are set")
    elif exactly is not None:
        yield from _devices_errors(f"{path}.exactly", as_map(exactly), check)
    elif len(subrequests) > MOST_SUBREQUESTS:
        yield too_many(f"{path}.firstAvailable", len(subrequests), MOST_SUBREQUESTS)
    else:
        for index, sub in enumerate(subrequests):
            where = f"{path}.firstAvailable[{index}]"
            yield from name_rules.label(f"{where}.name", as_map(sub).get("name"))
            yield from _devices_errors(where, as_map(sub), check)
        names = [as_map(sub).get("name", "") for sub in subrequests]
        yield from _duplicates(f"{path}.firstAvailable", names)


def _devices_errors(path: str, wanted: Json, check: CheckExpression) -> Iterator[FieldError]:
    device_class = wanted.get("deviceClassName")
    if device_class in (None, ""):
        yield required(f"{path}.deviceClassName")
    else:
        yield from name_rules.subdomain(f"{path}.deviceClassName", device_class)
    yield from selectors_errors(f"{path}.selectors", wanted.get("selectors"), check)
    mode, count = wanted.get("allocationMode"), wanted.get("count", 0)
    assert isinstance(count, int)
    if mode == "All":
        if count != 0:
            text = "must not be specified when allocationMode is 'All'"
            yield invalid(f"{path}.count", count, text)
    elif mode == "ExactCount":
        if count <= 0:
            yield invalid(f"{path}.count", count, "must be greater than zero")
    else:
        yield not_supported(f"{path}.allocationMode", mode, ["All", "ExactCount"])
    for index, toleration in enumerate(as_list(wanted.get("tolerations"))):
        yield from _toleration_errors(f"{path}.tolerations[{index}]", as_map(toleration))


def selectors_errors(path: str, selectors: object, check: CheckExpression) -> Iterator[FieldError]:
    """Yield the errors in the CEL selectors of a request or a device class."""
    found = as_list(selectors)
    if len(found) > MOST_SELECTORS:
        yield too_many(path, len(found), MOST_SELECTORS)
        return
    for index, selector in enumerate(found):
        where = f"{path}[{index}].cel"
        cel = as_map(selector).get("cel")
        if cel is None:
            yield required(where)
            continue
        expression = str(as_map(cel).get("expression", ""))
        if len(expression.encode()) > MOST_EXPRESSION_BYTES:
            yield too_long(f"{where}.expression", MOST_EXPRESSION_BYTES)
            continue
        complaint = check(expression)
        if complaint is not None:
            yield invalid(f"{where}.expression", expression, complaint)


def _toleration_errors(path: str, toleration: Json) -> Iterator[FieldError]:
    key, value = toleration.get("key", ""), toleration.get("value", "")
    operator, effect = toleration.get("operator", ""), toleration.get("effect", "")
    if key:
        yield from name_rules.label_key(f"{path}.key", key)
    match operator:
        case "Exists":
            if value:
                yield invalid(f"{path}.value", value, "must be empty for operator `Exists`")
        case "Equal":
            yield from name_rules.label_value(f"{path}.value", value)
        case "":
            yield required(f"{path}.operator")
        case _:
            yield not_supported(f"{path}.operator", operator, ["Equal", "Exists"])
    if effect and effect not in TAINT_EFFECTS:
        yield not_supported(f"{path}.effect", effect, TAINT_EFFECTS)


def _constraint_errors(path: str, constraint: Json, names: Collection[str]) -> Iterator[FieldError]:
    yield from references_errors(f"{path}.requests", constraint.get("requests"), names)
    for field in ("matchAttribute", "distinctAttribute"):
        if constraint.get(field) is not None:
            yield from name_rules.fully_qualified(f"{path}.{field}", constraint[field])
            return
    text = 'exactly one of "matchAttribute" or "distinctAttribute" is required'
    yield required(path, text)


def references_errors(
    path: str, references: object, names: Collection[str]
) -> Iterator[FieldError]:
    """Yield the errors in a list of request names."""
    found = as_list(references)
    if len(found) > MOST_REQUESTS:
        yield too_many(path, len(found), MOST_REQUESTS)
        return
    for index, name in enumerate(found):
        yield from reference_errors(f"{path}[{index}]", str(name), names)
    yield from _duplicates(path, found)


def reference_errors(path: str, name: str, names: Collection[str]) -> Iterator[FieldError]:
    """Yield the errors in the name of a request, or of a request and its subrequest."""
    parts = name.split("/")
    if len(parts) <= 2:
        for part in parts:
            yield from name_rules.label(path, part)
    if name not in names:
        yield invalid(path, name, _REFERENCE)


def config_errors(path: str, config: Json) -> Iterator[FieldError]:
    """Yield the errors in the opaque configuration of a claim, a class or an allocation."""
    opaque = config.get("opaque")
    if opaque is None:
        yield required(f"{path}.opaque")
        return
    yield from name_rules.driver(f"{path}.opaque.driver", as_map(opaque).get("driver"))
    yield from raw_errors(f"{path}.opaque.parameters", as_map(opaque).get("parameters"))


def raw_errors(path: str, raw: object) -> Iterator[FieldError]:
    """Yield the errors in parameters or data, which must be a JSON object of at most 10 KiB.

    The API server counts the bytes of the request. Here they are the bytes of JSON with spaces, so
    that an object that passes here passes there as well.
    """
    if raw is None:
        yield required(path)
    elif len(json.dumps(raw)) > MOST_PARAMETERS_BYTES:
        yield too_long(path, MOST_PARAMETERS_BYTES)
    elif not isinstance(raw, dict):
        yield invalid(path, "<value omitted>", "must be a valid JSON object")


def _duplicates(path: str, names: list[object]) -> Iterator[FieldError]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield duplicate(f"{path}[{index}]", name)
