"""Cards as the unmodified pynvml reads them, from a compiled stand-in for libnvidia-ml.so.1."""

from pathlib import Path
from typing import Any

import pytest

from tests.discovery.nvml.nvml_machine import MIB, Machine, answers, card, uuid

NOT_SUPPORTED = "!3"
GPU_IS_LOST = "!15"
NO_PERMISSION = "!4"


def subjects(inventory: Any) -> list[str]:
    return [left["subject"] for left in inventory["left_out"]]


def reason(inventory: Any) -> str:
    (left,) = inventory["left_out"]
    return str(left["reason"])


def test_every_field_of_a_card_is_read(machine: Machine) -> None:
    machine.put_in_sysfs("0000:3a:00.0", "pci0000:39/0000:39:01.0/0000:3a:00.0", numa_node="1")

    inventory = machine.read(answers(card(0)))

    assert inventory["gpus"] == [
        {
            "uuid": "GPU-00000000-aaaa-bbbb-cccc-dddddddddddd",
            "index": 0,
            "minor": 0,
            "product_name": "NVIDIA A100-SXM4-80GB",
            "model": "A100",
            "milli_tflops": 312_000,
            "tflops_source": "table",
            "vram_bytes": 81920 * MIB,
            "brand": "Nvidia",
            "architecture": "Ampere",
            "compute_capability": [8, 0],
            "driver_version": "550.54.15",
            "cuda_driver_version": [12, 4],
            "pci_bus_id": "0000:3a:00.0",
            "pcie_root": "pci0000:39",
            "numa_node": 1,
            "simulated": False,
            "reserved_bytes": 0,
        }
    ]
    assert inventory["left_out"] == []


def test_cards_are_in_the_order_of_nvml(machine: Machine) -> None:
    inventory = machine.read(answers(card(0, minor="3"), card(1, minor="0"), card(2)))

    assert [(gpu["index"], gpu["minor"]) for gpu in inventory["gpus"]] == [(0, 3), (1, 0), (2, 2)]


def test_node_without_cards_has_an_empty_inventory(machine: Machine) -> None:
    inventory = machine.read(answers())

    assert (inventory["gpus"], inventory["left_out"]) == ([], [])


@pytest.mark.parametrize(
    ("question", "field", "value"),
    [
        ("minor", "minor", None),
        ("pci", "pci_bus_id", None),
        ("brand", "brand", ""),
        ("architecture", "architecture", ""),
        ("compute_capability", "compute_capability", [0, 0]),
        ("mig", "model", "A100"),
        ("cores", "milli_tflops", 312_000),
        ("clock", "milli_tflops", 312_000),
    ],
)
def test_unsupported_query_affects_only_its_field_and_card(
    machine: Machine, question: str, field: str, value: object
) -> None:
    inventory = machine.read(answers(card(0, **{question: NOT_SUPPORTED}), card(1)))

    assert inventory["gpus"][0][field] == value
    assert [gpu["uuid"] for gpu in inventory["gpus"]] == [uuid(0), uuid(1)]


def test_unsupported_version_queries_leave_the_versions_empty(machine: Machine) -> None:
    inventory = machine.read(answers(card(0), driver=NOT_SUPPORTED, cuda=NOT_SUPPORTED))

    assert inventory["gpus"][0]["driver_version"] == ""
    assert inventory["gpus"][0]["cuda_driver_version"] == [0, 0]


def test_library_without_newer_functions_works(machine: Machine, old_library: Path) -> None:
    machine.library = old_library

    (gpu,) = machine.read(answers(card(0)))["gpus"]

    assert gpu["vram_bytes"] == 81920 * MIB
    assert gpu["architecture"] == ""
    assert gpu["compute_capability"] == [8, 0]


@pytest.mark.parametrize(
    ("reserved", "expected"), [(str(450 * MIB + 7), 450 * MIB + 7), ("0", 0), (NOT_SUPPORTED, 0)]
)
def test_reserved_memory_is_read_if_the_driver_reports_it(
    machine: Machine, reserved: str, expected: int
) -> None:
    (gpu,) = machine.read(answers(card(0, reserved=reserved)))["gpus"]

    assert (gpu["vram_bytes"], gpu["reserved_bytes"]) == (81920 * MIB, expected)


def test_library_without_memory_info_v2_reports_no_reserved_memory(
    machine: Machine, old_library: Path
) -> None:
    machine.library = old_library

    (gpu,) = machine.read(answers(card(0, reserved=str(450 * MIB))))["gpus"]

    assert (gpu["vram_bytes"], gpu["reserved_bytes"]) == (81920 * MIB, 0)


def test_card_without_usable_memory_is_left_out(machine: Machine) -> None:
    inventory = machine.read(answers(card(0, reserved=str(81920 * MIB)), card(1)))

    assert subjects(inventory) == [uuid(0)]
    assert "are reserved, expected at least 1 MiB to hand out" in reason(inventory)


def test_card_in_mig_mode_is_left_out(machine: Machine) -> None:
    inventory = machine.read(answers(card(0, mig="1 1"), card(1)))

    assert subjects(inventory) == [uuid(0)]
    assert "found MIG on, expected off" in reason(inventory)
    assert [gpu["uuid"] for gpu in inventory["gpus"]] == [uuid(1)]


def test_card_with_pending_mig_mode_is_listed(machine: Machine) -> None:
    assert len(machine.read(answers(card(0, mig="0 1")))["gpus"]) == 1


@pytest.mark.parametrize("memory", [NOT_SUPPORTED, "0"])
def test_card_without_a_memory_size_is_left_out(machine: Machine, memory: str) -> None:
    inventory = machine.read(answers(card(0, memory=memory), card(1)))

    assert subjects(inventory) == [uuid(0)]
    assert reason(inventory).startswith("memory: found ")
    assert len(inventory["gpus"]) == 1


def test_card_that_cannot_be_opened_does_not_affect_others(machine: Machine) -> None:
    inventory = machine.read(answers(card(0, handle=NO_PERMISSION), card(1)))

    assert subjects(inventory) == ["GPU 0"]
    assert reason(inventory) == (
        "handle: found NVML_ERROR_NO_PERMISSION, expected access to the card"
    )
    assert inventory["gpus"][0]["index"] == 1


def test_card_without_a_uuid_is_left_out(machine: Machine) -> None:
    inventory = machine.read(answers(card(0, uuid="!999"), card(1)))

    assert subjects(inventory) == ["GPU 0"]
    assert reason(inventory) == "uuid: found NVML_ERROR_UNKNOWN, expected GPU-..."


@pytest.mark.parametrize("question", ["handle", "uuid", "memory", "clock"])
def test_lost_card_is_left_out_even_if_it_answers_most_queries(
    machine: Machine, question: str
) -> None:
    inventory = machine.read(answers(card(0, **{question: GPU_IS_LOST}), card(1)))

    assert "NVML_ERROR_GPU_IS_LOST, expected a working card" in reason(inventory)
    assert [gpu["uuid"] for gpu in inventory["gpus"]] == [uuid(1)]


def test_error_number_unknown_to_pynvml_is_shown_as_a_number(machine: Machine) -> None:
    inventory = machine.read(answers(card(0, uuid="!77")))

    assert reason(inventory) == "uuid: found NVML_ERROR_77, expected GPU-..."


def test_unknown_model_is_estimated_from_cores_and_clock(machine: Machine) -> None:
    (gpu,) = machine.read(answers(card(0, name="NVIDIA A999")))["gpus"]

    assert gpu["tflops_source"] == "estimate"
    assert gpu["milli_tflops"] == 6912 * 1410 * 32 // 1000


def test_unknown_model_that_cannot_be_estimated_is_left_out(machine: Machine) -> None:
    inventory = machine.read(answers(card(0, name="NVIDIA A999", cores=NOT_SUPPORTED)))

    assert reason(inventory).startswith("tflops: found 'NVIDIA A999' in no model table")


def test_name_that_is_not_utf_8_is_empty(machine: Machine) -> None:
    (gpu,) = machine.read(answers(card(0, name="NVIDIA \udcff")))["gpus"]

    assert (gpu["product_name"], gpu["model"]) == ("", "unknown")
    assert gpu["tflops_source"] == "estimate"


def test_pci_domain_above_16_bits_is_kept(machine: Machine) -> None:
    (gpu,) = machine.read(answers(card(0, pci="00010000:E1:00.0")))["gpus"]

    assert gpu["pci_bus_id"] == "10000:e1:00.0"


def test_root_complex_is_the_first_in_the_device_path(machine: Machine) -> None:
    machine.put_in_sysfs(
        "0000:3a:00.0",
        "pci0000:39/0000:39:0e.0/pci10000:e0/10000:e0:06.0/0000:3a:00.0",
        numa_node="-1",
    )

    (gpu,) = machine.read(answers(card(0)))["gpus"]

    assert gpu["pcie_root"] == "pci0000:39"
    assert gpu["numa_node"] is None


def test_card_that_is_missing_in_sysfs_has_no_place(machine: Machine) -> None:
    (gpu,) = machine.read(answers(card(0)))["gpus"]

    assert (gpu["pcie_root"], gpu["numa_node"]) == (None, None)


def test_raw_has_the_answer_to_every_query(machine: Machine) -> None:
    text = answers(card(0, brand=NOT_SUPPORTED, mig="1 1"), card(1, handle=GPU_IS_LOST))

    (raw,) = machine.run(text, ["raw"])

    assert raw["library"] == str(machine.library)
    assert raw["driver_version"] == "550.54.15"
    assert raw["cuda_driver_version"] == 12040
    first, second = raw["gpus"]
    assert first["bus_id"] == "00000000:3A:00.0"
    assert first["brand"] == {"error": "NVML_ERROR_NOT_SUPPORTED"}
    assert first["mig_mode"] == [1, 1]
    assert second["handle"] == {"error": "NVML_ERROR_GPU_IS_LOST"}
