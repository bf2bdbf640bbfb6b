"""Which names and values of providers a device gets, and who wins."""

from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices import provided
from tensorfusion_dra.core.devices.capacity import consumable
from tensorfusion_dra.core.devices.device import Version
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu

ODD: dict[str, Any] = {"value": "4"}
(CARD,) = published_devices(gpu())


@pytest.mark.parametrize("value", ["r1", True, -(2**63), Version("1.2.3")])
def test_attribute_of_each_type_is_given(value: Any) -> None:
    extended = provided.with_attributes(CARD, {"example.com/a": value}, {})

    assert extended.device.attributes["example.com/a"] == value
    assert extended.given == ("example.com/a",)
    assert not extended.refused


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("model", "x", "the driver itself uses this name"),
        (f"{names.DRIVER}/model", "x", "the driver itself uses this name"),
        ("virtual_vram", "x", "the driver itself uses this name"),
        (7, "x", "found a name of type int, expected a string"),
        ("example.com/a b", "x", "must be a C identifier"),
        ("example.com/a", 1.5, "found float, expected a string, int, bool or Version"),
        ("example.com/a", 2**63, "must be a 64-bit integer"),
        ("example.com/a", "x" * 65, "may not be more than 64 bytes"),
        ("example.com/a", Version("1.2"), "semver"),
    ],
)
def test_refused_attribute_has_a_reason(name: Any, value: Any, reason: str) -> None:
    extended = provided.with_attributes(CARD, {name: value, "example.com/fine": 1}, {})

    assert extended.given == ("example.com/fine",)
    (refusal,) = extended.refused
    assert reason in refusal.reason


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("tflops", consumable(1), "the driver itself uses this name"),
        ("virtual_tflops", consumable(1), "the driver itself uses this name"),
        ("example.com/slots", "4", "found str, expected a Capacity, see consumable()"),
        ("example.com/slots", consumable("-1"), "expected 0 or more"),
        ("example.com/slots", consumable(4, minimum=-1, default=0), "expected 0 or more"),
        ("example.com/slots", consumable(4, minimum=1), "default is less than min"),
        ("example.com/slots", consumable(4, maximum=5), "max is larger than capacity value"),
        ("example.com/slots", replace(consumable(4), **ODD), "expected quantities"),
    ],
)
def test_refused_capacity_has_a_reason(name: Any, value: Any, reason: str) -> None:
    extended = provided.with_capacities(CARD, {name: value}, {})

    assert extended.device == CARD
    (refusal,) = extended.refused
    assert reason in refusal.reason


def test_first_provider_of_a_name_wins_also_with_the_drivers_domain_in_front() -> None:
    first = provided.with_attributes(CARD, {"rack": "a"}, {})
    givers = dict.fromkeys(first.given, "alpha")

    second = provided.with_attributes(
        first.device, {"rack": "b", f"{names.DRIVER}/rack": "c", "row": "d"}, givers
    )

    assert second.device.attributes["rack"] == "a"
    assert second.given == ("row",)
    assert {each.reason for each in second.refused} == {"provider alpha gave this name first"}


def test_room_is_given_in_alphabetical_order() -> None:
    room = provided.MOST_ENTRIES - len(CARD.attributes) - len(CARD.capacity)
    offered = {f"example.com/a{number:02}": number for number in range(40)}

    extended = provided.with_attributes(CARD, dict(reversed(offered.items())), {})

    assert extended.given == tuple(offered)[:room]
    assert "32 attributes and capacities, which is the most" in extended.refused[0].reason


def test_own_providers_give_what_a_device_has() -> None:
    bare = devices.bare(gpu())

    extended = provided.with_own(
        provided.with_own(bare, dict(CARD.attributes)).device, dict(CARD.capacity)
    )

    assert extended.device == CARD
