"""Sources of settings, the same for every verb: default < file < environment < flag."""

import re
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.discovery import yaml_file

BOOLEANS: Final = ("true", "false")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("json", "console")


def add_flags(
    parser: ArgumentParser, kind: type[Any], *, is_hidden: bool = False, own: Collection[str] = ()
) -> None:
    """Add one flag for each field of a settings class, and --config.

    Args:
        is_hidden: The help only says where they are, in the line of --config.
        own: Fields whose flags the verb has already.
    """
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file with the node plugin's settings; each is also a flag here: see "
        "docs/settings.md or tensorfusion-dra node-plugin --help."
        if is_hidden
        else "YAML file with settings by flag name.",
    )
    for item in (each for each in listed(kind) if each.name not in own):
        default = f" Default: {default_text(item)}." if item.default != "" else ""
        parser.add_argument(
            f"--{flag(item.name)}",
            metavar=item.name.rsplit("_", maxsplit=1)[-1].upper(),
            help=SUPPRESS
            if is_hidden
            else f"{item.metadata['about']}{default} Variable: {variable(item)}.",
        )


def values(kind: type[Any], flags: Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a settings class's fields from flags, environment and file.

    Fields that none of them sets are left out. An empty variable counts as not set.

    Raises:
        InputError: A setting is unknown or unreadable.
    """
    found: dict[str, Any] = {}
    config = flags.config or environment.get("TENSORFUSION_DRA_CONFIG")
    if config:
        found.update(_from_file(Path(config), kind))
    for item in fields(kind):
        if environment.get(variable(item)):
            found[item.name] = environment[variable(item)]
        if getattr(flags, item.name) is not None:
            found[item.name] = getattr(flags, item.name)
        if item.name in found and not isinstance(item.default, str):
            found[item.name] = _parsed(item.name, str(found[item.name]), type(item.default))
    return found


def listed(kind: type[Any]) -> "Sequence[Field[Any]]":
    """Return the fields of a settings class in the order of --help, those of its bases last."""
    return sorted(fields(kind), key=lambda item: item.name not in kind.__annotations__)


def default_text(item: "Field[Any]") -> str:
    """Return the default as it is written in the sources."""
    return str(item.default).lower() if isinstance(item.default, bool) else str(item.default)


def variable(item: "Field[Any]") -> str:
    """Return the environment variable of a setting."""
    return item.metadata["env"] or f"TENSORFUSION_DRA_{item.name.upper()}"


def flag(name: str) -> str:
    """Return the flag of a field, without the leading dashes."""
    return name.replace("_", "-")


def check(settings: Any) -> None:
    """Check each value by what its field says of it.

    Raises:
        InputError: One is not as expected.
    """
    for item in fields(settings):
        value, rule = getattr(settings, item.name), item.metadata
        expected = ""
        if rule["choices"] and value not in rule["choices"]:
            expected = f"one of {', '.join(rule['choices'])}"
        elif rule["form"] and re.fullmatch(rule["form"][0], value) is None:
            expected = rule["form"][1]
        elif rule["is_path"] and (value or item.default) and not Path(value).is_absolute():
            expected = "an absolute path"
        elif rule["span"] and not rule["span"][0] <= value <= rule["span"][1]:
            least, most = rule["span"]
            raise InputError(f"{flag(item.name)}: found {value}, expected {least} to {most}")
        if expected:
            raise InputError(f"{flag(item.name)}: found {value!r}, expected {expected}")


def _from_file(path: Path, kind: type[Any]) -> dict[str, Any]:
    try:
        loaded = yaml_file.content(path)
    except InputError as error:
        raise InputError(f"config {error}") from error
    if not isinstance(loaded, dict):
        raise InputError(f"config {path}: found {type(loaded).__name__}, expected a mapping")
    known = {flag(item.name): item.name for item in fields(kind)}
    found = {}
    for key, value in loaded.items():
        if key not in known:
            raise InputError(
                f"config {path}: found {yaml_file.shown(key)}, expected the name of a setting "
                "(--help lists them)"
            )
        if not isinstance(value, str | int | float):
            raise InputError(
                f"config {path}: {key}: found {yaml_file.shown(value)}, expected text or a number"
            )
        found[known[key]] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _parsed(name: str, value: str, kind: type[Any]) -> Any:
    if kind is bool:
        if value not in BOOLEANS:
            raise InputError(
                f"{flag(name)}: found {value!r}, expected one of {', '.join(BOOLEANS)}"
            )
        return value == "true"
    try:
        return kind(value)
    except ValueError as error:
        raise InputError(
            f"{flag(name)}: found {value!r}, expected a {'whole ' if kind is int else ''}number"
        ) from error
