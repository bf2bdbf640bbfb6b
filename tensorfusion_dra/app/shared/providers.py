"""Providers that are registered: the driver's own, and the entry points of installed packages.

Nothing is imported here: a provider is imported in its own thread before its first call.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import structlog

from tensorfusion_dra.app.shared import installed
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcers.kinds import KINDS
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.driver.providers.providers import OWN, Providers
from tensorfusion_dra.driver.providers.registered import Kind, Registered

log = structlog.get_logger()

GROUPS: Final[Mapping[Kind, str]] = {
    Kind.ATTRIBUTES: names.ATTRIBUTE_PROVIDERS,
    Kind.CAPACITIES: names.CAPACITY_PROVIDERS,
    Kind.HEALTH: names.HEALTH_SOURCES,
    Kind.ENFORCER: names.ENFORCERS,
}
DISABLED: Final = "disabled by the setting disable-provider"

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OWN_NAMES: Final = frozenset({each.name for each in OWN} | KINDS.keys())


def load(settings: Settings) -> Providers:
    """Return the node's providers; log those that other packages register in vain.

    Raises:
        InputError: The setting disable-provider names one of the driver's own.
    """
    every = registered(settings)
    for each in every:
        if each.unused and each.unused != DISABLED:
            log.error(
                "provider_skipped",
                kind=each.kind.value,
                provider=each.name,
                package=each.package,
                error=each.unused,
            )
    for name in unknown_names(settings, every):
        log.warning("disabled_provider_unknown", provider=name)
    return Providers(each for each in every if each.kind is not Kind.ENFORCER)


def registered(settings: Settings) -> Sequence[Registered]:
    """Return every registered provider in the order in which they give, the driver's own first.

    Raises:
        InputError: The setting disable-provider names one of the driver's own.
    """
    disabled = _disabled(settings)
    if own := sorted(disabled & _OWN_NAMES):
        raise InputError(
            f"disable-provider: found {own[0]}, which is the driver's own, expected names of "
            "providers in other packages"
        )
    return (*OWN, *_of_packages(disabled))


def unknown_names(settings: Settings, every: Sequence[Registered]) -> Sequence[str]:
    """Return the names in the setting disable-provider that no provider has."""
    return sorted(_disabled(settings) - {each.name for each in every})


def _disabled(settings: Settings) -> frozenset[str]:
    return frozenset(name for name in settings.disable_provider.split(",") if name)


def _of_packages(disabled: frozenset[str]) -> Iterator[Registered]:
    """Yield the providers of other packages by kind, then name, then package."""
    every = sorted(
        installed.entry_points(GROUPS.values()), key=lambda each: (each.entry.name, each.package)
    )
    for kind, group in GROUPS.items():
        taken: dict[str, str] = {}
        for each in every:
            name = each.entry.name
            if each.entry.group != group:
                continue
            yield Registered(
                kind=kind,
                name=name,
                package=each.package,
                load=each.entry.load,
                unused=_trouble(name, taken) or (DISABLED if name in disabled else ""),
            )
            taken.setdefault(name, each.package)


def _trouble(name: str, taken: Mapping[str, str]) -> str:
    """Return why an entry point with this name is not used; "" if it is."""
    if name in _OWN_NAMES:
        return f"name: found {name}, which is the driver's own, expected another one"
    if name in taken:
        return f"name: found {name}, which {taken[name]} has, expected another one"
    if _NAME.fullmatch(name) is None:
        return f"name: found {name[:80]!r}, expected lower-case letters, digits and dashes"
    return ""
