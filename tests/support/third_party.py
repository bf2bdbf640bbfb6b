"""Providers as another package would register them."""

from collections.abc import Mapping

from tensorfusion_dra.driver.providers import ProviderKind, Providers, Registered
from tensorfusion_dra.extend import AttributeProvider


def registered(
    provider: object,
    name: str = "rack",
    kind: ProviderKind = ProviderKind.ATTRIBUTES,
    package: str = "example 1.0",
) -> Registered:
    return Registered(kind=kind, name=name, package=package, load=lambda: provider)


def attribute_providers(providers: Mapping[str, AttributeProvider]) -> Providers:
    """Return these providers, by name."""
    return Providers(registered(each, name) for name, each in providers.items())
