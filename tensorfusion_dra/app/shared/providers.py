"""Loader of attribute providers, which other packages declare as entry points."""

from collections.abc import Mapping
from importlib.metadata import entry_points

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.extend import AttributeProvider

log = structlog.get_logger()


def load() -> Mapping[str, AttributeProvider]:
    """Return the providers by entry point name; log and skip one that cannot be used."""
    providers: dict[str, AttributeProvider] = {}
    for entry in sorted(entry_points(group=names.ATTRIBUTE_PROVIDERS), key=lambda e: e.name):
        try:
            provider = entry.load()
        except Exception as error:  # noqa: BLE001 - foreign code; the driver works without it
            log.error("provider_skipped", provider=entry.name, error=repr(error))
            continue
        if not callable(provider):
            found = type(provider).__name__
            log.error(
                "provider_skipped",
                provider=entry.name,
                error=f"found {found}, expected a callable of (gpu, node)",
            )
            continue
        providers[entry.name] = provider
        log.info("provider_loaded", provider=entry.name)
    return providers
