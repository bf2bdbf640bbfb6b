"""Checks the opaque parameters for this driver where they are written: at admission."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core import names, share_parameters
from tensorfusion_dra.core.field_errors import FieldError, Reason
from tensorfusion_dra.core.shapes import as_list, as_map
from tensorfusion_dra.core.share_parameters import ParameterError

CLASS: Final = "DeviceClass"
CONFIG_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    CLASS: ("spec", "config"),
    "ResourceClaim": ("spec", "devices", "config"),
    "ResourceClaimTemplate": ("spec", "spec", "devices", "config"),
}
"""Where each kind has its configurations."""


def errors(kind: str, found: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """What is wrong with the parameters in an object.

    Args:
        kind: One of CONFIG_PATHS.
        old: What is replaced; empty for a new object. What stands there already passes, or nobody
            could change anything else in the object.
    """
    path = CONFIG_PATHS[kind]
    held = [_parameters(config) for config in _configs(old, path)]
    for index, config in enumerate(_configs(found, path)):
        opaque = as_map(as_map(config).get("opaque"))
        if opaque.get("driver") != names.DRIVER or _parameters(config) in held:
            continue
        where = f"{'.'.join(path)}[{index}].opaque.parameters"
        try:
            share_parameters.parse(opaque.get("parameters"), trusted=kind == CLASS)
        except ParameterError as error:
            for text in error.errors:
                field, _, complaint = text.partition(": ")
                inner = "" if field == "parameters" else f".{field}"
                yield FieldError(f"{where}{inner}", Reason.INVALID, complaint)


def _configs(document: Mapping[str, Any], path: tuple[str, ...]) -> list[object]:
    *folders, last = path
    for name in folders:
        document = as_map(document.get(name))
    return as_list(document.get(last))


def _parameters(config: object) -> object:
    return as_map(as_map(config).get("opaque")).get("parameters")
