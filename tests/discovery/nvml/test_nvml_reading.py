"""Cards as the unmodified pynvml reads them, from a compiled stand-in for libnvidia-ml.so.1."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.discovery.nvml.nvml_machine import MIB, Machine, answers, card, uuid
from tests.support.compiler import compiler
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

NOT_SUPPORTED = "!3"
GPU_IS_LOST = "!15"
NO_PERMISSION = "!4"

DRIVER_NOT_LOADED = "!9"
LIB_RM_VERSION_MISMATCH = "!18"
RECORDINGS = Path(__file__).parents[2] / "recordings"
QUERIES = {
    "name": "name",
    "uuid": "uuid",
    "bus_id": "pci",
    "minor": "minor",
    "memory_bytes": "memory",
    "reserved_bytes": "reserved",
    "brand": "brand",
    "architecture": "architecture",
    "compute_capability": "compute_capability",
    "mig_mode": "mig",
    "cores": "cores",
    "max_sm_clock_mhz": "clock",
    "recovery_action": "recovery",
}
"""Names of the stand-in's answers by field of a recording."""
HOPPER = {
    "milli_tflops": 989_000,
    "tflops_source": "table",
    "brand": "Nvidia",
    "architecture": "Hopper",
    "compute_capability": [9, 0],
    "driver_version": "580.159.04",
    "cuda_driver_version": [13, 0],
    "pci_bus_id": "0000:00:06.0",
}
PUBLISHED = {
    "nvidia-h100-80gb-hbm3-580.159.04": {
        **HOPPER,
        "product_name": "NVIDIA H100 80GB HBM3",
        "model": "H100",
        "vram_bytes": 81_559 * MIB,
        "reserved_bytes": 480 * MIB,
    },
    "nvidia-h200-580.159.04": {
        **HOPPER,
        "product_name": "NVIDIA H200",
        "model": "H200",
        "vram_bytes": 143_771 * MIB,
        "reserved_bytes": 615 * MIB + 65_536,
    },
}


def test_every_field_of_a_card_is_read(machine: Machine) -> None:
    machine.put_in_sysfs("0000:3a:00.0", "pci0000:39/0000:39:01.0/0000:3a:00.0", numa_node="1")

    assert machine.read(answers(card(0))) == {
        "gpus": [
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
                "partition": "",
                "parent_uuid": "",
                "gpu_instance": None,
                "capability_minors": [],
            }
        ],
        "left_out": [],
        "lost": [],
        "recovery": {uuid(0): 0},
    }


def test_node_without_cards_has_an_empty_inventory(machine: Machine) -> None:
    assert machine.read(answers()) == {"gpus": [], "left_out": [], "lost": [], "recovery": {}}


@pytest.mark.parametrize(
    ("own", "field", "value"),
    [
        ({"minor": NOT_SUPPORTED}, "minor", None),
        ({"pci": NOT_SUPPORTED}, "pci_bus_id", None),
        ({"pci": "00010000:E1:00.0"}, "pci_bus_id", "10000:e1:00.0"),
        ({"brand": NOT_SUPPORTED}, "brand", ""),
        ({"architecture": NOT_SUPPORTED}, "architecture", ""),
        ({"compute_capability": NOT_SUPPORTED}, "compute_capability", [0, 0]),
        ({"mig": NOT_SUPPORTED}, "model", "A100"),
        ({"mig": "0 1"}, "model", "A100"),  # MIG mode is pending
        ({"cores": NOT_SUPPORTED}, "milli_tflops", 312_000),
        ({"clock": NOT_SUPPORTED}, "milli_tflops", 312_000),
        ({"name": "NVIDIA A999"}, "milli_tflops", 6912 * 1410 * 32 // 1000),
        ({"name": "NVIDIA A999"}, "tflops_source", "estimate"),
        ({"name": "NVIDIA \udcff"}, "product_name", ""),  # not UTF-8
        ({"name": "NVIDIA \udcff"}, "model", "unknown"),
        ({"reserved": str(450 * MIB + 7)}, "reserved_bytes", 450 * MIB + 7),
        ({"reserved": NOT_SUPPORTED}, "reserved_bytes", 0),
        ({"reserved": str(450 * MIB)}, "vram_bytes", 81920 * MIB),
    ],
)
def test_unusual_answer_affects_only_its_field_and_card(
    machine: Machine, own: dict[str, str], field: str, value: object
) -> None:
    inventory = machine.read(answers(card(0, **own), card(1)))

    assert inventory["gpus"][0][field] == value
    assert [gpu["uuid"] for gpu in inventory["gpus"]] == [uuid(0), uuid(1)]


def test_unsupported_version_queries_leave_the_versions_empty(machine: Machine) -> None:
    (gpu,) = machine.read(answers(card(0), driver=NOT_SUPPORTED, cuda=NOT_SUPPORTED))["gpus"]

    assert (gpu["driver_version"], gpu["cuda_driver_version"]) == ("", [0, 0])


def test_library_without_newer_functions_works(machine: Machine, old_library: Path) -> None:
    machine.library = old_library

    (gpu,) = machine.read(answers(card(0, reserved=str(450 * MIB))))["gpus"]

    assert (gpu["vram_bytes"], gpu["reserved_bytes"]) == (81920 * MIB, 0)
    assert (gpu["architecture"], gpu["compute_capability"]) == ("", [8, 0])


@pytest.mark.parametrize(
    ("own", "subject", "reason"),
    [
        ({"reserved": str(81920 * MIB)}, uuid(0), "are reserved, expected at least 2 MiB to hand"),
        ({"reserved": str(81919 * MIB)}, uuid(0), "are reserved, expected at least 2 MiB to hand"),
        ({"uuid": "GPU_0"}, "GPU_0", "uuid: found GPU_0, expected GPU-..."),
        ({"mig": "1 1"}, uuid(0), "MIG mode is on"),
        ({"memory": NOT_SUPPORTED}, uuid(0), "memory: found "),
        ({"memory": "0"}, uuid(0), "memory: found "),
        ({"handle": NO_PERMISSION}, "GPU 0", "handle: found NVML_ERROR_NO_PERMISSION, expected"),
        ({"uuid": "!999"}, "GPU 0", "uuid: found NVML_ERROR_UNKNOWN, expected GPU-..."),
        ({"uuid": "!77"}, "GPU 0", "uuid: found NVML_ERROR_77, expected GPU-..."),
        # A lost card still answers most queries.
        ({"handle": GPU_IS_LOST}, "GPU 0", "NVML_ERROR_GPU_IS_LOST, expected a working card"),
        ({"uuid": GPU_IS_LOST}, "GPU 0", "NVML_ERROR_GPU_IS_LOST, expected a working card"),
        ({"memory": GPU_IS_LOST}, uuid(0), "NVML_ERROR_GPU_IS_LOST, expected a working card"),
        ({"clock": GPU_IS_LOST}, uuid(0), "NVML_ERROR_GPU_IS_LOST, expected a working card"),
        (
            {"name": "NVIDIA A999", "cores": NOT_SUPPORTED},
            uuid(0),
            "tflops: found 'NVIDIA A999' in no model table",
        ),
    ],
)
def test_unusable_card_is_left_out_and_others_stay(
    machine: Machine, own: dict[str, str], subject: str, reason: str
) -> None:
    inventory = machine.read(answers(card(0, **own), card(1)))

    (left,) = inventory["left_out"]
    assert left["subject"] == subject
    assert reason in left["reason"]
    assert [(gpu["uuid"], gpu["index"]) for gpu in inventory["gpus"]] == [(uuid(1), 1)]


def test_root_complex_is_the_first_in_the_device_path(machine: Machine) -> None:
    path = "pci0000:39/0000:39:0e.0/pci10000:e0/10000:e0:06.0/0000:3a:00.0"
    machine.put_in_sysfs("0000:3a:00.0", path, numa_node="-1")

    (gpu,) = machine.read(answers(card(0)))["gpus"]

    assert (gpu["pcie_root"], gpu["numa_node"]) == ("pci0000:39", None)


def test_raw_has_the_answer_to_every_query(machine: Machine) -> None:
    text = answers(card(0, brand=NOT_SUPPORTED, mig="1 1"), card(1, handle=GPU_IS_LOST))

    (raw,) = machine.run(text, ["raw"])

    first, second = raw.pop("gpus")
    assert raw == {
        "library": str(machine.library),
        "driver_version": "550.54.15",
        "cuda_driver_version": 12040,
    }
    assert first == first | {
        "bus_id": "00000000:3A:00.0",
        "brand": {"error": "NVML_ERROR_NOT_SUPPORTED"},
        "mig_mode": [1, 1],
    }
    assert second["handle"] == {"error": "NVML_ERROR_GPU_IS_LOST"}


def uuids(inventory: Any) -> list[str]:
    return [gpu["uuid"] for gpu in inventory["gpus"]]


def test_missing_library_is_a_retryable_error_with_its_path(machine: Machine) -> None:
    machine.library = Path("/nowhere/libnvidia-ml.so.1")

    error = machine.read(answers())

    assert error["error"] == "RetryableError"
    assert re.fullmatch(
        r"NVML: /nowhere/libnvidia-ml\.so\.1: cannot open .*"
        r" waiting for the NVIDIA driver's libnvidia-ml\.so\.1",
        error["text"],
    )


@pytest.mark.parametrize("folder", ["usr/lib/x86_64-linux-gnu", "lib64", "lib"])
def test_first_library_under_the_driver_root_is_loaded(
    machine: Machine, library: Path, folder: str
) -> None:
    machine.library, machine.driver_root = None, machine.folder / "root"
    for each in ("usr/lib64", folder):
        (machine.driver_root / each).mkdir(parents=True)
    (machine.driver_root / "usr/lib64/libnvidia-ml.so.1").write_bytes(b"no library")
    expected = shutil.copy(library, machine.driver_root / folder / "libnvidia-ml.so.1")

    (raw,) = machine.run(answers(card(0)), ["raw"])

    assert raw["library"] == str(expected)


def test_library_without_nvml_functions_is_refused(machine: Machine) -> None:
    machine.library = machine.folder / "libother.so.1"
    build = [compiler("the NVML tests"), "-shared", "-xc", "/dev/null", "-o", str(machine.library)]
    subprocess.run(build, check=True, timeout=PATIENCE_SECONDS)

    error = machine.read(answers())

    assert error["error"] == "RetryableError"
    text = f"{machine.library}: found no function nvmlInitWithFlags, expected NVML"
    assert text in error["text"]


def test_library_that_appears_later_is_loaded(machine: Machine, library: Path) -> None:
    machine.library = machine.folder / "libnvidia-ml.so.1"

    missing, _, inventory = machine.run(
        answers(card(0)), ["read"], ["link", str(machine.library), str(library)], ["read"]
    )

    assert (missing["error"], uuids(inventory)) == ("RetryableError", [uuid(0)])


@pytest.mark.parametrize(
    ("init", "waited_for"),
    [
        (DRIVER_NOT_LOADED, "waiting for the NVIDIA kernel driver to be loaded"),
        (NO_PERMISSION, "waiting for access to /dev/nvidiactl"),
        (LIB_RM_VERSION_MISMATCH, "waiting for library and kernel driver of the same version"),
        ("!77", "answered NVML_ERROR_77, waiting for NVML to answer"),
    ],
)
def test_failed_initialisation_is_a_retryable_error_with_its_cause(
    machine: Machine, init: str, waited_for: str
) -> None:
    first, _, inventory = machine.run(
        answers(card(0), init=init), ["read"], machine.rewrite(answers(card(0))), ["read"]
    )

    assert (first["error"], uuids(inventory)) == ("RetryableError", [uuid(0)])
    assert str(machine.library) in first["text"]
    assert first["text"].endswith(waited_for)


def test_driver_unloaded_during_a_reading_fails_the_whole_reading(
    machine: Machine,
) -> None:
    gone, _, inventory = machine.run(
        answers(card(0), card(1, uuid=DRIVER_NOT_LOADED)),
        ["read"],
        machine.rewrite(answers(card(0), card(1))),
        ["read"],
    )

    assert (gone["error"], uuids(inventory)) == ("RetryableError", [uuid(0), uuid(1)])
    assert "uuid of GPU 1" in gone["text"]


def test_replaced_library_is_a_fatal_error(machine: Machine, library: Path) -> None:
    machine.library = machine.folder / "libnvidia-ml.so.1"
    shutil.copy(library, machine.library)

    first, _, _, error = machine.run(
        answers(card(0)),
        ["read"],
        machine.rewrite(answers(card(0), init=LIB_RM_VERSION_MISMATCH)),
        ["replace", str(machine.library), "the next version"],
        ["read"],
    )

    assert (uuids(first), error["error"]) == ([uuid(0)], "FatalError")
    assert "the library was replaced, only a new process can load it" in error["text"]


def test_hanging_call_ends_readings_with_an_error_that_names_it_until_it_returns(
    machine: Machine,
) -> None:
    machine.wait_seconds = 2.0
    go = f"{machine.folder}/go"

    first, second, _, _, inventory, threads = machine.run(
        answers(card(0), card(1, uuid=f"~{go} {uuid(1)}")),
        ["read"],
        ["read"],
        machine.rewrite(answers(card(0), card(1))),
        ["write", go, ""],
        ["read again"],
        ["threads"],
    )

    assert first["error"] == second["error"] == "HungError"
    text = r"NVML: uuid of GPU 1: found no answer after \d+ s, .*, expected one within 2 s"
    assert re.match(text, first["text"])
    assert (uuids(inventory), threads) == ([uuid(0), uuid(1)], ["nvml"])


def test_card_newly_bound_to_the_kernel_driver_is_found_at_once(machine: Machine) -> None:
    driver = machine.folder / "sys" / "bus" / "pci" / "drivers" / "nvidia"
    driver.mkdir(parents=True)
    (driver / "0000:3a:00.0").touch()

    _, _, _, _, again, events = machine.run(
        answers(card(0)),
        ["read"],
        ["events", uuid(0)],
        machine.rewrite(answers(card(0), card(1))),
        ["write", f"{driver}/0000:3b:00.0", ""],
        ["read"],
        ["reopened"],
    )

    assert (uuids(again), events) == ([uuid(0), uuid(1)], True)


def test_every_reading_finds_new_cards_while_a_card_is_not_watched(machine: Machine) -> None:
    _, _, _, again = machine.run(
        answers(card(0), card(1)),
        ["read"],
        ["events", uuid(0)],
        machine.rewrite(answers(card(0), card(1), card(2))),
        ["read"],
    )

    assert uuids(again) == [uuid(0), uuid(1), uuid(2)]


def test_lost_card_is_reported_with_the_fields_that_it_still_answers(machine: Machine) -> None:
    found = machine.read(answers(card(0, memory=GPU_IS_LOST), card(1, handle=GPU_IS_LOST)))

    lost = [(each["uuid"], each["pci_bus_id"]) for each in found["lost"]]
    assert (found["gpus"], lost) == ([], [(uuid(0), "0000:3a:00.0"), (None, None)])


def test_unsupported_recovery_action_is_not_reported_as_none(machine: Machine) -> None:
    found = machine.read(answers(card(0), card(1, recovery=NOT_SUPPORTED), card(2, recovery="4")))

    assert found["recovery"] == {uuid(0): 0, uuid(2): 4}


def test_every_recording_has_an_expectation() -> None:
    assert {file.stem for file in RECORDINGS.iterdir()} == PUBLISHED.keys()


@pytest.mark.process
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_recorded_card_is_published(machine: Machine, name: str) -> None:
    recording = json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))
    text = answers(
        *(of_stand_in(gpu) for gpu in recording["gpus"]),
        driver=recording["driver_version"],
        cuda=str(recording["cuda_driver_version"]),
    )

    found, inventory = machine.run(text, ["raw"], ["read"])

    assert [each.pop("partitions") for each in found["gpus"]] == [[] for _ in recording["gpus"]]
    assert found | {"library": ""} == recording | {"library": ""}
    assert inventory["left_out"] == []
    assert inventory["gpus"][0] == inventory["gpus"][0] | PUBLISHED[name]


def of_stand_in(gpu: Mapping[str, Any]) -> dict[str, str]:
    """Return a recorded card as the stand-in answers for it."""
    return {
        query: " ".join(map(str, gpu[field])) if isinstance(gpu[field], list) else str(gpu[field])
        for field, query in QUERIES.items()
    }
