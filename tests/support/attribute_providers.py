"""Attribute providers as another package would register them."""

from collections.abc import Mapping

from tensorfusion_dra.driver.providers.providers import OWN, Providers
from tensorfusion_dra.driver.providers.registered import Kind, Registered
from tensorfusion_dra.extend import AttributeProvider


def registered(name: str, provider: AttributeProvider) -> Registered:
    return Registered(kind=Kind.ATTRIBUTES, name=name, package="example 1.0", load=lambda: provider)


def beside_own(providers: Mapping[str, AttributeProvider]) -> Providers:
    """Return the driver's own providers and these, by name."""
    return Providers([*OWN, *(registered(name, each) for name, each in providers.items())])
