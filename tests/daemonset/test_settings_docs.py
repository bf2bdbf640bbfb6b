"""Documents, manifests and the chart agree with the settings."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from tensorfusion_dra.app.shared import setting_sources
from tensorfusion_dra.app.shared.node_settings import Settings
from tests.support import helm, installation
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


def test_settings_table_and_chart_schema_match_the_settings() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "hack" / "settings-docs"), "--check"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize("name", ["nvidia", "simulated"])
def test_every_variable_in_the_manifests_belongs_to_a_setting(name: str) -> None:
    known = {setting_sources.variable(item) for item in fields(Settings)}

    for container in helm.containers(installation.documents(name)):
        if container["name"] == "tenant-files":
            continue  # a script with variables of its own
        named = {entry["name"] for entry in container["env"]}
        assert {name for name in named if not name.startswith("NVIDIA_")} <= known


def test_chart_settings_never_duplicate_a_variable() -> None:
    settings = {"gpupool": "a", "qos": "high", "enforcer": "mps", "poll-seconds": 5}

    documents = helm.render({"settings": settings})

    for container in helm.containers(documents):
        given = [entry["name"] for entry in container["env"]]
        assert len(set(given)) == len(given)
