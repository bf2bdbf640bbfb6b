"""Capacities of a card: their defaults and policies, within the API's rules."""

import pytest

from tensorfusion_dra.core.devices import capacity, oversubscription
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tests.support.builders.gpus import gpu


def test_card_offers_compute_and_memory_with_a_policy() -> None:
    offered = {name: entry.as_api() for name, entry in capacity.of_card(gpu(), None).items()}

    assert offered == {
        "tflops": {
            "value": "312",
            "requestPolicy": {"default": "312", "validRange": {"min": "0"}},
        },
        "vram": {
            "value": "80Gi",
            "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Mi", "step": "1Mi"}},
        },
    }


@pytest.mark.parametrize(
    ("vram_bytes", "value"),
    [
        (80 * GIB, "80Gi"),
        (80 * GIB - 1, "81919Mi"),
        (85_520_809_984, "81559Mi"),
        (16 * GIB + MIB // 2, "16Gi"),
    ],
)
def test_memory_is_rounded_down_to_the_step_of_its_shares(vram_bytes: int, value: str) -> None:
    card = gpu(vram_bytes=vram_bytes)

    offered = capacity.of_card(card, None)["vram"]

    assert str(offered.value) == value
    assert oversubscription.usable_vram_bytes(card) == quantity.parse(value).ceil() <= vram_bytes
