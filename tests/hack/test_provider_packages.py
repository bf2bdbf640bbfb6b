"""Packages of others beside the driver: the examples, and those that hack/new-provider makes."""

import json
import runpy
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_simulator.rest import NODES
from tensorfusion_dra.app.shared.providers import OWN_NAMES
from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tests.discovery.nvml import nvml_machine
from tests.discovery.nvml.nvml_machine import card, uuid
from tests.support import wheels
from tests.support.forks import ROOT
from tests.support.node_plugin_process import cluster_with, start

CAPACITY = "example.com/fan_capacities"
ISLAND = "example.com/nvlink_island"
EXAMPLES = ("nvlink-island", "rack-label")
KINDS = ("attributes", "capacities", "health", "enforcer")
PACKAGES = (*EXAMPLES, *(f"fan-{kind}" for kind in KINDS))

new_provider: Callable[[list[str]], int] = runpy.run_path(str(ROOT / "hack/new-provider"))["main"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the examples, make a package of each kind, and install all of them below `site`."""
    folder = tmp_path_factory.mktemp("packages")
    for name in EXAMPLES:
        shutil.copytree(ROOT / "hack/examples" / name, folder / name)
    for kind in KINDS:
        assert new_provider([f"fan-{kind}", "--kind", kind, "--into", str(folder)]) == 0
    for name in PACKAGES:
        wheels.install(folder / name, folder / "site")
    return folder


@pytest.mark.sweep
@pytest.mark.parametrize("name", PACKAGES)
def test_package_passes_its_own_tests_as_it_is(name: str, folder: Path) -> None:
    ended = wheels.python(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        home=folder,
        folder=folder / name,
        path=str(ROOT),
    )

    assert " passed" in ended.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_template_is_left(kind: str, tmp_path: Path) -> None:
    assert new_provider(["fan-speed", "--kind", kind, "--into", str(tmp_path)]) == 0

    texts = [path.read_text() for path in (tmp_path / "fan-speed").rglob("*") if path.is_file()]
    words = ("example-provider", "example_provider", "EXAMPLE", "GROUP", "ENTRY", "KIND")
    assert len(texts) == 4
    assert [word for word in words for text in texts if word in text] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Fan", "expected lower-case letters, digits and single dashes"),
        ("fan_speed", "expected lower-case letters, digits and single dashes"),
        ("../fan", "expected lower-case letters, digits and single dashes"),
        ("f" * 33, "at most 32"),
        *((name, "which is a provider of the driver itself") for name in sorted(OWN_NAMES)),
        ("class", "which is a word or a module of Python"),
        ("json", "which is a word or a module of Python"),
        ("tensorfusion-dra", "which is a module already"),
        ("fan-speed", "expected a new folder"),
    ],
)
def test_name_that_cannot_work_is_refused(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fan-speed").mkdir()

    assert new_provider([name, "--into", str(tmp_path)]) == 2

    assert text in capsys.readouterr().err
    assert [*tmp_path.rglob("*")] == [tmp_path / "fan-speed"]


BUS = [card(index)["pci"] for index in range(4)]


def link(other: str, *, active: int = 1, kind: int = 0) -> str:
    """Return the answer for a link: to a GPU (kind 0) or an NVSwitch (kind 2)."""
    return f"{active} {kind} {other}"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("cards", "islands"),
    [
        (
            (
                card(0),
                card(1, nvlink0=link(BUS[2]), nvlink1=link(BUS[2])),
                card(2, nvlink0=link(BUS[1]), nvlink3=link(BUS[3])),
                card(3, nvlink5=link(BUS[2])),
            ),
            [0, 1, 1, 1],
        ),
        (
            (
                card(0, nvlink0="!3"),
                card(1, nvlink0=link(BUS[0], active=0)),
                card(2, nvlink0=link("00000000:C1:00.0", kind=2)),
                card(3, nvlink7=link("00000000:C2:00.0", kind=2)),
            ),
            [0, 1, 2, 2],
        ),
    ],
    ids=["links", "inactive links, and switches"],
)
def test_cards_that_nvlink_connects_have_one_island(
    folder: Path, tmp_path: Path, cards: tuple[Mapping[str, str], ...], islands: list[int]
) -> None:
    answers = tmp_path / "answers"
    answers.write_text(nvml_machine.answers(*cards))
    script = (
        "import os, sys; os.environ['STAND_IN_GPUS'] = sys.argv.pop(1);"
        "from tensorfusion_dra import cli; sys.exit(cli.main())"
    )

    ended = wheels.python(
        *("-c", script, str(answers), "inspect", "-o", "json", "--node-name", "node-01"),
        *("--nvml-library", str(nvml_machine.build(tmp_path / "nvml"))),
        *("--kubelet-root", str(tmp_path / "kubelet"), "--cdi-dir", str(tmp_path / "cdi")),
        *("--disable-provider", "rack-label,fan-health", "--enforcer", "none"),  # reads no file
        home=tmp_path,
        path=f"{folder / 'site'}:{ROOT}",
    )

    found = [each["attributes"][ISLAND] for each in json.loads(ended.stdout)["devices"]]
    assert found == [{"string": uuid(number)} for number in islands]


@pytest.mark.sweep
def test_installed_packages_are_shown_by_inspect(folder: Path) -> None:
    ended = wheels.python(
        *("-m", "tensorfusion_dra", "inspect", "--providers", "-o", "json"),
        *("--node-name", "node-01", "--simulated-gpus", "2xT4", "--enforcer", "fan-enforcer"),
        *("--disable-provider", "rack-label"),  # which asks the API server
        home=folder,
        path=str(folder / "site"),
        FAN_HEALTH_FOLDER="/nowhere",
    )

    shown = ("name", "kind", "package", "state")
    found = [[each[key] for key in shown] for each in json.loads(ended.stdout)["providers"]]
    for kind in KINDS:
        assert [f"fan-{kind}", kind, f"fan-{kind} 0.1.0", "ok"] in found


def published(cluster: SimulatedCluster, field: str) -> list[Any]:
    """Return a field of each published device."""
    return [device.get(field) for item in cluster.slices() for device in item["spec"]["devices"]]


@pytest.mark.sweep
def test_packages_change_what_a_real_process_publishes_prepares_and_taints(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster_with() as cluster:
        monkeypatch.setattr(plugin_process, "spawn", plugin_process.spawn_command)
        monkeypatch.setenv("PYTHONPATH", str(folder / "site"), prepend=":")
        monkeypatch.setenv("FAN_HEALTH_FOLDER", str(tmp_path))
        monkeypatch.setenv("RACK_LABEL_API", cluster.server.url)
        cluster.plugin_flags.extend(["--enforcer", "fan-enforcer", "--poll-seconds", "1"])
        rack = {"metadata": {"labels": {"topology.example.com/rack": "r12"}}}
        cluster.client.patch(NODES, cluster.client.get(NODES, "node-01"), rack)
        start(cluster)

        attributes = published(cluster, "attributes")
        for index, found in enumerate(attributes):
            assert found["example.com/fan_attributes"] == {"string": f"node-01-{index}"}
            assert found["example.com/rack"] == {"string": "r12"}
            assert ISLAND in found
        assert [each[CAPACITY]["value"] for each in published(cluster, "capacity")] == ["16", "16"]

        cluster.submit("a", {"tflops": "78", "vram": "8Gi", CAPACITY: "3"})
        cluster.until("runs", lambda: cluster.container_of("a") is not None)

        claim, container = cluster.claim_of(cluster.pod("a")), cluster.container_of("a")
        assert claim is not None
        assert container is not None
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        assert result["consumedCapacity"][CAPACITY] == "3"
        assert container.env["FAN_ENFORCER_LIMIT_0"] == f"25,{8 * 2**30}"

        (tmp_path / attributes[0]["uuid"]["string"]).write_text("fan 2 stands still")
        cluster.until("tainted", lambda: taints(cluster) == ["fan-health"])


def taints(cluster: SimulatedCluster) -> list[str]:
    return [taint["value"] for each in published(cluster, "taints") for taint in each or ()]
