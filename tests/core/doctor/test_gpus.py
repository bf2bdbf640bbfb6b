"""Findings about a node's GPUs, other allocators of the same cards, and providers."""

from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.core.devices.gpu import LeftOut, TflopsSource
from tensorfusion_dra.core.devices.oversubscription import NO_MORE
from tensorfusion_dra.core.doctor import gpus
from tensorfusion_dra.core.doctor import gpus as judge
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.gpus import Access
from tests.support.builders.gpus import gpu

CARD = gpu(0)
BUS = "0000:3a:00.0"


def test_nvml_library_and_driver_version_are_reported() -> None:
    (known,) = judge.library({"library": "/l.so.1", "driver_version": "550.54.15"})
    (refused,) = judge.library({"library": "/l.so.1", "driver_version": {"error": "NO_PERM"}})

    assert known.found == "/l.so.1, driver 550.54.15"
    assert "NO_PERM" in refused.found


def test_card_that_is_left_out_is_reported_with_its_reason() -> None:
    whole, left = judge.cards([CARD], [LeftOut(subject="GPU 1", reason="MIG mode is on")])

    assert (whole.level, left.level) == (Level.OK, Level.WARNING)
    assert "MIG mode is on" in left.found


def test_node_without_cards_is_a_warning() -> None:
    assert [finding.level for finding in judge.cards([], [])] == [Level.WARNING]


def test_estimated_compute_is_a_note() -> None:
    (finding,) = judge.cards([replace(CARD, tflops_source=TflopsSource.ESTIMATE)], [])

    assert finding.level is Level.NOTE
    assert "--gpu-models" in finding.cure


@pytest.mark.parametrize(
    ("access", "levels"),
    [
        (Access(toolkit_cards=frozenset({CARD.uuid})), [Level.OK]),
        (Access(libraries=12), [Level.OK]),
        (Access(trouble="libcuda.so.1: found in no library folder"), [Level.PROBLEM]),
    ],
)
def test_containers_get_libraries_from_the_toolkit_or_from_the_driver_root(
    access: Access, levels: list[Level]
) -> None:
    real = replace(CARD, simulated=False)

    assert [finding.level for finding in judge.access([real], access)] == levels


def test_simulated_cards_need_no_libraries() -> None:
    assert list(judge.access([replace(CARD, simulated=True)], Access(trouble="none"))) == []


def test_missing_device_node_is_a_problem() -> None:
    there = judge.device_node("/dev/nvidia0", found=True)
    missing = judge.device_node("device node /dev/nvidia0: No such file", found=False)

    assert (there.level, missing.level) == (Level.OK, Level.PROBLEM)


@pytest.mark.parametrize(
    ("capacity", "level"),
    [
        ({"cpu": "8"}, Level.OK),
        ({"nvidia.com/gpu": "0"}, Level.OK),
        ({"nvidia.com/gpu": "8"}, Level.WARNING),
        ({"nvidia.com/mig-1g.10gb": "7"}, Level.WARNING),
        ({"volcano.sh/vgpu-number": "10"}, Level.WARNING),
        ({"aliyun.com/gpu-mem": "80"}, Level.WARNING),
        ({"tensor-fusion.ai/index_0": "8"}, Level.OK),
    ],
)
def test_device_plugin_that_allocates_cards_is_found_by_the_nodes_capacity(
    capacity: dict[str, str], level: Level
) -> None:
    node = {"metadata": {"name": "node-01"}, "status": {"capacity": capacity}}

    (finding,) = judge.other_plugins(node)

    assert finding.level is level


def test_hamis_device_plugin_is_named() -> None:
    annotations = {"hami.io/node-nvidia-register": "[]"}
    node = {
        "metadata": {"name": "node-01", "annotations": annotations},
        "status": {"capacity": {"nvidia.com/gpu": "80"}},
    }

    (finding,) = judge.other_plugins(node)

    assert finding.found == "nvidia.com/gpu: 80: HAMi's device plugin allocates cards of this node"


def worker_pod(phase: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    metadata = {"namespace": "a", "name": "w", "annotations": annotations}
    return {"metadata": metadata, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("workers", "level"),
    [
        ([worker_pod("Running")], Level.WARNING),
        ([worker_pod("Succeeded")], Level.OK),
        ([worker_pod("Running", {"tensor-fusion.ai/dra-marks": "index"})], Level.OK),
        ([], Level.OK),
        (None, Level.NOTE),
    ],
)
def test_tensor_fusions_scheduler_is_found_by_its_worker_pods(
    workers: list[dict[str, Any]] | None, level: Level
) -> None:
    capacity = {"tensor-fusion.ai/index_0": "8", "tensor-fusion.ai/index_f": "8"}
    node = {"metadata": {"name": "node-01"}, "status": {"capacity": capacity}}

    (finding,) = judge.tensor_fusion_workers(node, workers)

    assert finding.level is level


def test_worker_pods_are_ignored_without_tensor_fusions_hypervisor() -> None:
    node = {"metadata": {"name": "node-01"}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}

    assert not list(judge.tensor_fusion_workers(node, [worker_pod("Running")]))


def slice_with_attributes(driver: str, **attributes: str) -> dict[str, Any]:
    device = {
        "name": "gpu-0",
        "attributes": {name: {"string": text} for name, text in attributes.items()},
    }
    return {"spec": {"driver": driver, "devices": [device]}}


OURS = slice_with_attributes(
    "tensor-fusion.ai.dra-driver", uuid=CARD.uuid, **{"resource.kubernetes.io/pciBusID": BUS}
)


@pytest.mark.parametrize(
    ("item", "level"),
    [
        (slice_with_attributes("gpu.nvidia.com", uuid=CARD.uuid), Level.WARNING),
        (slice_with_attributes("gpu.nvidia.com", uuid=CARD.uuid.lower()), Level.WARNING),
        (
            slice_with_attributes("gpu.nvidia.com", **{"resource.kubernetes.io/pciBusID": BUS}),
            Level.WARNING,
        ),
        (slice_with_attributes("gpu.nvidia.com", uuid="GPU-other"), Level.OK),
        (slice_with_attributes("nic.example.com", model=BUS), Level.OK),
        (slice_with_attributes("nic.example.com"), Level.OK),
        (OURS, Level.OK),
    ],
)
def test_another_driver_with_the_same_card_is_found_by_uuid_or_pci_address(
    item: dict[str, Any], level: Level
) -> None:
    (finding,) = judge.other_slices("node-01", [OURS, item])

    assert finding.level is level


def test_expansion_of_unknown_size_is_a_problem() -> None:
    ratios = replace(NO_MORE, host_disk_percent=70)

    (found,) = judge.expansion(ratios, ["data disk: /nowhere: No such file or directory"])

    assert found.level is Level.PROBLEM
    assert "/nowhere" in found.found
    assert "data-dir" in found.cure


def test_expansion_is_judged_only_if_the_pool_has_one() -> None:
    assert list(judge.expansion(None, ())) == []
    assert list(judge.expansion(NO_MORE, ())) == []
    (found,) = judge.expansion(replace(NO_MORE, host_memory_percent=10), ())
    assert found.level is Level.OK


WHO = "provider rack (attributes, racks 1.0)"


def test_provider_that_answers_is_fine() -> None:
    found = gpus.provider(WHO, given=["b", "a"], errors=[], refused=[])

    assert (found.level, found.found) == (Level.OK, "gives a, b")


def test_provider_without_an_answer_at_present_is_fine() -> None:
    found = gpus.provider(WHO, given=[], errors=[], refused=[])

    assert (found.level, found.found) == (Level.OK, "gives nothing at present")


def test_failure_is_a_warning_with_its_error() -> None:
    found = gpus.provider(WHO, given=[], errors=["ValueError('x')"], refused=["a: b"])

    assert (found.level, found.found) == (Level.WARNING, "ValueError('x')")
    assert "--disable-provider" in found.cure


def test_refused_name_is_a_warning() -> None:
    found = gpus.provider(WHO, given=["a"], errors=[], refused=["model: taken"])

    assert (found.level, found.found) == (Level.WARNING, "left out: model: taken")


def test_provider_whose_name_is_taken_is_a_warning() -> None:
    found = gpus.unused_provider(WHO, "name: found rack")

    assert (found.level, found.found) == (Level.WARNING, "not used: name: found rack")
