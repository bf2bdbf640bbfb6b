"""Simulated cards, from shorthands."""

import dataclasses
import json
import re

import pytest

from tensorfusion_dra.core.devices.gpu import Gpu, TflopsSource
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.discovery.simulated import cards, simulated_discovery
from tests.discovery.simulated.reading import gpus

GIB = 2**30


def test_shorthand_gives_number_and_model_of_cards() -> None:
    made = gpus("8xA100-SXM4-80GB")

    assert [gpu.index for gpu in made] == list(range(8))
    assert {gpu.product_name for gpu in made} == {"NVIDIA A100-SXM4-80GB"}
    assert {gpu.model for gpu in made} == {"A100"}
    assert {gpu.vram_bytes for gpu in made} == {80 * GIB}
    assert {(gpu.milli_tflops, gpu.tflops_source) for gpu in made} == {
        (312_000, TflopsSource.TABLE)
    }


def test_simulated_card_has_every_field_but_a_minor_number() -> None:
    (made,) = gpus("1xA100-SXM4-80GB")

    assert dataclasses.replace(made, uuid="") == Gpu(
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


@pytest.mark.parametrize("card", cards.CARDS, ids=lambda card: card.product_name)
def test_every_named_card_has_compute_and_architecture(card: cards.Card) -> None:
    (made,) = gpus(f"1x{card.product_name}")

    assert made.product_name == card.product_name
    assert made.vram_bytes == card.vram_bytes
    assert made.milli_tflops > 0
    assert made.brand
    assert made.architecture


def test_node_may_mix_card_models() -> None:
    made = gpus("2xA100-SXM4-80GB, 1xH100-80GB-HBM3,1xRTX4090")

    assert [gpu.model for gpu in made] == ["A100", "A100", "H100", "RTX4090"]


@pytest.mark.parametrize(
    "text", ["1xH100-80GB-HBM3", "1xNVIDIA H100 80GB HBM3", "1xh100_80gb_hbm3", " 1xH100 80GB-HBM3"]
)
def test_blanks_dashes_and_case_of_names_do_not_matter(text: str) -> None:
    assert gpus(text)[0].product_name == "NVIDIA H100 80GB HBM3"


def test_uuids_are_stable_and_differ_between_nodes_and_cards() -> None:
    first, again, elsewhere = gpus("2xT4"), gpus("2xT4"), gpus("2xT4", "node-2")

    assert [gpu.uuid for gpu in first] == [gpu.uuid for gpu in again]
    uuids = {gpu.uuid for gpu in (*first, *elsewhere)}
    assert len(uuids) == 4
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", u) for u in uuids)


def test_cards_have_different_pci_places() -> None:
    made = gpus("20xT4")

    assert len({gpu.pci_bus_id for gpu in made}) == 20
    assert made[16].pci_bus_id == "0001:10:00.0"
    assert [gpu.pcie_root for gpu in made[:4]] == ["pci0000:10"] * 2 + ["pci0000:20"] * 2
    assert [gpu.numa_node for gpu in made[:8]] == [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3xA100", "found no card 'A100', expected one like A100-SXM4-40GB, A100-SXM4-80GB"),
        ("1xA100-SXM4-80G", "expected one like A100-SXM4-80GB"),
        ("1xnothing", "found no card 'nothing', expected one like A100-SXM4-80GB, or a profile"),
        ("A100-SXM4-80GB", "found 'A100-SXM4-80GB', expected one like 8xA100-SXM4-80GB"),
        ("1xT4,", "found '', expected one like 8xA100-SXM4-80GB"),
        ("", "found '', expected one like 8xA100-SXM4-80GB"),
        ("257xT4", "found 257 cards, expected at most 256"),
        ("/nowhere/node.yaml", "No such file or directory, expected a readable YAML file"),
    ],
)
def test_text_that_is_neither_shorthand_nor_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        simulated_discovery.from_text(text, node_name="node-1")

    assert message in str(caught.value)


def test_raw_has_the_form_of_real_discovery() -> None:
    raw = json.loads(json.dumps(simulated_discovery.from_text("1xT4", node_name="node-1").raw()))

    assert raw["library"] == "simulated"
    (card,) = raw["gpus"]
    assert card["name"] == "Tesla T4"
    assert card["minor"] == {"error": "NVML_ERROR_NOT_SUPPORTED"}
