"""Simulated cards, from shorthands and profiles, also while a profile changes."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tensorfusion_dra.core.devices.gpu import Gpu, TflopsSource
from tensorfusion_dra.core.devices.health import CardEvent
from tensorfusion_dra.core.errors import HungError, InputError, RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tensorfusion_dra.discovery.recording import Refusal
from tensorfusion_dra.discovery.simulated import simulated_discovery
from tensorfusion_dra.discovery.simulated.simulated_discovery import SimulatedDiscovery
from tests.support.builders.prepared_claims import POD, limit, prepared_claim, simulated_share
from tests.support.logs import capture_logs
from tests.support.threads import running
from tests.support.waiting import eventually


def written(folder: Path, text: str) -> str:
    """Write a profile; its modification time always changes."""
    file = folder / "profile.yaml"
    version = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(text, encoding="utf-8")
    os.utime(file, ns=(version + 10**9, version + 10**9))
    return str(file)


def profile(*cards: str, node: str = "") -> str:
    """Return a profile with these fields for each card, and these for the node."""
    entries = ", ".join(f"{{product: T4{card}}}" for card in cards)
    return f"gpus: [{entries}]\n{node}"


def discovery(
    text: str, node_name: str = "node-1", clock: Callable[[], float] = time.monotonic
) -> SimulatedDiscovery:
    return SimulatedDiscovery(text, node_name=node_name, clock=clock)


def test_two_processes_use_a_part_of_each_share(tmp_path: Path) -> None:
    card = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    share = simulated_share(0, limit(20, 8), gpu_uuid=card)
    prepared = prepared_claim(share, simulated_share(1, limit(20, 8)), simulated_share(0))
    text = written(tmp_path, profile(f", uuid: {card}, use: 150"))

    found = SimulatedDiscovery(text, node_name="node-1", prepared=lambda: [prepared]).processes()

    assert {
        uuid: [
            (each.pid, each.vram_bytes, each.sm_percent, each.container and each.container.pod_uid)
            for each in processes
        ]
        for uuid, processes in found.items()
    } == {card: [(1, 6 * GIB, 15, POD.uid), (2, 6 * GIB, 15, POD.uid)]}


def test_profile_describes_each_card(tmp_path: Path) -> None:
    text = """
        driver_version: "570.1"
        gpus:
          - {product: A100-SXM4-80GB, count: 2}
          - product: NVIDIA Experimental 9
            vram: 12345Mi
            tflops: 71.2
            uuid: GPU-01234567-89ab-cdef-0123-456789abcdef
          - {product: L4, vram: 20Gi, reserved: 450Mi}
    """
    made = gpus(written(tmp_path, text))

    assert [(gpu.model, gpu.vram_bytes, gpu.reserved_bytes) for gpu in made] == [
        *[("A100", 80 * GIB, 0)] * 2,
        ("Experimental9", 12345 * MIB, 0),
        ("L4", 20 * GIB, 450 * MIB),
    ]
    assert made[2].uuid == "GPU-01234567-89ab-cdef-0123-456789abcdef"
    assert (made[2].milli_tflops, made[2].tflops_source) == (71_200, TflopsSource.PROFILE)
    assert [gpu.compute_capability for gpu in made[2:]] == [(0, 0), (8, 9)]
    assert {gpu.driver_version for gpu in made} == {"570.1"}


@pytest.mark.parametrize(
    ("card", "reason"),
    [
        ("product: T4, fault: mig", "MIG mode is on"),
        ("product: T4, fault: no-memory", "memory: found NVML_ERROR_NOT_SUPPORTED"),
        ("product: T4, fault: lost", "memory_bytes: found NVML_ERROR_GPU_IS_LOST"),
        ("product: NVIDIA X1, vram: 1Gi", "tflops: found 'NVIDIA X1' in no model table"),
    ],
)
def test_unusable_card_is_left_out_like_a_real_one(tmp_path: Path, card: str, reason: str) -> None:
    inventory = discovery(written(tmp_path, f"gpus: [{{{card}}}, {{product: L4}}]")).read()

    assert [gpu.model for gpu in inventory.gpus] == ["L4"]
    (left,) = inventory.left_out
    assert left.subject.startswith("GPU-")
    assert left.reason.startswith(reason)


def test_card_that_appears_later_changes_no_uuid(tmp_path: Path) -> None:
    now = 1000.0
    text = written(tmp_path, profile(", appears_after_seconds: 5", ", vram: 1Gi"))
    cards = discovery(text, clock=lambda: now)

    (early,) = cards.read().gpus
    now += 5
    first, second = cards.read().gpus

    assert (early.index, early.vram_bytes) == (0, GIB)
    assert first.index == 0
    assert second == replace(early, index=1)


def test_driver_is_missing_for_the_configured_time(tmp_path: Path) -> None:
    now = 1000.0
    text = profile("", node="driver_missing_for_seconds: 2.5")
    cards = discovery(written(tmp_path, text), clock=lambda: now)

    for read in (cards.read, cards.raw):
        with pytest.raises(RetryableError, match="found no driver, waiting for it"):
            read()
    now += 2.5

    assert len(cards.read().gpus) == 1


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
        ("gpus: [{product: T4}, {product: X1}]", "entry 2: found no card 'X1', expected one of "),
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
            "gpus: [{product: T4, mig: 9g.10gb}]",
            "mig: found '9g.10gb', expected partitions such as",
        ),
        ("gpus: [{product: T4, mig: [1g.5gb]}]", "mig: found a list of 1, expected partitions"),
        ("gpus: [{product: T4, xid: many}]", "xid: found 'many', expected a number"),
        ("gpus: [{product: T4, xid: -1}]", "xid: found -1, expected a number"),
        ("gpus: [{product: T4, recovery_action: true}]", "recovery_action: found True, expected"),
        ("{gpus: [], hangs: maybe}", "hangs: found 'maybe', expected true or false"),
        (
            "gpus: [{product: T4, count: 2, uuid: GPU-01234567-89ab-cdef-0123-456789abcdef}]",
            "uuid: found the same UUID on several cards, expected unique ones",
        ),
    ],
)
def test_invalid_profile_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path, text)

    with pytest.raises(InputError) as caught:
        discovery(file)

    assert re.fullmatch(f"{file}.*{re.escape(message)}.*", str(caught.value))  # one line


def gpus(text: str, node_name: str = "node-1") -> tuple[Gpu, ...]:
    return discovery(text, node_name).read().gpus


@contextmanager
def collected_events(cards: SimulatedDiscovery) -> Iterator[list[CardEvent]]:
    events: list[CardEvent] = []
    cards.events.watch(frozenset(gpu.uuid for gpu in cards.read().gpus))
    with running(lambda: cards.events.run(events.append), stop=cards.events.stop):
        yield events


def test_profile_is_reloaded_when_its_file_changes_and_is_valid(tmp_path: Path) -> None:
    cards = discovery(written(tmp_path, profile("", "")))
    before = cards.read()

    written(tmp_path, profile("", ", fault: fire"))
    with capture_logs() as logs:
        kept = [cards.read(), cards.read()]
    written(tmp_path, profile("", ", fault: absent", node="driver_version: '590.1'"))

    assert (kept, [line["event"] for line in logs]) == ([before, before], ["profile_unusable"])
    assert cards.read().gpus == (replace(before.gpus[0], driver_version="590.1"),)


def test_hanging_driver_may_recover(tmp_path: Path) -> None:
    cards = discovery(written(tmp_path, profile("", node="hangs: true")))
    with pytest.raises(HungError):
        cards.read()

    written(tmp_path, profile(""))

    assert len(cards.read().gpus) == 1


def test_lost_card_and_recovery_action_are_reported_as_by_nvml(tmp_path: Path) -> None:
    text = written(tmp_path, profile(", fault: lost", ", recovery_action: 2"))

    found = discovery(text).read()

    assert [lost.uuid for lost in found.lost] == [left.subject for left in found.left_out]
    assert found.recovery == {found.lost[0].uuid: 0, found.gpus[0].uuid: 2}


def test_xid_is_reported_when_it_appears_in_the_profile(tmp_path: Path) -> None:
    cards = discovery(written(tmp_path, profile(", xid: 13", "")))
    first, second = (gpu.uuid for gpu in cards.read().gpus)
    with collected_events(cards) as events:
        written(tmp_path, profile(", xid: 13", ", xid: 79"))
        assert eventually(lambda: len(events) == 1)
        written(tmp_path, profile("", ", xid: 79"))
        written(tmp_path, profile(", xid: 48", ", xid: 79"))
        assert eventually(lambda: len(events) == 2)

    assert [(event.gpu_uuid, event.code) for event in events] == [(second, 79), (first, 48)]


def test_events_of_unwatched_cards_are_not_reported(tmp_path: Path) -> None:
    cards = discovery(written(tmp_path, profile("", "")))
    second = cards.read().gpus[1].uuid
    with collected_events(cards) as events:
        cards.events.watch(frozenset({second}))
        written(tmp_path, profile(", xid: 79", ", xid: 48"))
        assert eventually(lambda: bool(events))

    assert [event.gpu_uuid for event in events] == [second]


def test_simulated_card_has_every_field_but_a_minor_number() -> None:
    (made,) = gpus("1xA100-SXM4-80GB")

    assert replace(made, uuid="") == Gpu(
        uuid="",
        index=0,
        minor=None,
        simulated=True,
        product_name="NVIDIA A100-SXM4-80GB",
        model="A100",
        milli_tflops=312_000,
        tflops_source=TflopsSource.TABLE,
        vram_bytes=80 * GIB,
        brand="Nvidia",
        architecture="Ampere",
        compute_capability=(8, 0),
        driver_version="580.95.05",
        cuda_driver_version=(13, 0),
        pci_bus_id="0000:10:00.0",
        pcie_root="pci0000:10",
        numa_node=0,
    )


@pytest.mark.parametrize("card", simulated_discovery.CARDS, ids=lambda card: card.product_name)
def test_every_named_card_has_compute_and_architecture(card: simulated_discovery.CardModel) -> None:
    (made,) = gpus(f"1x{card.product_name}")

    assert (made.product_name, made.vram_bytes) == (card.product_name, card.vram_bytes)
    assert all((made.milli_tflops > 0, made.brand, made.architecture))


def test_shorthand_may_mix_card_models() -> None:
    made = gpus("2xA100-SXM4-80GB, 1xH100-80GB-HBM3,1xRTX4090,0xT4")

    models = ["A100", "A100", "H100", "RTX4090"]
    assert [(gpu.index, gpu.model) for gpu in made] == list(enumerate(models))


def test_card_with_partitions_is_published_as_these() -> None:
    whole, *parts = gpus("1xT4,1xA100-SXM4-80GB@mig=1g.10gb*2:3g.40gb")

    found = [(each.partition, each.vram_bytes // MIB, each.milli_tflops) for each in parts]
    assert found == [
        ("1g.10gb", 9728, 312_000 // 7),
        ("1g.10gb", 9728, 312_000 // 7),
        ("3g.40gb", 40448, 312_000 * 3 // 7),
    ]
    assert (whole.model, {each.model for each in parts}) == ("T4", {"A100"})
    assert len({each.uuid for each in parts}) == 3
    assert len({each.parent_uuid for each in parts}) == 1
    with pytest.raises(InputError, match=r"mig: found '1g', expected partitions such as"):
        gpus("1xA100-SXM4-80GB@mig=1g")


@pytest.mark.parametrize(
    "text", ["1xH100-80GB-HBM3", "1xNVIDIA H100 80GB HBM3", "1xh100_80gb_hbm3", " 1xH100 80GB-HBM3"]
)
def test_blanks_dashes_and_case_of_names_do_not_matter(text: str) -> None:
    assert gpus(text)[0].product_name == "NVIDIA H100 80GB HBM3"


def test_uuids_are_stable_and_differ_between_nodes_and_cards() -> None:
    first, again, elsewhere = gpus("2xT4"), gpus("2xT4"), gpus("2xT4", "node-2")

    assert first == again
    uuids = {gpu.uuid for gpu in (*first, *elsewhere)}
    assert len(uuids) == 4
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", u) for u in uuids)


def test_each_name_that_a_refusal_lists_is_taken() -> None:
    with pytest.raises(InputError) as caught:
        discovery("1xnothing")

    names = str(caught.value).rpartition("expected one of ")[2].split(", ")[:-1]
    cards = [gpus(f"1x{name}")[0].product_name for name in names]
    assert len(set(cards)) == len(names) > 30


def test_cards_have_different_pci_places() -> None:
    made = gpus("20xT4")

    assert len({gpu.pci_bus_id for gpu in made}) == 20
    assert made[16].pci_bus_id == "0001:10:00.0"
    assert [(gpu.pcie_root, gpu.numa_node) for gpu in made[1:6]] == [
        ("pci0000:10", 0),
        ("pci0000:20", 0),
        ("pci0000:20", 0),
        ("pci0000:30", 1),
        ("pci0000:30", 1),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "2xH100",
            "found several cards 'H100', expected one of H100-80GB-HBM3, H100-PCIe, H100-NVL, or a",
        ),
        ("1xnothing", "found no card 'nothing', expected one of P100-PCIE-16GB, P40, V100-SXM2-1"),
        ("A100-SXM4-80GB", "found 'A100-SXM4-80GB', expected one like 8xA100-SXM4-80GB"),
        ("1xT4,", "found '', expected one like 8xA100-SXM4-80GB"),
        ("", "found '', expected one like 8xA100-SXM4-80GB"),
        ("257xT4", "found 257 cards, expected at most 256"),
        ("/nowhere/node.yaml", "No such file or directory, expected a readable YAML file"),
    ],
)
def test_text_that_is_neither_shorthand_nor_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        discovery(text)


def test_raw_has_the_form_of_real_discovery() -> None:
    raw = discovery("1xT4").raw()

    (card,) = raw.gpus
    assert (raw.library, card.name) == ("simulated", "Tesla T4")
    assert card.minor == Refusal("NVML_ERROR_NOT_SUPPORTED")
