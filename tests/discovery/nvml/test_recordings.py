"""Real cards: what NVML answered on a machine, as `hack/gpu-check` recorded it, in recordings/."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.discovery.nvml.nvml_machine import MIB, Machine, answers

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

PUBLISHED = {
    "nvidia-h200-580.159.04": {
        "product_name": "NVIDIA H200",
        "model": "H200",
        "milli_tflops": 989_000,
        "tflops_source": "table",
        "vram_bytes": 143_771 * MIB,
        "reserved_bytes": 615 * MIB + 65_536,
        "brand": "Nvidia",
        "architecture": "Hopper",
        "compute_capability": [9, 0],
        "driver_version": "580.159.04",
        "cuda_driver_version": [13, 0],
        "pci_bus_id": "0000:00:06.0",
    },
}


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

    assert found | {"library": ""} == recording | {"library": ""}
    assert inventory["left_out"] == []
    assert inventory["gpus"][0] == inventory["gpus"][0] | PUBLISHED[name]


def of_stand_in(gpu: Mapping[str, Any]) -> dict[str, str]:
    """Return a recorded card as the stand-in answers for it."""
    return {
        query: " ".join(map(str, gpu[field])) if isinstance(gpu[field], list) else str(gpu[field])
        for field, query in QUERIES.items()
    }
