"""The examples of providers: packages of others, which are installed beside the driver."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_simulator.rest import NODES
from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tests.app.node_plugin.test_node_plugin_process import cluster_with, start
from tests.discovery.nvml import nvml_machine
from tests.discovery.nvml.nvml_machine import card, uuid
from tests.examples.conftest import EXAMPLES
from tests.support import wheels
from tests.support.forks import ROOT

pytestmark = pytest.mark.sweep

ISLAND = "example.com/nvlink_island"


@pytest.mark.parametrize("name", EXAMPLES)
def test_own_tests_of_an_example_pass(name: str, site: Path) -> None:
    folder = ROOT / "hack" / "examples" / name

    ended = wheels.python(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests"),
        home=site,
        folder=folder,
        path=str(ROOT),
    )

    assert " passed" in ended.stdout


def link(other: str, *, active: int = 1, kind: int = 0) -> str:
    """Return the answer for a link: to a GPU (kind 0) or an NVSwitch (kind 2)."""
    return f"{active} {kind} {other}"


def islands(site: Path, folder: Path, *cards: Mapping[str, str]) -> list[str]:
    """Return the island of each card, as the driver would publish it."""
    library = nvml_machine.build(folder / "nvml")
    answers = folder / "answers"
    answers.write_text(nvml_machine.answers(*cards))
    script = (
        "import os, sys; os.environ['STAND_IN_GPUS'] = sys.argv.pop(1);"
        "from tensorfusion_dra import cli; sys.exit(cli.main())"
    )
    flags = ["--node-name", "node-01", "--nvml-library", str(library), "-o", "json"]
    folders = ["--kubelet-root", str(folder / "kubelet"), "--cdi-dir", str(folder / "cdi")]
    hidden = ["--disable-provider", "rack-label", "--enforcer", "none"]  # which reads no file
    ended = wheels.python(
        *("-c", script, str(answers), "inspect", *flags, *folders, *hidden),
        home=folder,
        path=f"{site}:{ROOT}",
    )
    return [each["attributes"][ISLAND]["string"] for each in json.loads(ended.stdout)["devices"]]


def test_cards_that_nvlink_connects_have_one_island(site: Path, tmp_path: Path) -> None:
    bus = [card(index)["pci"] for index in range(4)]

    found = islands(
        site,
        tmp_path,
        card(0),
        card(1, nvlink0=link(bus[2]), nvlink1=link(bus[2])),
        card(2, nvlink0=link(bus[1]), nvlink3=link(bus[3])),
        card(3, nvlink5=link(bus[2])),
    )

    assert found == [uuid(0), uuid(1), uuid(1), uuid(1)]


def test_inactive_links_connect_nothing_and_switches_connect_all(
    site: Path, tmp_path: Path
) -> None:
    bus = card(0)["pci"]

    found = islands(
        site,
        tmp_path,
        card(0, nvlink0="!3"),
        card(1, nvlink0=link(bus, active=0)),
        card(2, nvlink0=link("00000000:C1:00.0", kind=2)),
        card(3, nvlink7=link("00000000:C2:00.0", kind=2)),
    )

    assert found == [uuid(0), uuid(1), uuid(2), uuid(2)]


@pytest.fixture
def cluster(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCluster]:
    """Yield a cluster whose node plugin is a process of its own that sees the packages."""
    with cluster_with() as running:
        monkeypatch.setattr(plugin_process, "spawn", plugin_process.spawn_command)
        monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
        monkeypatch.setenv("RACK_LABEL_API", running.server.url)
        yield running


def published(cluster: SimulatedCluster, name: str) -> list[Any]:
    """Return an attribute of each published device; None where it is missing."""
    devices = [device for item in cluster.slices() for device in item["spec"]["devices"]]
    return [(device["attributes"].get(name) or {}).get("string") for device in devices]


def test_rack_of_the_node_is_in_its_slice(cluster: SimulatedCluster) -> None:
    node = dict(cluster.client.get(NODES, "node-01"))
    labels = {**node["metadata"].get("labels", {}), "topology.example.com/rack": "r12"}
    cluster.client.replace(NODES, {**node, "metadata": {**node["metadata"], "labels": labels}})

    start(cluster)

    assert published(cluster, "example.com/rack") == ["r12", "r12"]
    assert set(published(cluster, ISLAND)) != {None}
