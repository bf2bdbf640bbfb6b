"""Checks of the node: disk, sockets, container runtime, cards and their enforcer."""

import json
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tensorfusion_dra.app.doctor import gpus, node
from tensorfusion_dra.app.doctor.node import Use
from tensorfusion_dra.core.devices.gpu import LeftOut, TflopsSource
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.finding import Finding, Level
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tests.app.doctor.here import context, put_prepared_claim
from tests.support import enforcer_files, findings
from tests.support.builders.gpus import gpu
from tests.support.builders.prepared_claims import limit
from tests.support.findings import Expected
from tests.support.prepared_node import GPU_0
from tests.support.stores import set_format

OK = (Level.OK, "")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder with a short path, because it holds Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        yield Path(made)


def test_folders_are_examined_and_only_the_registration_folder_has_to_exist(folder: Path) -> None:
    unmade = folder / "unmade"
    findings.check(
        node.folders(context(unmade)),
        [(Level.PROBLEM, "registration folder"), *[(Level.OK, "not created yet")] * 3],
    )
    assert not unmade.exists()
    (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
    (folder / "cdi").mkdir()
    (folder / "cdi").chmod(0o777)
    (folder / "tensor-fusion").write_text("")

    findings.check(
        node.folders(context(folder)),
        [OK, OK, (Level.WARNING, "0777"), (Level.PROBLEM, "not a folder")],
    )


def test_a_missing_spec_and_a_leftover_spec_of_a_prepared_claim_are_warnings(
    folder: Path,
) -> None:
    put_prepared_claim(folder)
    (spec,) = (folder / "cdi").iterdir()
    spec.rename(spec.with_name("tensor-fusion.ai-vgpu_other.json"))

    findings.check(
        node.records(context(folder)),
        [OK, (Level.WARNING, "of a claim that has no record"), (Level.WARNING, "default/a")],
    )


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.json", "{", [(Level.WARNING, "Expecting")]),
        ("a.json", "[]", [(Level.WARNING, "expected a CDI spec")]),
        ("a.yaml", "cdiVersion: [", [(Level.WARNING, "line 1: expected")]),
        ("a.yaml", "[" * 5000, [(Level.WARNING, "line 1: found more than 100 levels")]),
        ("a.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", [(Level.WARNING, "no devices")]),
        (
            "tensor-fusion.ai-vgpu_a.json",
            "{",
            [(Level.PROBLEM, "Expecting"), (Level.WARNING, "no record")],
        ),
    ],
)
def test_a_spec_that_runtimes_do_not_load_is_found_with_the_reason(
    name: str, text: str, expected: list[Expected], folder: Path
) -> None:
    (folder / "cdi").mkdir()
    (folder / "cdi" / name).write_text(text)

    findings.check(node.records(context(folder)), [(Level.NOTE, "not found"), *expected])


def toolkit(*host_paths: str) -> dict[str, Any]:
    first, *more = host_paths
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": first}]}}],
        "containerEdits": {"mounts": [{"hostPath": path, "containerPath": path} for path in more]},
    }


def test_host_paths_in_a_spec_are_checked_outside_of_pods(
    folder: Path,
) -> None:
    files = [folder / "nvidia0", folder / "libcuda.so.550"]
    (folder / "static-cdi").mkdir()
    (folder / "static-cdi" / "nvidia.json").write_text(json.dumps(toolkit(*map(str, files))))

    findings.check(
        node.records(context(folder)),
        [(Level.NOTE, ""), (Level.WARNING, "names 2 host paths")],
    )
    findings.check(node.records(context(folder, in_pod=True)), [(Level.NOTE, ""), OK])
    for file in files:
        file.touch()

    findings.check(node.records(context(folder)), [(Level.NOTE, ""), OK])


def test_only_our_registration_sockets_are_judged(folder: Path) -> None:
    here = context(folder)
    registry = here.settings.registry_folder
    registry.mkdir(parents=True)
    ours = str(registry / "tensor-fusion.ai.dra-driver-reg.sock")
    with socket.socket(socket.AF_UNIX) as served, socket.socket(socket.AF_UNIX) as dead:
        served.bind(ours)
        served.listen()
        dead.bind(str(registry / "gpu.example.com-reg.sock"))

        findings.check(node.serving(here), [(Level.OK, ours)])


DATA = Use(what="data folder")
READ = Use(what="devices", written=False)
TENANTS = Use(what="folder that containers write to", of_containers=True)


@pytest.mark.parametrize(
    ("use", "facts", "expected"),
    [
        (DATA, {"mode": 0o700}, []),
        (DATA, {"is_of_container": True}, [(Level.PROBLEM, "the container's own")]),
        (TENANTS, {"is_mount": False}, [(Level.WARNING, "a container can fill its")]),
        (TENANTS, {"is_mount": True}, []),
        (TENANTS, {"is_mount": True, "free_bytes": 0}, [(Level.PROBLEM, "free")]),
        (DATA, {"read_only": True, "writable": False}, [(Level.PROBLEM, "mounted read-only")]),
        (DATA, {"writable": False}, [(Level.COULD_NOT_LOOK, "not writable by the user")]),
        (DATA, {"free_bytes": 2**20}, [(Level.PROBLEM, "1 MiB free")]),
        (READ, {"read_only": True}, []),
        (DATA, {"mode": 0o777}, [(Level.WARNING, "mode 0777: every user")]),
        (DATA, {"mode": 0o1777}, []),
    ],
)
def test_faults_of_a_folder(use: Use, facts: dict[str, Any], expected: list[Expected]) -> None:
    sound = {
        "mode": 0o755,
        "is_mount": False,
        "is_of_container": False,
        "writable": True,
        "read_only": False,
        "free_bytes": 2**40,
    }

    findings.check(node.faults("/r", use, **{**sound, **facts}), expected)


def test_claims_with_most_files_in_a_nearly_full_folder_are_named(folder: Path) -> None:
    here = context(folder)
    put_prepared_claim(folder)
    (record,) = (here.settings.data_folder / "claims").glob("*.json")
    written = folder / "written"
    for writer, files in ((record.stem, 30), ("team-a/pod-a", 20), ("gone", 10), ("few", 1)):
        deep = written / writer / "deep"
        deep.mkdir(parents=True)
        for number in range(files):
            (deep / str(number)).touch()

    found = node.full(written, 0.05, here.settings.data_folder)

    assert (found.level, found.found) == (Level.PROBLEM, "5% of its space or files free")
    named = r"claim default/a \(.*team-a/pod-a \(.*gone/deep \("
    assert re.search(named, found.remedy)
    assert "few" not in found.remedy


OURS = "/plugins_registry/tensor-fusion.ai.dra-driver-reg.sock"
NONE_SERVED = (Level.PROBLEM, "none of them served")


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ({OURS: True}, [OK]),
        ({}, [NONE_SERVED]),
        ({OURS: False}, [NONE_SERVED, (Level.WARNING, "its process died")]),
        ({OURS: True, OURS.replace("-reg", "-5a5a5a5a-reg"): True}, [OK, OK]),
        ({OURS: None}, [NONE_SERVED, (Level.COULD_NOT_LOOK, "no permission")]),
    ],
)
def test_sockets_by_life(listed: dict[str, bool | None], expected: list[Expected]) -> None:
    findings.check(node.registrations(listed), expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data, record: None, [(Level.OK, "1 claims"), (Level.OK, "1 of this driver")]),
        (
            lambda data, record: record.write_text("{"),
            [(Level.PROBLEM, "found no record"), (Level.OK, "1 of this driver")],
        ),
        (
            lambda data, record: set_format(record, 2),
            [(Level.PROBLEM, "found format 2, expected at most 1"), (Level.OK, "1 of this")],
        ),
        (
            lambda data, record: (data / "claims.lock").unlink(),
            [(Level.NOTE, "no node plugin has run here"), (Level.WARNING, "no record")],
        ),
    ],
    ids=["sound", "damaged", "newer", "missing"],
)
def test_records_must_be_readable_and_of_a_known_format(
    folder: Path, change: Callable[[Path, Path], object], expected: list[Expected]
) -> None:
    put_prepared_claim(folder)
    data = context(folder).settings.data_folder
    (record,) = (data / "claims").iterdir()
    change(data, record)

    findings.check(node.records(context(folder)), expected)


CARD = gpu(0)


def missing_file() -> NoReturn:
    raise RetryableError("no such file")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            gpus.published([CARD], [LeftOut(subject="GPU 1", reason="MIG mode is on")]),
            [OK, (Level.WARNING, "MIG mode is on")],
        ),
        (gpus.published([], []), [(Level.WARNING, "an empty pool is published")]),
        (
            gpus.published([replace(CARD, tflops_source=TflopsSource.ESTIMATE)], []),
            [(Level.NOTE, "--gpu-models")],
        ),
        ([gpus.driver_libraries([], missing_file)], [OK]),
        ([gpus.driver_libraries([CARD.uuid], list)], [(Level.OK, "0 mounts")]),
        ([gpus.driver_libraries([CARD.uuid], missing_file)], [(Level.PROBLEM, f"({CARD.uuid})")]),
        ([gpus.device_nodes(lambda: ["/dev/nvidia0"])], [(Level.OK, "/dev/nvidia0")]),
        ([gpus.device_nodes(missing_file)], [(Level.PROBLEM, "no such file")]),
    ],
)
def test_cards_and_what_containers_get_of_them(
    found: Iterable[Finding], expected: list[Expected]
) -> None:
    findings.check(found, expected)


def node_with(capacity: dict[str, str], **annotations: str) -> dict[str, Any]:
    metadata = {"name": "node-01", "annotations": annotations}
    return {"metadata": metadata, "status": {"capacity": capacity}}


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (node_with({"cpu": "8"}), ""),
        (node_with({"nvidia.com/gpu": "0"}), ""),
        (node_with({"nvidia.com/gpu": "8"}), "nvidia.com/gpu: 8: NVIDIA's device plugin"),
        (node_with({"nvidia.com/mig-1g.10gb": "7"}), "NVIDIA's device plugin"),
        (
            node_with({"nvidia.com/gpu": "80"}, **{"hami.io/node-nvidia-register": "[]"}),
            "nvidia.com/gpu: 80: HAMi's device plugin allocates cards of this node",
        ),
        (node_with({"volcano.sh/vgpu-number": "10"}), "Volcano's"),
        (node_with({"aliyun.com/gpu-mem": "80"}), "the GPU share device plugin"),
        (node_with({"tensor-fusion.ai/index_0": "8"}), ""),
    ],
)
def test_device_plugin_that_allocates_cards_is_found_by_the_nodes_capacity(
    item: dict[str, Any], text: str
) -> None:
    findings.check(gpus.other_plugins(item), [(Level.WARNING, text) if text else OK])


def worker_pod(phase: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    metadata = {"namespace": "a", "name": "w", "annotations": annotations}
    return {"metadata": metadata, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("capacity", "workers", "levels"),
    [
        ("tensor-fusion.ai/index_f", [worker_pod("Running")], [Level.WARNING]),
        ("tensor-fusion.ai/index_f", [worker_pod("Succeeded")], [Level.OK]),
        (
            "tensor-fusion.ai/index_f",
            [worker_pod("Running", {"tensor-fusion.ai/dra-marks": "index"})],
            [Level.OK],
        ),
        ("tensor-fusion.ai/index_f", [], [Level.OK]),
        ("tensor-fusion.ai/index_f", None, [Level.NOTE]),
        ("nvidia.com/gpu", [worker_pod("Running")], []),
    ],
)
def test_tensor_fusions_scheduler_is_found_by_its_worker_pods(
    capacity: str, workers: list[dict[str, Any]] | None, levels: list[Level]
) -> None:
    found = TensorFusion().examine(node_with({capacity: "8"}), workers)

    assert [advice.level for advice in found] == levels


def put_limiter(folder: Path) -> Path:
    file = folder / "tensor-fusion" / "libcuda_limiter.so"
    file.parent.mkdir()
    file.write_bytes(b"\x7fELF")
    return file


def test_enforcer_is_ok_only_while_it_is_alive(folder: Path) -> None:
    """A limiter without a hypervisor, then with a live one, then with a dead one."""
    put_limiter(folder)
    plugin = folder / "tensor-fusion-index-0.sock"
    address: dict[str, Any] = {
        "simulated_gpus": "",
        "hypervisor_address": "127.0.0.1:1",
    }
    here = context(folder, hypervisor_sockets=str(plugin.parent), **address)

    findings.check(gpus.alive(here), [(Level.WARNING, "")])
    with socket.socket(socket.AF_UNIX) as hypervisor:
        hypervisor.bind(str(plugin))
        hypervisor.listen()
        findings.check(gpus.alive(here), [(Level.OK, f"device plugin {plugin} answers")])
    findings.check(gpus.alive(here), [(Level.WARNING, "ended process")])
    required = context(folder, require_enforcement=True, **address)
    findings.check(gpus.alive(required), [(Level.PROBLEM, "")])


def test_address_at_which_a_pod_could_answer_is_not_asked_where_sockets_are(folder: Path) -> None:
    put_limiter(folder)
    address: dict[str, Any] = {"hypervisor_address": "127.0.0.1:1"}

    for sockets, is_asked in (("", True), (str(folder), False)):
        here = context(folder, simulated_gpus="", hypervisor_sockets=sockets, **address)
        (found,) = gpus.alive(here)
        assert ("http://127.0.0.1:1/healthz" in found.found) == is_asked


def test_containers_have_to_be_told_where_the_hypervisor_is(folder: Path) -> None:
    (_, unset) = gpus.alive(context(folder, simulated_gpus=""))

    assert (unset.level, "ends every process" in unset.found) == (Level.WARNING, True)
    told: tuple[dict[str, Any], ...] = (
        {},
        {"simulated_gpus": "", "hypervisor_address": "127.0.0.1:1"},
        {"simulated_gpus": "", "enforcer": "mps"},
    )
    for others in told:
        assert not any(
            "hypervisor-address" in each.subject for each in gpus.alive(context(folder, **others))
        )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"enforcer": "auto"}, (Level.PROBLEM, "every claim for a part of a GPU waits")),
        (
            {"enforcer": "auto", "vram_expand_to_host_mem": 50},
            (Level.PROBLEM, "found no enforcer: tensor-fusion ("),
        ),
        ({"enforcer": "none"}, (Level.NOTE, "limits are advisory")),
    ],
)
def test_node_without_an_enforcer_says_so_once(
    folder: Path, settings: dict[str, Any], expected: tuple[Level, str]
) -> None:
    here = context(folder, simulated_gpus="", **settings)

    findings.check(gpus.alive(here), [expected])


@pytest.mark.parametrize(
    ("enforcer", "library"),
    [("hami-core", "vgpu/libvgpu.so"), ("tensor-fusion", "tensor-fusion/libcuda_limiter.so")],
)
def test_library_that_a_containers_user_cannot_read_is_a_warning(
    folder: Path, enforcer: str, library: str
) -> None:
    file = folder / library
    file.parent.mkdir()
    file.write_bytes(b"\x7fELF...")
    here = context(folder, simulated_gpus="", enforcer=enforcer, hypervisor_address="127.0.0.1:1")
    found = []
    for mode in (0o755, 0o444, 0o750, 0o400):
        file.chmod(mode)
        found.append([each.found for each in gpus.alive(here) if each.subject.endswith(library)])

    assert [len(each) for each in found] == [0, 0, 1, 1]
    assert found[2] == [
        "mode 0750: processes of other users than root cannot load it, and run without limits"
    ]


def test_chosen_enforcer_is_the_one_that_is_examined(folder: Path) -> None:
    here = context(folder, simulated_gpus="", enforcer="auto")
    library = folder / "vgpu" / "libvgpu.so"
    library.parent.mkdir()
    library.write_bytes(b"\x7fELF...")

    findings.check(gpus.alive(here), [(Level.NOTE, "the library is there")])


def test_limits_of_prepared_claims_are_judged(folder: Path) -> None:
    put_prepared_claim(folder, has_real_cards=True)
    here = context(folder, simulated_gpus="")

    findings.check(gpus.claims(here), [(Level.WARNING, "SharedMemoryMissing")])
    for shared, expected in (
        (limit(100, 80), (Level.WARNING, "LimitsDiffer")),
        (limit(33, 16), (Level.OK, "shares that are Enforced: 1")),
    ):
        content = enforcer_files.shared_memory(
            {GPU_0: shared}, heartbeat=int(time.time()) + 1, processes=1
        )
        shm = folder / "tensor-fusion" / "shm" / "default" / "a" / "shm"
        enforcer_files.write_shared_memory(shm, content)
        findings.check(gpus.claims(here), [expected])


def test_a_card_that_a_device_plugin_gives_away_as_well_is_a_warning() -> None:
    findings.check(
        gpus.used_by_others([("gpu-0", ""), ("gpu-1", "nvidia-device-plugin")]),
        [(Level.WARNING, "nvidia-device-plugin gives it to containers as well")],
    )
