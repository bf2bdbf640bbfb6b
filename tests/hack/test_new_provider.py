"""Packages that hack/new-provider makes: they pass their tests, install, and change a slice."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.shared.providers import OWN_NAMES
from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tests.app.node_plugin.test_node_plugin_process import cluster_with, start
from tests.support import wheels
from tests.support.forks import ROOT

CAPACITY = "example.com/fan_capacities"
KINDS = ("attributes", "capacities", "health", "enforcer")


new_provider: Callable[[list[str]], int] = runpy.run_path(str(ROOT / "hack/new-provider"))["main"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a package of each kind, named after it, and install all of them below `site`."""
    made = tmp_path_factory.mktemp("made")
    for kind in KINDS:
        assert new_provider([f"fan-{kind}", "--kind", kind, "--into", str(made)]) == 0
        wheels.install(made / f"fan-{kind}", made / "site")
    return made


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_package_passes_its_own_tests_as_it_is(kind: str, folder: Path) -> None:
    ended = wheels.python(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        home=folder,
        folder=folder / f"fan-{kind}",
        path=str(ROOT),
    )

    assert "2 passed" in ended.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_template_is_left(kind: str, tmp_path: Path) -> None:
    assert new_provider(["fan-speed", "--kind", kind, "--into", str(tmp_path)]) == 0

    files = [path for path in (tmp_path / "fan-speed").rglob("*") if path.is_file()]

    assert len(files) == 4
    for path in files:
        text = path.read_text()
        for word in ("example-provider", "example_provider", "EXAMPLE", "GROUP", "ENTRY", "KIND"):
            assert word not in text, path


@pytest.mark.sweep
def test_installed_packages_are_shown_by_inspect(folder: Path) -> None:
    ended = wheels.python(
        *("-m", "tensorfusion_dra", "inspect", "--providers", "-o", "json"),
        *("--node-name", "node-01", "--simulated-gpus", "2xT4", "--enforcer", "fan-enforcer"),
        home=folder,
        path=str(folder / "site"),
        FAN_HEALTH_FOLDER="/nowhere",
    )

    providers = json.loads(ended.stdout)["providers"]
    found = {each["name"]: each for each in providers if each["package"].startswith("fan-")}
    for kind in KINDS:
        each = found[f"fan-{kind}"]
        assert (each["kind"], each["package"], each["state"]) == (kind, f"fan-{kind} 0.1.0", "ok")


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
    ],
)
def test_name_that_cannot_work_is_refused(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new_provider([name, "--into", str(tmp_path)]) == 2

    assert text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_folder_that_exists_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fan-speed").mkdir()

    assert new_provider(["fan-speed", "--into", str(tmp_path)]) == 2

    assert "expected a new folder" in capsys.readouterr().err


def published(cluster: SimulatedCluster, field: str, name: str) -> list[Any]:
    devices = [device for item in cluster.slices() for device in item["spec"]["devices"]]
    return [device[field].get(name) for device in devices]


@pytest.mark.sweep
def test_packages_change_what_a_real_process_publishes_prepares_and_taints(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster_with() as cluster:
        monkeypatch.setattr(plugin_process, "spawn", plugin_process.spawn_command)
        monkeypatch.setenv("PYTHONPATH", str(folder / "site"), prepend=":")
        monkeypatch.setenv("FAN_HEALTH_FOLDER", str(tmp_path))
        cluster.plugin_flags.extend(["--enforcer", "fan-enforcer", "--poll-seconds", "1"])
        start(cluster)

        assert published(cluster, "attributes", "example.com/fan_attributes") == [
            {"string": "node-01-0"},
            {"string": "node-01-1"},
        ]
        assert [each["value"] for each in published(cluster, "capacity", CAPACITY)] == ["16", "16"]

        cluster.submit("a", {"tflops": "78", "vram": "8Gi", CAPACITY: "3"})
        cluster.until("runs", lambda: cluster.container_of("a") is not None)

        claim, container = cluster.claim_of(cluster.pod("a")), cluster.container_of("a")
        assert claim is not None
        assert container is not None
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        assert result["consumedCapacity"][CAPACITY] == "3"
        assert container.env["FAN_ENFORCER_LIMIT_0"] == f"25,{8 * 2**30}"

        (uuid, _) = published(cluster, "attributes", "uuid")
        (tmp_path / uuid["string"]).write_text("fan 2 stands still")
        cluster.until("tainted", lambda: taints(cluster) == ["fan-health"])


def taints(cluster: SimulatedCluster) -> list[str]:
    devices = [device for item in cluster.slices() for device in item["spec"]["devices"]]
    return [taint["value"] for device in devices for taint in device.get("taints", [])]
