"""Memory that the NVIDIA driver reserves is not handed out; earlier claims keep what they have."""

from dataclasses import replace

import pytest

from tensorfusion_dra.core.claims import tenancy
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import MIB
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import allocated_claim, claim_fit, fitted_claim
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu
from tests.support.builders.nodes import node_offer

T4 = gpu(vram_bytes=15360 * MIB, milli_tflops=65_000)
RESERVING = replace(T4, reserved_bytes=450 * MIB - 1)
BEFORE, NOW = node_offer(T4), node_offer(RESERVING)
(CARD,) = NOW.devices


def test_capacity_is_the_total_less_the_reserved_memory_in_whole_mib() -> None:
    (device,) = published_devices(RESERVING)

    assert str(device.capacity["vram"].value) == "14910Mi"
    assert device.attributes["node_total_vram"] == "14910Mi"


def test_record_of_the_old_total_stays_and_new_claims_have_to_fit_the_new_one() -> None:
    whole = fitted_claim("a", allocation(CARD, 1, tflops="65", vram="15Gi"), on=BEFORE)

    (kept,) = tenancy.with_divided_limits([whole], NOW.devices, NOW.rules)

    assert kept == whole
    with pytest.raises(ClaimError, match="in use, expected at most 14910Mi"):
        claim_fit(
            allocated_claim("b", allocation(CARD, 2, tflops="0", vram="1Mi")),
            on=NOW,
            beside=[whole],
        )
    half = fitted_claim("c", allocation(CARD, 3, tflops="1", vram="14Gi"), on=NOW)
    with pytest.raises(
        ClaimError, match="vram: found 1Gi plus 14Gi in use, expected at most 14910Mi"
    ):
        claim_fit(
            allocated_claim("d", allocation(CARD, 4, tflops="1", vram="1Gi")), on=NOW, beside=[half]
        )


def test_more_than_the_old_total_is_refused() -> None:
    with pytest.raises(ClaimError, match="in use, expected at most 14910Mi"):
        fitted_claim("a", allocation(CARD, 1, tflops="65", vram="15361Mi"), on=NOW)
