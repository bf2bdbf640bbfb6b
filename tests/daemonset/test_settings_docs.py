"""What is written down about the settings follows from them."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from tensorfusion_dra.app.shared import setting_sources
from tensorfusion_dra.app.shared.node_settings import Settings
from tests.support import chart, kustomize
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


def test_the_readmes_table_and_the_charts_schema_are_as_the_settings_are() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "hack" / "settings-docs"), "--check"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize("overlay", ["nvidia", "simulated"])
def test_every_variable_in_the_manifests_is_one_of_a_setting(overlay: str) -> None:
    known = {setting_sources.variable(item) for item in fields(Settings)}
    documents = kustomize.render(ROOT / "daemonset" / "overlays" / overlay)

    for container in kustomize.containers(documents):
        named = {entry["name"] for entry in container["env"]}
        assert {name for name in named if not name.startswith("NVIDIA_")} <= known


def test_no_variable_is_given_twice_whatever_the_chart_is_told() -> None:
    settings = {"gpupool": "a", "qos": "high", "enforcer": "mps", "poll-seconds": 5}

    documents = chart.render(ROOT / "daemonset" / "chart", {"settings": settings})

    for container in kustomize.containers(documents):
        given = [entry["name"] for entry in container["env"]]
        assert len(set(given)) == len(given)
