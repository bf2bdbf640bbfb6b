"""Findings about a node's GPUs, other allocators of the same cards, and providers."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from tensorfusion_dra.app.doctor import gpus
from tensorfusion_dra.core.devices.capacity import NO_MORE
from tensorfusion_dra.core.devices.gpu import LeftOut, TflopsSource
from tensorfusion_dra.core.doctor.finding import Finding, Level
from tensorfusion_dra.core.errors import RetryableError
from tests.support import findings
from tests.support.builders.gpus import gpu
from tests.support.findings import Expected

CARD = gpu(0)
BUS = "0000:3a:00.0"
OK = (Level.OK, "")


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
        (
            gpus.expansion(replace(NO_MORE, host_disk_percent=70), ["data disk: /nowhere: none"]),
            [(Level.PROBLEM, "/nowhere")],
        ),
        (gpus.expansion(replace(NO_MORE, host_memory_percent=10), ()), [OK]),
        (gpus.expansion(NO_MORE, ()), []),
        (gpus.expansion(None, ()), []),
    ],
)
def test_cards_and_what_containers_get_of_them(
    found: Iterable[Finding], expected: list[Expected]
) -> None:
    findings.check(found, expected)


def node(capacity: dict[str, str], **annotations: str) -> dict[str, Any]:
    metadata = {"name": "node-01", "annotations": annotations}
    return {"metadata": metadata, "status": {"capacity": capacity}}


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (node({"cpu": "8"}), ""),
        (node({"nvidia.com/gpu": "0"}), ""),
        (node({"nvidia.com/gpu": "8"}), "nvidia.com/gpu: 8: NVIDIA's device plugin"),
        (node({"nvidia.com/mig-1g.10gb": "7"}), "NVIDIA's device plugin"),
        (
            node({"nvidia.com/gpu": "80"}, **{"hami.io/node-nvidia-register": "[]"}),
            "nvidia.com/gpu: 80: HAMi's device plugin allocates cards of this node",
        ),
        (node({"volcano.sh/vgpu-number": "10"}), "Volcano's"),
        (node({"aliyun.com/gpu-mem": "80"}), "the GPU share device plugin"),
        (node({"tensor-fusion.ai/index_0": "8"}), ""),
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
    found = gpus.tensor_fusion_workers(node({capacity: "8"}), workers)

    assert [finding.level for finding in found] == levels


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
    findings.check(gpus.other_slices("node-01", [OURS, item]), [(level, "")])
