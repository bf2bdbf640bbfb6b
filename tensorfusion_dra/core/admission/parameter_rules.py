"""Admission checks of opaque parameters for this driver, in claims, templates and classes."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import isolation, share_policy
from tensorfusion_dra.core.claims.share_policy import ParameterError
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

CLASS: Final = "DeviceClass"
CONFIG_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    CLASS: ("spec", "config"),
    "ResourceClaim": ("spec", "devices", "config"),
    "ResourceClaimTemplate": ("spec", "spec", "devices", "config"),
}
"""Path of the configurations in each kind."""


def errors(
    kind: str, found: Mapping[str, Any], old: Mapping[str, Any], *, enforces_hard: bool
) -> Iterator[FieldError]:
    """Yield the errors in the parameters of an object.

    Args:
        kind: One of CONFIG_PATHS.
        old: The object that is replaced; empty for a new one. Parameters that it already has pass;
            otherwise nobody could change anything else in the object.
        enforces_hard: True if the nodes' enforcer brings a limiter for hard isolation.
    """
    path = CONFIG_PATHS[kind]
    existing = [_parameters(config) for config in _configs(old, path)]
    for index, config in enumerate(_configs(found, path)):
        opaque = as_map(as_map(config).get("opaque"))
        if opaque.get("driver") != names.DRIVER or _parameters(config) in existing:
            continue
        where = f"{'.'.join(path)}[{index}].opaque.parameters"
        try:
            parsed = share_policy.parse(opaque.get("parameters"), trusted=kind == CLASS, path=where)
        except ParameterError as error:
            yield from error.errors
            continue
        if kind == CLASS:
            continue
        chosen = f"{where}.isolation"
        if parsed.isolation is Isolation.HARD and not enforces_hard:
            text = f"found hard, expected {isolation.HARD_NEEDS}"
            yield FieldError(chosen, Reason.FORBIDDEN, text)
        if parsed.isolation is Isolation.SHARED:
            for name in _with_amounts(_devices(found, path), as_map(config)):
                text = f"found shared and amounts in request {name}, expected "
                yield FieldError(chosen, Reason.FORBIDDEN, text + isolation.SHARED_NEEDS)


def _with_amounts(devices: Mapping[str, Any], config: Mapping[str, object]) -> Iterator[str]:
    """Yield the requests of a configuration that name amounts of this driver's cards.

    A request without amounts takes whole cards. The size of a whole card is not known here, so any
    amount counts as a part; a claim for whole cards needs none.
    """
    chosen = as_list(config.get("requests"))
    for request in map(as_map, as_list(devices.get("requests"))):
        name = str(request.get("name"))
        exact = request.get("exactly")
        alternatives = [(name, as_map(exact))] if exact is not None else []
        for each in map(as_map, as_list(request.get("firstAvailable"))):
            alternatives.append((f"{name}/{each.get('name')}", each))
        for full_name, wanted in alternatives:
            if chosen and not {name, full_name} & set(map(str, chosen)):
                continue
            amounts = as_map(as_map(wanted.get("capacity")).get("requests"))
            short = {key.removeprefix(f"{names.DRIVER}/") for key in amounts}
            if short & names.CAPACITIES and wanted.get("adminAccess") is not True:
                yield full_name


def _configs(document: Mapping[str, Any], path: tuple[str, ...]) -> list[object]:
    return as_list(_devices(document, path).get(path[-1]))


def _devices(document: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the object that contains the configurations and, in claims, the requests."""
    for name in path[:-1]:
        document = as_map(document.get(name))
    return document


def _parameters(config: object) -> object:
    return as_map(as_map(config).get("opaque")).get("parameters")
