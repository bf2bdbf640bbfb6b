"""Folders, limiter files, ledger and CDI specs, as they are on a disk."""

import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.doctor import folders, limiter, records, sockets
from tensorfusion_dra.app.shared.health_endpoint import HealthEndpoint
from tensorfusion_dra.core.doctor.enforcement import ELF
from tensorfusion_dra.core.doctor.finding import Finding, Level
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.kubelet.registration import Registration
from tensorfusion_dra.kubelet.server import UnixServer
from tests.app.doctor.here import context, worst
from tests.support.prepared_node import Setup, put, share


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, as it holds sockets."""
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        yield Path(made)


def of(findings: list[Finding], text: str) -> Finding:
    (found,) = (finding for finding in findings if text in finding.looked_at)
    return found


def test_the_kubelets_folder_has_to_be_there_and_ours_are_made(folder: Path) -> None:
    without = list(folders.folders(context(folder)))
    (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
    with_it = list(folders.folders(context(folder)))

    assert of(without, "registration folder").level is Level.PROBLEM
    assert of(without, "data folder").level is Level.OK
    assert of(with_it, "registration folder").level is Level.OK
    assert not (folder / "cdi").exists()


def test_a_folder_that_everybody_may_write_to_is_told(folder: Path) -> None:
    (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
    (folder / "cdi").mkdir()
    (folder / "cdi").chmod(0o777)

    found = of(list(folders.folders(context(folder))), "CDI folder")

    assert (found.level, "0777" in found.found) == (Level.WARNING, True)


def test_a_file_where_a_folder_should_be_is_a_problem(folder: Path) -> None:
    (folder / "cdi").write_text("")

    found = of(list(folders.folders(context(folder))), "CDI folder")

    assert (found.level, found.found) == (Level.PROBLEM, "not a folder")


def test_the_limiter_is_asked_for_where_there_are_real_cards(folder: Path) -> None:
    here = context(folder, simulated_gpus="")
    limiter_file = folder / "tensor-fusion" / "libcuda_limiter.so"

    (missing,) = limiter.files(here)
    limiter_file.parent.mkdir()
    limiter_file.write_bytes(ELF + bytes(60))
    limiter_file.chmod(0o644)
    (there,) = limiter.files(here)
    (simulated,) = limiter.files(context(folder))

    assert (missing.level, there.level, simulated.level) == (Level.PROBLEM, Level.OK, Level.OK)
    assert str(limiter_file) in missing.looked_at


@pytest.mark.parametrize("enforcer", ["tensor-fusion", "hami-core", "mps"])
def test_every_enforcer_can_be_asked_what_it_needs(enforcer: str, folder: Path) -> None:
    here = context(
        folder,
        simulated_gpus="",
        enforcer=enforcer,
        hami_core_library=str(folder / "libvgpu.so.1"),
        mps_pipes=str(folder / "pipe"),
        mps_shm=str(folder / "shm"),
    )

    assert worst(list(limiter.files(here))) is Level.PROBLEM


def prepared(folder: Path) -> Setup:
    """A node that holds one claim, whose folders the doctor looks at."""
    setup = Setup(folder)
    setup.prepare(put(setup, "a", share()))
    setup.ledger.close()
    ours = folder / "kubelet" / "plugins" / "tensor-fusion.ai.dra-driver"
    ours.parent.mkdir(parents=True)
    (folder / "plugin").rename(ours)
    return setup


def test_a_node_that_holds_a_claim_has_its_record_and_its_spec(folder: Path) -> None:
    prepared(folder)

    ledger, specs = records.records(context(folder))

    assert (ledger.level, specs.level) == (Level.OK, Level.OK)
    assert "1 claims" in ledger.found
    assert specs.found == "1 of this driver, 0 of others"


def test_a_spec_that_went_missing_or_was_left_behind_is_told(folder: Path) -> None:
    prepared(folder)
    (spec,) = (folder / "cdi").iterdir()
    spec.rename(spec.with_name("tensor-fusion.ai-vgpu_other.json"))

    found = list(records.records(context(folder)))

    assert [finding.level for finding in found] == [Level.OK, Level.WARNING, Level.WARNING]
    assert "default/a" in of(found[1:], "CDI specs").found


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{", "Expecting"),
        ("a.json", "[]", "expected a CDI spec"),
        ("a.yaml", "cdiVersion: [", "while parsing"),
        ("a.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", "no devices"),
    ],
)
def test_what_runtimes_do_not_load_is_told_with_the_reason(
    name: str, text: str, said: str, folder: Path
) -> None:
    (folder / "cdi").mkdir()
    (folder / "cdi" / name).write_text(text)

    ledger, spec = records.records(context(folder))

    assert (ledger.level, spec.level) == (Level.NOTE, Level.WARNING)
    assert said in spec.found


def toolkit(*host_paths: str) -> dict[str, Any]:
    mounts = [{"hostPath": path, "containerPath": path} for path in host_paths]
    device = {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [device],
        "containerEdits": {"mounts": mounts},
    }


def test_paths_of_the_host_that_a_spec_names_are_looked_for_under_the_hosts_root(
    folder: Path,
) -> None:
    cdi = folder / "host" / "etc" / "cdi"
    cdi.mkdir(parents=True)
    (cdi / "nvidia.json").write_text(json.dumps(toolkit("/usr/lib/libcuda.so.550")))

    _, stale = records.records(context(folder))
    for path in ("usr/lib/libcuda.so.550", "dev/nvidia0"):
        file = folder / "host" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    _, fresh = records.records(context(folder))

    assert stale.level is Level.WARNING
    assert "names 2 host paths" in stale.found
    assert fresh.level is Level.OK


def test_paths_that_leave_no_room_for_a_socket_are_a_problem(folder: Path) -> None:
    (fits,) = sockets.paths(context(folder))
    (too_long,) = sockets.paths(context(folder, kubelet_root=f"/{'k' * 80}"))

    assert (fits.level, too_long.level) == (Level.OK, Level.PROBLEM)


def test_sockets_are_told_as_served_by_us_by_others_or_dead(folder: Path) -> None:
    here = context(folder)
    registry = here.settings.registry_folder
    registry.mkdir(parents=True)
    dra = here.settings.data_folder / "dra.sock"
    ours = registry / "tensor-fusion.ai.dra-driver-reg.sock"
    servers = [
        UnixServer(path, [Registration(endpoint=str(dra)).service()], workers=2)
        for path in (dra, ours)
    ]
    for server in servers:
        server.start()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(registry / "gpu.example.com-reg.sock"))

    found = list(sockets.serving(here))

    assert of(found, f"GetInfo of {ours}").level is Level.OK
    assert of(found, "gpu.example.com").level is Level.NOTE
    assert of(found, "DRA socket").found == "served, without any connection"
    for server in servers:
        server.stop(grace_seconds=0)


def test_a_pod_does_not_take_a_kubelet_that_it_cannot_see_for_none(folder: Path) -> None:
    here = context(folder, in_pod=True)
    ours = here.settings.registry_folder / "tensor-fusion.ai.dra-driver-reg.sock"
    ours.parent.mkdir(parents=True)
    server = UnixServer(ours, [Registration(endpoint=str(ours)).service()], workers=2)
    server.start()

    found = list(sockets.serving(here))

    server.stop(grace_seconds=0)
    assert worst(found) is Level.OK
    assert "not visible from here" in of(found, "DRA socket").found


@pytest.mark.parametrize("trouble", ["", "not registered with the kubelet yet"])
def test_a_pod_asks_its_node_plugin_whether_the_kubelet_has_taken_it(
    folder: Path, trouble: str
) -> None:
    def ready() -> None:
        if trouble:
            raise RetryableError(trouble)

    plugin = HealthEndpoint({"/readyz": ready}, host="127.0.0.1", port=0)
    plugin.start()

    (found,) = sockets.registered(context(folder, in_pod=True, health_port=plugin.port))

    plugin.stop()
    assert found.level is (Level.PROBLEM if trouble else Level.OK)
    assert trouble in found.found


def test_a_node_plugin_that_answers_no_probe_is_not_known_to_be_registered(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    with pytest.raises(RetryableError, match=f"{port}/readyz"):
        list(sockets.registered(context(folder, in_pod=True, health_port=port)))


def test_an_empty_registry_means_that_nobody_serves(folder: Path) -> None:
    here = context(folder)
    here.settings.registry_folder.mkdir(parents=True)

    assert worst(list(sockets.serving(here))) is Level.PROBLEM
