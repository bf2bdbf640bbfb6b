"""Simulated cards, from profiles."""

from pathlib import Path

import pytest

from tensorfusion_dra.core.devices.gpu import TflopsSource
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tensorfusion_dra.discovery import models
from tensorfusion_dra.discovery.simulated import profile, simulated_discovery
from tensorfusion_dra.discovery.simulated.simulated_discovery import SimulatedDiscovery
from tests.discovery.simulated.reading import gpus


def written(folder: Path, text: str) -> str:
    file = folder / "profile.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def over_time(text: str, clock: Clock) -> SimulatedDiscovery:
    return SimulatedDiscovery(
        profile.from_text(text), node_name="node-1", table=models.load(), clock=clock
    )


def test_profile_describes_each_card(tmp_path: Path) -> None:
    text = """
        driver_version: "570.1"
        gpus:
          - {product: A100-SXM4-80GB, count: 2}
          - product: NVIDIA Experimental 9
            vram: 12345Mi
            tflops: 71.2
            uuid: GPU-01234567-89ab-cdef-0123-456789abcdef
          - {product: L4, vram: 20Gi}
    """
    made = gpus(written(tmp_path, text))

    assert [gpu.model for gpu in made] == ["A100", "A100", "Experimental9", "L4"]
    assert made[2].uuid == "GPU-01234567-89ab-cdef-0123-456789abcdef"
    assert made[2].vram_bytes == 12345 * 2**20
    assert (made[2].milli_tflops, made[2].tflops_source) == (71_200, TflopsSource.PROFILE)
    assert made[2].compute_capability == (0, 0)
    assert (made[3].vram_bytes, made[3].compute_capability) == (20 * GIB, (8, 9))
    assert {gpu.driver_version for gpu in made} == {"570.1"}


def test_profile_may_set_the_reserved_memory(tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text("gpus: [{product: T4, reserved: 450Mi}, {product: T4}]")

    found = simulated_discovery.from_text(str(file), node_name="node-01").read()

    assert [gpu.reserved_bytes for gpu in found.gpus] == [450 * MIB, 0]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("mig", "mig_mode: found MIG on"),
        ("no-memory", "memory: found NVML_ERROR_NOT_SUPPORTED"),
        ("lost", "memory_bytes: found NVML_ERROR_GPU_IS_LOST"),
    ],
)
def test_faulty_card_is_left_out_like_a_real_one(tmp_path: Path, fault: str, reason: str) -> None:
    text = written(tmp_path, f"gpus: [{{product: T4, fault: {fault}}}, {{product: L4}}]")

    inventory = simulated_discovery.from_text(text, node_name="node-1").read()

    assert [gpu.model for gpu in inventory.gpus] == ["L4"]
    (left,) = inventory.left_out
    assert left.subject.startswith("GPU-")
    assert left.reason.startswith(reason)


def test_card_without_compute_is_left_out(tmp_path: Path) -> None:
    text = written(tmp_path, "gpus: [{product: NVIDIA X1, vram: 1Gi}]")

    inventory = simulated_discovery.from_text(text, node_name="node-1").read()

    assert inventory.gpus == ()
    assert inventory.left_out[0].reason.startswith("tflops: found 'NVIDIA X1' in no model table")


def test_card_that_appears_later_changes_no_uuid(tmp_path: Path) -> None:
    clock = Clock()
    text = "gpus: [{product: T4, appears_after_seconds: 5}, {product: L4}]"
    discovery = over_time(written(tmp_path, text), clock)

    (early,) = discovery.read().gpus
    clock.now += 5
    late = discovery.read().gpus

    assert (early.model, early.index) == ("L4", 0)
    assert [(gpu.model, gpu.index) for gpu in late] == [("T4", 0), ("L4", 1)]
    assert late[1].uuid == early.uuid
    assert late[1].pci_bus_id == early.pci_bus_id


def test_driver_is_missing_for_the_configured_time(tmp_path: Path) -> None:
    clock = Clock()
    text = "{driver_missing_for_seconds: 2.5, gpus: [{product: T4}]}"
    discovery = over_time(written(tmp_path, text), clock)

    with pytest.raises(RetryableError, match="found no driver, waiting for it"):
        discovery.read()
    with pytest.raises(RetryableError):
        discovery.raw()
    clock.now += 2.5

    assert len(discovery.read().gpus) == 1


def test_node_may_have_no_cards(tmp_path: Path) -> None:
    assert gpus("0xT4") == ()
    assert gpus(written(tmp_path, "gpus: []")) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found None, expected fields gpus, driver_version"),
        ("[]", "found a list of 0, expected fields gpus"),
        ("{}", "gpus: found None, expected a list of cards"),
        ("{gpus: [], pool: x}", "found 'pool', expected only gpus, driver_version"),
        ("{gpus: [], driver_version: 580.9}", "driver_version: found 580.9, expected a text"),
        ("{gpus: [], driver_missing_for_seconds: -1}", "found -1, expected 0 to 86400 seconds"),
        ("{gpus: [], driver_missing_for_seconds: .nan}", "found nan, expected 0 to"),
        ("gpus: [T4]", "entry 1: found 'T4', expected fields product, count"),
        ("gpus: [{}]", "entry 1: product: found None, expected a card's name"),
        ("gpus: [{product: T4}, {product: X1}]", "entry 2: found no card 'X1', expected one like"),
        ("gpus: [{product: T4, memory: 1}]", "entry 1: found 'memory', expected only product"),
        ("gpus: [{product: T4, count: -1}]", "entry 1: count: found -1, expected 0 to 256"),
        ("gpus: [{product: T4, count: true}]", "entry 1: count: found True, expected 0 to 256"),
        ("gpus: [{product: T4, count: 200}, {product: T4, count: 57}]", "found 257 cards"),
        ("gpus: [{product: T4, vram: many}]", "entry 1: vram: found 'many', expected a quantity"),
        ("gpus: [{product: T4, vram: 1Ki}]", "entry 1: vram: found '1Ki', expected at least 1Mi"),
        ("gpus: [{product: T4, vram: -5Gi}]", "vram: found '-5Gi', expected at least 1Mi"),
        ("gpus: [{product: T4, reserved: 15Gi}]", "reserved: found '15Gi', expected 0 or more"),
        ("gpus: [{product: T4, reserved: -1}]", "reserved: found -1, expected 0 or more"),
        ("gpus: [{product: T4, tflops: 0}]", "entry 1: tflops: found 0, expected more than 0"),
        ("gpus: [{product: T4, tflops: [1]}]", "entry 1: tflops: found list"),
        ("gpus: [{product: T4, uuid: GPU-1}]", "uuid: found 'GPU-1', expected GPU- and"),
        ("gpus: [{product: T4, fault: fire}]", "fault: found 'fire', expected one of mig, no-mem"),
        ("gpus: [{product: T4, fault: [mig]}]", "fault: found a list of 1, expected one of"),
        (
            "gpus: [{product: T4, count: 2, uuid: GPU-01234567-89ab-cdef-0123-456789abcdef}]",
            "uuid: found the same UUID on several cards, expected unique ones",
        ),
    ],
)
def test_invalid_profile_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path, text)

    with pytest.raises(InputError) as caught:
        simulated_discovery.from_text(file, node_name="node-1")

    assert str(caught.value).startswith(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
