"""Checks of folders, ledger, CDI specs and sockets on a disk."""

import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.doctor import folders, records, sockets
from tensorfusion_dra.app.doctor.folders import Folder, Use
from tensorfusion_dra.app.doctor.sockets import Socket
from tensorfusion_dra.app.shared.health_endpoint import HealthEndpoint
from tensorfusion_dra.core.doctor.finding import Finding, Level
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state.ledger_file import VERSION
from tensorfusion_dra.state.ledger_reading import LedgerFacts
from tests.app.doctor.here import context, put_prepared_claim
from tests.support import findings
from tests.support.findings import Expected


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder with a short path, because it holds Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        yield Path(made)


def of(findings: list[Finding], text: str) -> Finding:
    (found,) = (finding for finding in findings if text in finding.subject)
    return found


def test_a_missing_registration_folder_is_a_problem_and_a_missing_data_folder_is_not(
    folder: Path,
) -> None:
    without = list(folders.folders(context(folder)))
    (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
    with_it = list(folders.folders(context(folder)))

    assert of(without, "registration folder").level is Level.PROBLEM
    assert of(without, "data folder").level is Level.OK
    assert of(with_it, "registration folder").level is Level.OK
    assert not (folder / "cdi").exists()


def test_mode_and_kind_of_a_folder_are_read(folder: Path) -> None:
    (folder / "cdi").mkdir()
    (folder / "cdi").chmod(0o777)
    (folder / "tensor-fusion").write_text("")

    found = list(folders.folders(context(folder)))

    assert "0777" in of(found, "CDI folder").found
    assert of(found, "hypervisor's folder").found == "not a folder"


def test_a_prepared_claim_with_its_record_and_spec_is_ok(folder: Path) -> None:
    put_prepared_claim(folder)

    ledger, specs = records.records(context(folder))

    assert (ledger.level, specs.level) == (Level.OK, Level.OK)
    assert "1 claims" in ledger.found
    assert specs.found == "1 of this driver, 0 of others"


def test_a_missing_spec_and_a_leftover_spec_are_warnings(folder: Path) -> None:
    put_prepared_claim(folder)
    (spec,) = (folder / "cdi").iterdir()
    spec.rename(spec.with_name("tensor-fusion.ai-vgpu_other.json"))

    found = list(records.records(context(folder)))

    assert [finding.level for finding in found] == [Level.OK, Level.WARNING, Level.WARNING]
    assert "default/a" in of(found[1:], "CDI specs").found


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.json", "{", "Expecting"),
        ("a.json", "[]", "expected a CDI spec"),
        ("a.yaml", "cdiVersion: [", "while parsing"),
        ("a.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", "no devices"),
    ],
)
def test_a_spec_that_runtimes_do_not_load_is_a_warning_with_the_reason(
    name: str, text: str, expected: str, folder: Path
) -> None:
    (folder / "cdi").mkdir()
    (folder / "cdi" / name).write_text(text)

    ledger, spec = records.records(context(folder))

    assert (ledger.level, spec.level) == (Level.NOTE, Level.WARNING)
    assert expected in spec.found


def toolkit(*host_paths: str) -> dict[str, Any]:
    mounts = [{"hostPath": path, "containerPath": path} for path in host_paths]
    device = {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [device],
        "containerEdits": {"mounts": mounts},
    }


def test_host_paths_in_a_spec_are_checked_under_the_host_root(
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


def test_registration_sockets_are_ours_foreign_or_dead(folder: Path) -> None:
    here = context(folder)
    registry = here.settings.registry_folder
    registry.mkdir(parents=True)
    ours = registry / "tensor-fusion.ai.dra-driver-reg.sock"
    with socket.socket(socket.AF_UNIX) as served, socket.socket(socket.AF_UNIX) as dead:
        served.bind(str(ours))
        served.listen()
        dead.bind(str(registry / "gpu.example.com-reg.sock"))

        found = list(sockets.serving(here))

    assert of(found, str(ours)).level is Level.OK
    assert of(found, "gpu.example.com").level is Level.NOTE


@pytest.mark.parametrize("trouble", ["", "not registered with the kubelet yet"])
def test_in_a_pod_registration_is_checked_by_readyz(folder: Path, trouble: str) -> None:
    def ready() -> None:
        if trouble:
            raise RetryableError(trouble)

    plugin = HealthEndpoint({"/readyz": ready}, host="127.0.0.1", port=0)
    plugin.start()

    (found,) = sockets.registered(context(folder, in_pod=True, health_port=plugin.port))

    plugin.stop()
    assert found.level is (Level.PROBLEM if trouble else Level.OK)
    assert trouble in found.found


def test_a_readyz_probe_without_an_answer_is_an_error(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    with pytest.raises(RetryableError, match=f"{port}/readyz"):
        list(sockets.registered(context(folder, in_pod=True, health_port=port)))


REGISTRY = Use(what="registration folder", missing_cure="--kubelet-root")
DATA = Use(what="data folder", may_be_made=True, keeps=True)
SHARED = Use(what="hypervisor's folder", propagated=True)
READ = Use(what="devices", written=False)
TENANTS = Use(what="folder that containers write to", of_containers=True)


@pytest.mark.parametrize(
    ("use", "facts", "level", "text"),
    [
        (REGISTRY, {"filesystem": "ext4"}, Level.OK, "mode 0755, on ext4"),
        (DATA, {"filesystem": "ext4", "mode": 0o700}, Level.OK, ""),
        (REGISTRY, {"exists": False}, Level.PROBLEM, "--kubelet-root"),
        (DATA, {"exists": False}, Level.OK, "not created yet"),
        (DATA, {"is_folder": False}, Level.PROBLEM, "not a folder"),
        (REGISTRY, {"filesystem": "overlay", "in_pod": True}, Level.PROBLEM, "the container's own"),
        # On the host itself overlay is the root file system of some systems.
        (REGISTRY, {"filesystem": "overlay"}, Level.OK, ""),
        (DATA, {"filesystem": "tmpfs"}, Level.WARNING, "empty after a reboot"),
        (DATA, {"filesystem": "nfs4"}, Level.WARNING, "a local disk"),
        (REGISTRY, {"filesystem": "tmpfs"}, Level.OK, ""),
        (SHARED, {"shared": False}, Level.WARNING, "a private mount"),
        (SHARED, {"shared": False, "in_pod": True}, Level.OK, ""),
        (SHARED, {"shared": True}, Level.OK, ""),
        (TENANTS, {"mount_point": "/run"}, Level.WARNING, "a container can fill that"),
        (TENANTS, {"mount_point": "/r", "filesystem": "tmpfs"}, Level.OK, ""),
        (TENANTS, {"mount_point": "/r", "free_bytes": 0}, Level.PROBLEM, "free"),
        (REGISTRY, {"shared": False}, Level.OK, ""),
        (DATA, {"read_only": True, "writable": False}, Level.PROBLEM, "mounted read-only"),
        (DATA, {"writable": False}, Level.COULD_NOT_LOOK, "not writable by the user"),
        (DATA, {"free_bytes": 2**20}, Level.PROBLEM, "1 MiB free"),
        (READ, {"read_only": True}, Level.OK, ""),
        (REGISTRY, {"mode": 0o777}, Level.WARNING, "mode 0777: every user"),
        (REGISTRY, {"mode": 0o1777}, Level.OK, ""),
        (REGISTRY, {"trouble": "Permission denied"}, Level.COULD_NOT_LOOK, "Permission denied"),
    ],
)
def test_folders(use: Use, facts: dict[str, Any], level: Level, text: str) -> None:
    in_pod = bool(facts.get("in_pod"))
    folder = Folder(path="/r", **{key: value for key, value in facts.items() if key != "in_pod"})

    findings.check(folders.findings(folder, use, in_pod=in_pod), [(level, text)])


OURS = "/plugins_registry/tensor-fusion.ai.dra-driver-reg.sock"
FOREIGN = "/plugins_registry/gpu.nvidia.com-reg.sock"
NONE_SERVED = (Level.PROBLEM, "none of them served")
OK = (Level.OK, "")


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([Socket(path=OURS)], [OK]),
        (
            [Socket(path=OURS), Socket(path=FOREIGN, is_ours=False)],
            [OK, (Level.OK, "by another plugin")],
        ),
        ([], [NONE_SERVED]),
        ([Socket(path=OURS, live=False)], [NONE_SERVED, (Level.WARNING, "its process died")]),
        (
            [Socket(path=OURS), Socket(path=FOREIGN, is_ours=False, live=False)],
            [OK, (Level.NOTE, "another plugin's")],
        ),
        (
            [Socket(path=OURS), Socket(path=OURS.replace("-reg", "-5a5a5a5a-reg"))],
            [(Level.NOTE, "two during a rolling update"), OK, OK],
        ),
        (
            [Socket(path=OURS, live=None)],
            [NONE_SERVED, (Level.COULD_NOT_LOOK, "no permission")],
        ),
    ],
)
def test_sockets_by_owner_and_life(listed: list[Socket], expected: list[Expected]) -> None:
    findings.check(sockets.registrations(listed), expected)


CLAIMS = {"uid-a": "default/a"}


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        (
            {"version": VERSION, "claims": CLAIMS, "size_bytes": 40960},
            Level.OK,
            "40 KiB, 1 claims",
        ),
        ({"exists": False}, Level.NOTE, "no node plugin has run here"),
        ({"trouble": "Permission denied"}, Level.COULD_NOT_LOOK, "Permission denied"),
        ({"damage": "image is malformed"}, Level.PROBLEM, "image is malformed"),
        (
            {"version": VERSION + 1, "claims": {}},
            Level.PROBLEM,
            "a newer release wrote it",
        ),
    ],
)
def test_ledger_must_be_readable_and_of_a_known_version(
    facts: dict[str, Any], level: Level, text: str
) -> None:
    findings.check([records.ledger(LedgerFacts(path="/l", **facts))], [(level, text)])


def test_broken_spec_of_this_driver_is_a_problem_beside_a_damaged_ledger(folder: Path) -> None:
    (folder / "cdi").mkdir()
    (folder / "cdi" / "tensor-fusion.ai-vgpu_a.json").write_text("{")
    ledger = context(folder).settings.data_folder / "ledger.sqlite3"
    ledger.parent.mkdir(parents=True)
    ledger.write_text("no database")

    damage, spec = records.records(context(folder))

    assert (damage.level, spec.level) == (Level.PROBLEM, Level.PROBLEM)
    assert "restart the node plugin" in spec.cure
