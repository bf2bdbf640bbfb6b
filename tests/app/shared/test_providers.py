"""Which providers are registered, in which order, and which of them are not used."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.app.shared import providers
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core.devices.device import Reading
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.driver.providers import Registered
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpus
from tests.support.installed_packages import install

ATTRIBUTES = "tensorfusion_dra.attributes"
CAPACITIES = "tensorfusion_dra.capacities"
READING = Reading(inventory=Inventory(gpus=gpus(1)), node=NODE)
RACK = "def rack(gpu, node):\n    return {'example.com/rack': __name__}\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def settings(*, disable_provider: str = "") -> Settings:
    return Settings(node_name="node-01", disable_provider=disable_provider)


def registered(*, disable_provider: str = "") -> Sequence[Registered]:
    return providers.registered(settings(disable_provider=disable_provider))


def names() -> list[tuple[str, str, str]]:
    return [(each.kind.value, each.name, each.package) for each in registered()]


def test_providers_are_ordered_by_kind_then_name(site: Path) -> None:
    install(site, "zeta", {ATTRIBUTES: {"alpha": "zeta:rack"}})
    install(site, "eta", {ATTRIBUTES: {"beta": "eta:rack"}, CAPACITIES: {"beta": "eta:slots"}})

    assert names() == [
        ("attributes", "alpha", "zeta 1.0"),
        ("attributes", "beta", "eta 1.0"),
        ("capacities", "beta", "eta 1.0"),
    ]


def test_nothing_is_imported_before_the_first_call(site: Path) -> None:
    install(site, "rack-lazily", {ATTRIBUTES: {"rack": "rack_lazily:rack"}}, RACK)

    loaded = providers.load(settings())
    imported_before = "rack_lazily" in sys.modules
    (device,) = loaded.extended(published_devices(*gpus(1)), READING)

    assert not imported_before
    assert device.attributes["example.com/rack"] == "rack_lazily"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("driver", "which is the driver's own"),
        ("nvml", "which is the driver's own"),
        ("mps", "which is the driver's own"),
        ("Rack", "expected lower-case letters, digits and dashes"),
        ("r" * 64, "expected lower-case letters, digits and dashes"),
    ],
)
def test_forbidden_name_is_logged_and_not_used(site: Path, name: str, why: str) -> None:
    install(site, "odd", {ATTRIBUTES: {name: "odd:rack"}})

    with capture_logs() as logs:
        providers.load(settings())

    assert why in registered()[-1].unused
    assert [line["event"] for line in logs] == ["provider_skipped"]


def test_first_package_by_name_gets_a_name_that_two_register(site: Path) -> None:
    install(site, "zeta", {ATTRIBUTES: {"rack": "zeta:rack"}})
    install(site, "eta", {ATTRIBUTES: {"rack": "eta:rack"}})

    first, second = registered()

    assert (first.package, first.unused) == ("eta 1.0", "")
    assert "which eta 1.0 has" in second.unused


def test_disabled_provider_is_registered_and_not_used(site: Path) -> None:
    install(site, "eta", {ATTRIBUTES: {"rack": "eta:rack", "row": "eta:rack"}})

    rack, row = registered(disable_provider="rack,other")

    assert (rack.unused, row.unused) == (providers.DISABLED, "")


def test_unknown_name_in_the_setting_is_a_warning() -> None:
    """It is no error: the package may be gone from the image, which is what the setting wants."""
    with capture_logs() as logs:
        providers.load(settings(disable_provider="rack"))

    assert [(line["event"], line["provider"]) for line in logs] == [
        ("disabled_provider_unknown", "rack")
    ]


@pytest.mark.parametrize("name", ["driver", "nvml", "tensor-fusion"])
def test_own_provider_cannot_be_disabled(name: str) -> None:
    with pytest.raises(InputError, match=f"disable-provider: found {name}"):
        providers.load(settings(disable_provider=name))


@pytest.mark.parametrize("value", ["rack;row", "rack,", "Rack", "a b"])
def test_setting_is_a_list_of_names(value: str) -> None:
    with pytest.raises(InputError, match="disable-provider"):
        settings(disable_provider=value)


def test_package_that_is_installed_twice_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path / "later", tmp_path / "first"):
        folder.mkdir()
        install(folder, "eta", {ATTRIBUTES: {"rack": f"eta:{folder.name}"}})
        monkeypatch.syspath_prepend(folder)

    (rack,) = registered()

    assert (rack.name, rack.package, rack.unused) == ("rack", "eta 1.0", "")
