"""Enforcers of installed packages, chosen by the setting `enforcer`."""

import sys
from pathlib import Path

import pytest

from tensorfusion_dra.app.shared import enforcer_kinds, node_parts
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.webhook.settings import WebhookSettings
from tensorfusion_dra.core.claims.verdicts import State
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import InputError
from tests.support.installed_packages import install

GROUP = "tensorfusion_dra.enforcers"
CODE = """
from tests.support.another_enforcer import Another, variant

Hard = variant(enforces_hard=True)
"""
NAMES_NO_PLACE = """
from tests.support.another_enforcer import Another

built = []

class Placeless(Another):
    def __init__(self, settings):
        super().__init__(settings)
        built.append(self)

    def places(self, claim):
        raise LookupError("no place for " + claim.ref.name)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def settings(*, enforcer: str = "another", disable_provider: str = "") -> Settings:
    return Settings(node_name="node-01", enforcer=enforcer, disable_provider=disable_provider)


def test_name_of_an_installed_enforcer_is_accepted(site: Path) -> None:
    install(site, "another-one", {GROUP: {"another": "another_one:Another"}}, CODE)

    enforcer = node_parts.chosen_enforcer(settings())

    assert enforcer.name == "another"
    assert enforcer.claims_root == "/run/tensor-fusion/another/claims"


def test_unknown_name_is_an_error_that_lists_all(site: Path) -> None:
    install(site, "another-one", {GROUP: {"another": "another_one:Another"}}, CODE)

    with pytest.raises(InputError, match="tensor-fusion, hami-core, mps, another"):
        settings(enforcer="anotherr")


def test_enforcer_that_is_not_chosen_is_not_imported(site: Path) -> None:
    install(site, "idle-one", {GROUP: {"another": "idle_one:Another"}}, CODE)

    built = node_parts.enforcers(settings(enforcer="mps"))

    assert built["another"].claims_root
    assert "idle_one" not in sys.modules


def test_package_cannot_take_the_name_of_an_own_enforcer(site: Path) -> None:
    install(site, "evil", {GROUP: {"mps": "evil:Another"}}, CODE)

    assert type(node_parts.chosen_enforcer(settings(enforcer="mps"))).__name__ == "Mps"


def test_broken_or_disabled_enforcer_is_an_error_at_the_start(site: Path) -> None:
    install(site, "broken-one", {GROUP: {"another": "broken_one:Missing"}}, CODE)

    with pytest.raises(InputError, match="enforcer: another: "):
        node_parts.chosen_enforcer(settings())
    with pytest.raises(InputError, match="which disable-provider turns off"):
        node_parts.chosen_enforcer(settings(disable_provider="another"))


@pytest.mark.parametrize("code", ["import sys; sys.exit(0)", "raise RuntimeError", "x = "])
def test_module_that_cannot_be_imported_is_an_error_in_node_plugin_and_webhook(
    site: Path, code: str
) -> None:
    install(site, "broken-import", {GROUP: {"another": "broken_import:Another"}}, code)

    with pytest.raises(InputError, match="enforcer: another: "):
        node_parts.chosen_enforcer(settings())
    with pytest.raises(InputError, match="enforcer: another: "):
        enforcer_kinds.enforces_hard("another")


def test_webhook_knows_whether_it_brings_a_limiter(site: Path) -> None:
    entries = {"another": "hard_one:Hard"}
    install(site, "hard-one", {GROUP: entries}, CODE)

    assert WebhookSettings(enforcer="another").enforcer == "another"
    assert enforcer_kinds.enforces_hard("another")
    assert not enforcer_kinds.expands_memory("another")


def test_enforcer_that_can_name_no_place_leaves_the_limits_unknown(site: Path) -> None:
    install(site, "lost-one", {GROUP: {"another": "lost_one:Placeless"}}, NAMES_NO_PLACE)
    chosen = Settings(node_name="node-01", enforcer="another", tensor_fusion_root="/nowhere/tf")
    claim = node_parts.example_claim(chosen, isolation=Isolation.SOFT)

    ((found,),) = node_parts.verdicts_now(chosen, [claim])

    assert (found.state, found.reason) == (State.UNKNOWN, "NoSigns")
    assert len(sys.modules["lost_one"].built) == 1
