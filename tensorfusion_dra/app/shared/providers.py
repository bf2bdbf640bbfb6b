"""Providers and enforcers that packages beside the driver register, by their entry points.

Nothing is imported here: a provider is imported in its own thread before its first call.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Final

import structlog

from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.driver.providers import ProviderKind, Providers, Registered
from tensorfusion_dra.enforcers.registered import AUTO, OWN

log = structlog.get_logger()

GROUPS: Final[Mapping[ProviderKind, str]] = {
    ProviderKind.ATTRIBUTES: names.ATTRIBUTE_PROVIDERS,
    ProviderKind.CAPACITIES: names.CAPACITY_PROVIDERS,
    ProviderKind.HEALTH: names.HEALTH_SOURCES,
    ProviderKind.ENFORCER: names.ENFORCERS,
}
DISABLED: Final = "disabled by the setting disable-provider"
OWN_NAMES: Final = frozenset({"driver", "nvml", AUTO, *OWN})
"""Names of the driver's own, which no package can take."""


def load(settings: Settings, wake: Callable[[], None] = lambda: None) -> Providers:
    """Return the node's providers; log those that packages register in vain.

    Args:
        wake: Has the cards read soon; called when a provider has news.

    Raises:
        InputError: The setting disable-provider names one of the driver's own.
    """
    every = registered(settings)
    for each in every:
        if each.unused and each.unused != DISABLED:
            log.error("provider_skipped", **each.log_fields, error=each.unused)
        elif (
            each.kind is ProviderKind.ENFORCER
            and settings.enforcer == AUTO
            and not settings.simulated_gpus
        ):
            expected = f"enforcer: {each.name},{settings.enforcer}"
            log.warning("enforcer_not_used", **each.log_fields, expected=expected)
    for name in unknown_names(settings, every):
        log.warning("disabled_provider_unknown", provider=name)
    return Providers((each for each in every if each.kind is not ProviderKind.ENFORCER), wake=wake)


def registered(settings: Settings) -> Sequence[Registered]:
    """Return every registered provider by kind, then name, then package.

    Raises:
        InputError: The setting disable-provider names one of the driver's own.
    """
    disabled = _disabled(settings)
    if own := sorted(disabled & OWN_NAMES):
        raise InputError(
            f"disable-provider: found {own[0]}, which is the driver's own, expected names of "
            "providers in other packages"
        )
    return tuple(each for kind in GROUPS for each in _of_kind(kind, disabled))


def unknown_names(settings: Settings, every: Sequence[Registered]) -> Sequence[str]:
    """Return the names in the setting disable-provider that no provider has."""
    return sorted(_disabled(settings) - {each.name for each in every})


def _disabled(settings: Settings) -> frozenset[str]:
    return frozenset(name for name in settings.disable_provider.split(",") if name)


def _of_kind(kind: ProviderKind, disabled: frozenset[str]) -> Iterator[Registered]:
    found = [
        (entry.name, f"{entry.dist.name} {entry.dist.version}" if entry.dist else "", entry)
        for entry in entry_points(group=GROUPS[kind])
    ]
    taken: dict[str, str] = {}
    for name, package, entry in sorted(found, key=lambda each: each[:2]):
        yield Registered(
            kind=kind,
            name=name,
            package=package,
            load=entry.load,
            unused=_why_unused(name, taken) or (DISABLED if name in disabled else ""),
        )
        taken.setdefault(name, package)


def _why_unused(name: str, taken: Mapping[str, str]) -> str:
    """Return why an entry point with this name is not used; "" if it is."""
    if name in OWN_NAMES:
        return f"name: found {name}, which is the driver's own, expected another one"
    if name in taken:
        return f"name: found {name}, which {taken[name]} has, expected another one"
    if any(name_rules.label("name", name)):
        return f"name: found {name[:80]!r}, expected lower-case letters, digits and dashes"
    return ""
