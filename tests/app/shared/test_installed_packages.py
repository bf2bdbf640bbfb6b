"""Providers and enforcers of installed packages: which are used, in which order, and which not."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.shared import node_parts, providers
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.app.webhook.settings import WebhookSettings
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims.verdicts import State
from tensorfusion_dra.core.devices.device import Reading
from tensorfusion_dra.core.devices.gpu import Inventory, Isolation
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.driver.providers import Registered
from tensorfusion_dra.enforcers import registered as registered_enforcers
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpus
from tests.support.installed_packages import install
from tests.support.logs import capture_logs
from tests.support.node_plugin_process import cluster_with, log_lines, run_pod, start

ATTRIBUTES, CAPACITIES = names.ATTRIBUTE_PROVIDERS, names.CAPACITY_PROVIDERS
READING = Reading(inventory=Inventory(gpus=gpus(1)), node=NODE)
RACK = "def rack(gpu, node):\n    return {'example.com/rack': __name__}\n"
ENFORCERS = """
from tensorfusion_dra.extend import EnforcerFacts
from tests.support.another_enforcer import Another, variant

Hard = variant(facts=EnforcerFacts(enforces_hard=True))
"""
NAMES_NO_PLACE = """
from tests.support.another_enforcer import Another

built = []

class Placeless(Another):
    def __init__(self, settings):
        super().__init__(settings)
        built.append(self)

    def judge(self, claim, shares, others, *, is_new):
        raise LookupError("no place for " + claim.ref.name)
"""

HANGING = """
import threading

def forever(*_):
    threading.Event().wait()

if __name__ == "hang_import":
    forever()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def settings(**values: Any) -> Settings:
    return Settings(node_name="node-01", **values)


def registered(*, disable_provider: str = "") -> Sequence[Registered]:
    return providers.registered(settings(disable_provider=disable_provider))


def test_providers_are_ordered_and_the_first_package_gets_a_name_if_it_is_not_disabled(
    site: Path,
) -> None:
    install(site, "zeta", {ATTRIBUTES: {"alpha": "zeta:rack", "rack": "zeta:rack"}})
    install(site, "eta", {ATTRIBUTES: {"rack": "eta:rack"}, CAPACITIES: {"beta": "eta:slots"}})

    found = registered(disable_provider="alpha,other")

    assert [(each.kind.value, each.name, each.package) for each in found] == [
        ("attributes", "alpha", "zeta 1.0"),
        ("attributes", "rack", "eta 1.0"),
        ("attributes", "rack", "zeta 1.0"),
        ("capacities", "beta", "eta 1.0"),
    ]
    disabled, first, second, other = (each.unused for each in found)
    assert (disabled, first, other) == (providers.DISABLED, "", "")
    assert "which eta 1.0 has" in second
    with pytest.raises(InputError, match="disable-provider: found nvml"):
        providers.load(settings(disable_provider="nvml"))


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


@pytest.mark.parametrize(
    ("enforcer", "expected"),
    [
        ("auto", ["enforcer: theirs,auto"]),
        ("mps", []),  # the administrator has decided
        ("theirs,auto", []),
        ("theirs", []),
    ],
)
def test_installed_enforcer_that_no_setting_names_is_said_to_be_unused(
    site: Path, enforcer: str, expected: list[str]
) -> None:
    install(site, "theirs-package", {names.ENFORCERS: {"theirs": "theirs_package:Theirs"}})

    with capture_logs() as logs:
        providers.load(settings(enforcer=enforcer))

    said = [line for line in logs if line["event"] == "enforcer_not_used"]
    assert [(line["provider"], line["expected"]) for line in said] == [
        ("theirs", each) for each in expected
    ]


def test_unknown_name_in_the_setting_is_a_warning() -> None:
    """It is no error: the package may be gone from the image, which is what the setting wants."""
    with capture_logs() as logs:
        providers.load(settings(disable_provider="rack"))

    assert [(line["event"], line["provider"]) for line in logs] == [
        ("disabled_provider_unknown", "rack")
    ]


def test_installed_enforcer_is_imported_if_its_name_is_chosen_unless_that_is_an_own_one(
    site: Path,
) -> None:
    entries = {"another": "another_one:Another", "mps": "another_one:Another"}
    install(site, "another-one", {names.ENFORCERS: entries}, ENFORCERS)

    built = node_parts.enforcers(settings(enforcer="mps"))
    assert type(built["mps"]).__name__ == "Mps"
    assert built["another"].claims_root
    assert "another_one" not in sys.modules
    enforcer = node_parts.candidates(settings(enforcer="another"))["another"]
    root = "/run/tensor-fusion/another/claims"
    assert (enforcer.name, enforcer.claims_root) == ("another", root)
    with pytest.raises(
        InputError, match=f"expected one of {', '.join(registered_enforcers.OWN)}, another"
    ):
        settings(enforcer="anotherr")


def test_disabled_enforcer_is_an_error_at_the_start(site: Path) -> None:
    install(site, "another-one", {names.ENFORCERS: {"another": "another_one:Another"}}, ENFORCERS)

    with pytest.raises(InputError, match="which disable-provider turns off"):
        node_parts.candidates(settings(enforcer="another", disable_provider="another"))


@pytest.mark.parametrize("code", ["import sys; sys.exit(0)", "raise RuntimeError", "x = ", "x = 1"])
def test_module_that_cannot_be_imported_is_an_error_in_node_plugin_and_webhook(
    site: Path, code: str
) -> None:
    install(site, "broken-import", {names.ENFORCERS: {"another": "broken_import:Another"}}, code)

    with pytest.raises(InputError, match="enforcer: another: "):
        node_parts.candidates(settings(enforcer="another"))["another"]
    with pytest.raises(InputError, match="enforcer: another: "):
        registered_enforcers.kind("another")


def test_webhook_knows_whether_it_brings_a_limiter(site: Path) -> None:
    install(site, "hard-one", {names.ENFORCERS: {"another": "hard_one:Hard"}}, ENFORCERS)

    assert WebhookSettings(enforcer="another").enforcer == "another"
    facts = registered_enforcers.kind("another").facts
    assert (facts.enforces_hard, facts.expands_memory) == (True, False)


def test_enforcer_that_can_name_no_place_leaves_the_limits_unknown(site: Path) -> None:
    install(site, "lost-one", {names.ENFORCERS: {"another": "lost_one:Placeless"}}, NAMES_NO_PLACE)
    chosen = Settings(node_name="node-01", enforcer="another", tensor_fusion_root="/nowhere/tf")
    claim = enforcer_rules.example("another", Isolation.SOFT)

    ((found,),) = node_parts.verdicts_now(chosen, [claim])

    assert (found.state, found.reason) == (State.UNKNOWN, "SignsUnreadable")
    assert len(sys.modules["lost_one"].built) == 1


@pytest.mark.process
def test_hanging_providers_delay_nothing_but_what_they_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = (ATTRIBUTES, CAPACITIES, names.HEALTH_SOURCES)
    entries = {kind: {"hangs": "hang_calls:forever"} for kind in kinds}
    install(tmp_path, "hang-calls", entries, HANGING)
    install(tmp_path, "hang-import", {ATTRIBUTES: {"h": "hang_import:f"}}, HANGING)
    monkeypatch.setattr(plugin_process, "spawn", plugin_process.spawn_command)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with cluster_with() as cluster:
        start(cluster)
        run_pod(cluster, "a")
        late = log_lines(cluster, "provider_failed")
        assert cluster.stop_plugin() == 0

    assert sorted((line["kind"], line["provider"]) for line in late) == [
        ("attributes", "h"),
        ("attributes", "hangs"),
        ("capacities", "hangs"),
        ("health", "hangs"),
    ]
    error = "no answer within 2 s; the last good answers remain in use"
    assert {line["error"] for line in late} == {error}
