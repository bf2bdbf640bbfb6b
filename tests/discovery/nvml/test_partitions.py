"""Partitions of cards in MIG mode, as the unmodified pynvml reads them from the stand-in."""

from typing import Any

import pytest

from stand_ins import libraries
from tensorfusion_dra.discovery.nvml import mig
from tests.discovery.nvml.nvml_machine import (
    MIB,
    MIG,
    Machine,
    answers,
    card,
    divided,
    mig_uuid,
    partition,
    uuid,
)

pytestmark = pytest.mark.process


def put_minors(machine: Machine, *lines: str) -> None:
    file = machine.folder / "proc" / mig.MINORS
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{line}\n" for line in ("config 1", "monitor 2", *lines)))


def partitions(inventory: Any) -> list[Any]:
    return [each for each in inventory["gpus"] if each["partition"]]


def test_card_in_mig_mode_is_published_as_its_partitions(machine: Machine) -> None:
    put_minors(
        machine,
        *("gpu1/gi7/access 66", "gpu1/gi7/ci0/access 67"),
        *("gpu1/gi8/access 75", "gpu1/gi8/ci0/access 76"),
        "gpu0/gi7/access 3",
    )
    large = partition(1, 8, name="NVIDIA A100-SXM4-80GB MIG 3g.40gb", attributes="42 40192")

    found = machine.read(divided(1, partition(0, 7), large, recovery="1"))

    whole, first, second = found["gpus"]
    own = {"milli_tflops": 312_000 * 14 // 108, "vram_bytes": 9728 * MIB, "reserved_bytes": 0}
    assert whole["partition"] == whole["parent_uuid"] == ""
    assert first == {
        **whole,
        **own,
        "uuid": mig_uuid(0),
        "index": 1,
        "minor": 1,
        "pci_bus_id": "0000:3b:00.0",
        "partition": "1g.10gb",
        "parent_uuid": uuid(1),
        "gpu_instance": 7,
        "capability_minors": [66, 67],
    }
    assert (second["partition"], second["vram_bytes"]) == ("3g.40gb", 40192 * MIB)
    assert second["milli_tflops"] == 312_000 * 42 // 108
    assert found["left_out"] == []
    # The driver asks for the reset of the card, so of all its partitions.
    assert found["recovery"] == {uuid(0): 0, uuid(1): 1, mig_uuid(0): 1, mig_uuid(1): 1}


def test_without_cores_the_largest_instance_is_the_whole_card(machine: Machine) -> None:
    (only,) = machine.read(divided(0, partition(0, 7), cores="!3"))["gpus"]

    assert only["milli_tflops"] == 312_000 * 14 // 98
    assert only["capability_minors"] == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"uuid": "MIG-GPU-0/7/0"}, "uuid: found MIG-GPU-0/7/0, expected MIG-..."),
        ({"uuid": "GPU-1"}, "uuid: found GPU-1, expected MIG-..."),
        ({"attributes": "!3"}, "attributes: found NVML_ERROR_NOT_SUPPORTED, expected multiproc"),
        ({"attributes": "14 0"}, "attributes: found (14, 0), expected multiprocessors and memory"),
        ({"attributes": "0 9728"}, "attributes: found (0, 9728), expected multiprocessors"),
        ({"instances": "8 1"}, "found 2 compute instances in GPU instance 8, expected one"),
    ],
)
def test_partition_that_cannot_be_kept_apart_or_named_is_left_out_and_named(
    machine: Machine, changed: dict[str, str], reason: str
) -> None:
    odd = partition(1, 9, **changed)

    found = machine.read(divided(0, partition(0, 7), partition(2, 8), odd))

    left_out = found["left_out"]
    assert {each["subject"] for each in left_out} == {uuid(0)}
    assert any(f"partition {odd['uuid']}: {reason}" in each["reason"] for each in left_out)
    assert mig_uuid(0) in {each["uuid"] for each in found["gpus"]}
    assert odd["uuid"] not in {each["uuid"] for each in found["gpus"]}


def test_partition_without_a_profile_in_its_name_is_published(machine: Machine) -> None:
    (only,) = machine.read(divided(0, partition(0, 7, name="!3")))["gpus"]

    assert (only["partition"], only["model"]) == ("unknown", "A100")


@pytest.mark.parametrize(("mode", "is_divided"), [("1 0", True), ("0 1", False)])
def test_mode_counts_once_it_is_no_longer_pending(
    machine: Machine, mode: str, is_divided: bool
) -> None:
    text = divided(0, partition(0, 7), mig=mode, memory=libraries.A100["memory"])

    (only,) = machine.read(text)["gpus"]

    assert only["uuid"] == (mig_uuid(0) if is_divided else uuid(0))


def test_memory_that_a_card_reserves_is_not_taken_from_each_of_its_partitions(
    machine: Machine,
) -> None:
    seen = {**libraries.A100, "reserved": f"{600 * MIB}"}  # as privileged processes see it

    (only,) = machine.read(
        divided(0, partition(0, 7), memory=seen["memory"], reserved=seen["reserved"])
    )["gpus"]

    assert (only["vram_bytes"], only["reserved_bytes"]) == (9728 * MIB, 0)


def test_instances_that_come_and_go_are_found_without_a_restart(machine: Machine) -> None:
    later = divided(0, partition(1, 9))
    off = answers(card(0))

    first, _, second, _, third = machine.run(
        divided(0, partition(0, 7)),
        ["read"],
        ["replace", str(machine.answers_file), later],
        ["read"],
        ["replace", str(machine.answers_file), off],
        ["read"],
    )

    found = [[each["uuid"] for each in reading["gpus"]] for reading in (first, second, third)]
    assert found == [[mig_uuid(0)], [mig_uuid(1)], [uuid(0)]]


def test_processes_are_those_of_partitions_and_not_of_their_card(machine: Machine) -> None:
    (machine.folder / "proc/self/ns").mkdir(parents=True)
    (machine.folder / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    (machine.folder / "proc/41").mkdir()
    (machine.folder / "proc/41/cgroup").write_text("0::/")
    (machine.folder / "proc/41/comm").write_text("train\n")
    lines = f"0.0 compute 41 {512 * MIB}\n0 compute 99 {MIB}\n"
    text = divided(0, partition(0, 7, utilization="!3"))

    _, found = machine.run(
        text, ["write", f"{machine.answers_file}.processes", lines], ["processes"]
    )

    (process,) = found[mig_uuid(0)]
    assert found.keys() == {mig_uuid(0)}
    assert (process["pid"], process["vram_bytes"], process["sm_percent"]) == (41, 512 * MIB, 0)


def test_card_in_mig_mode_without_instances_is_left_out(machine: Machine) -> None:
    found = machine.read(answers(card(0, **MIG)))

    (left_out,) = found["left_out"]
    assert found["gpus"] == []
    assert "MIG mode is on without instances, expected some" in left_out["reason"]
    assert "or a privileged process" in left_out["reason"]
