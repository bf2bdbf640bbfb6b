"""Checks of the providers of other packages, which are called once."""

from pathlib import Path

import pytest

from tensorfusion_dra.app.doctor import gpus
from tensorfusion_dra.core.doctor.finding import Finding, Level
from tests.app.doctor.here import context
from tests.support.installed_packages import install

ATTRIBUTES = "tensorfusion_dra.attributes"
CODE = """
def fine(gpu, node):
    return {"example.com/rack": "r1"}

def broken(gpu, node):
    raise ValueError("no rack")

def greedy(gpu, node):
    return {"model": "mine"}
"""


def findings(folder: Path, *, disable_provider: str = "") -> dict[str, Finding]:
    """Return the findings about providers by the name of their entry point."""
    found = gpus.cards(context(folder, disable_provider=disable_provider))
    return {each.subject.split()[1]: each for each in found if each.subject.startswith("provider")}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_without_packages_there_is_no_finding(tmp_path: Path) -> None:
    assert findings(tmp_path) == {}


def test_each_provider_of_a_package_has_a_finding(site: Path) -> None:
    entries = {"fine": "examined:fine", "broken": "examined:broken", "greedy": "examined:greedy"}
    install(site, "examined", {ATTRIBUTES: {**entries, "mps": "examined:fine"}}, CODE)

    found = findings(site)

    assert {name: each.level for name, each in found.items()} == {
        "fine": Level.OK,
        "broken": Level.WARNING,
        "greedy": Level.WARNING,
        "mps": Level.WARNING,
    }
    assert found["fine"].subject == "provider fine (attributes, examined 1.0)"
    assert found["fine"].found == "gives example.com/rack"
    assert found["broken"].found == "ValueError('no rack')"
    assert found["greedy"].found == "left out: model: the driver itself uses this name"
    assert "which is the driver's own" in found["mps"].found


def test_disabled_provider_is_no_finding(site: Path) -> None:
    install(site, "switched", {ATTRIBUTES: {"broken": "switched:broken"}}, CODE)

    assert findings(site, disable_provider="broken") == {}
