"""`inspect --providers`: who gives what, in what time, and what went wrong."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.guard import sitecustomize as path_guard
from tests.support.forks import ROOT, Ended
from tests.support.installed_packages import install

ATTRIBUTES = "tensorfusion_dra.attributes"
SOURCES = "tensorfusion_dra.health_sources"
CODE = """
import subprocess
from tensorfusion_dra.extend import Problem

def rack(gpu, node):
    return {"example.com/rack": "r1", "model": "mine"}

def other(gpu, node):
    return {"example.com/rack": "r2"}

def loud(gpu, node):
    print("a line of Python's")
    subprocess.run(["echo", "a line of a child's"], check=True)
    return {"example.com/rack": "r3"}

def fans(gpu):
    return [Problem(reason="fan-stopped", text="fan 2")] if gpu.index == 1 else []

def broken(gpu, node):
    raise ValueError("no rack of \\x1b[31m" + gpu.uuid)
"""


def inspected(site: Path, *arguments: str) -> Ended:
    """Run the command in a process of its own, which sees the packages in the folder."""
    folders = ["--kubelet-root", str(site / "kubelet"), "--cdi-dir", str(site / "cdi")]
    return subprocess.run(
        [
            *(sys.executable, "-m", "tensorfusion_dra", "inspect", "--providers"),
            *("--node-name", "node-01", "--simulated-gpus", "2xT4", *folders, *arguments),
        ],
        env=path_guard.environment({"PATH": "/usr/bin:/bin", "PYTHONPATH": str(site)}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def by_name(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in shown["providers"] if each["package"] != "this driver"}


def test_table_shows_state_time_and_names_of_each_provider(tmp_path: Path) -> None:
    install(tmp_path, "racks", {ATTRIBUTES: {"rack": "racks:rack"}}, CODE)

    shown = inspected(tmp_path)

    assert shown.returncode == 0, shown.stderr
    rows = [line.split() for line in shown.stdout.splitlines()]
    (rack,) = (row for row in rows if row[1:2] == ["rack"])
    assert rack[:5] == ["attributes", "rack", "racks", "1.0", "ok"]
    assert rack[-4:] == ["example.com/rack", "on", "2", "devices"]
    assert "left out: rack: gpu-" in shown.stdout
    assert "model: the driver itself uses this name" in shown.stdout


def test_json_says_who_failed_who_is_overridden_and_who_is_disabled(tmp_path: Path) -> None:
    entries = {
        name: f"racks:{function}"
        for name, function in {
            "alpha": "rack",
            "beta": "other",
            "broken": "broken",
            "off": "rack",
        }.items()
    }
    install(tmp_path, "racks", {ATTRIBUTES: entries}, CODE)

    shown = inspected(tmp_path, "-o", "json", "--disable-provider", "off,gone")

    assert shown.returncode == 1
    found = json.loads(shown.stdout)
    providers = by_name(found)
    states = {name: each["state"] for name, each in providers.items()}
    assert states == {"alpha": "ok", "beta": "ok", "broken": "failed", "off": "unused"}
    assert len(providers["alpha"]["given"]) == 2
    assert providers["alpha"]["seconds"] >= 0
    assert {
        each["reason"] for refused in providers["beta"]["refused"].values() for each in refused
    } == {"provider alpha gave this name first"}
    assert providers["off"]["reason"] == "disabled by the setting disable-provider"
    assert len(providers["broken"]["errors"]) == 2
    assert found["unknownDisabled"] == ["gone"]


def test_error_texts_have_no_escape_sequences_in_the_table(tmp_path: Path) -> None:
    install(tmp_path, "racks", {ATTRIBUTES: {"broken": "racks:broken"}}, CODE)

    shown = inspected(tmp_path)

    assert shown.returncode == 1
    assert "failed: broken: GPU-" in shown.stdout
    assert "\x1b" not in shown.stdout


def test_problems_of_a_health_source_are_shown(tmp_path: Path) -> None:
    install(tmp_path, "racks", {SOURCES: {"fans": "racks:fans"}}, CODE)

    shown = inspected(tmp_path)

    (fans,) = (line.split() for line in shown.stdout.splitlines() if " fans " in line)
    assert fans[-4:] == ["fan-stopped", "on", "1", "device"]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_what_a_provider_prints_is_not_in_the_document(tmp_path: Path, form: str) -> None:
    install(tmp_path, "racks", {ATTRIBUTES: {"loud": "racks:loud"}}, CODE)

    shown = inspected(tmp_path, "-o", form)

    (loud,) = by_name(yaml.safe_load(shown.stdout)).values()
    assert len(loud["given"]) == 2
    assert "a line of Python's" in shown.stderr
    assert "a line of a child's" in shown.stderr
