"""Which names and values of providers a device gets, and who wins."""

from dataclasses import replace
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices import provided
from tensorfusion_dra.core.devices.capacity import consumable
from tensorfusion_dra.core.devices.device import Version
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu

ODD: dict[str, Any] = {"value": "4"}
NAN: Any = float("nan")
(CARD,) = published_devices(gpu())


class Text(StrEnum):
    A = "a"
    V1 = "1.0.0"


class Number(IntEnum):
    SEVEN = 7


@pytest.mark.parametrize("value", ["r1", True, -(2**63), Version("1.2.3")])
def test_attribute_of_each_type_is_given(value: Any) -> None:
    extended = provided.extended(CARD, provided.attributes({"example.com/a": value}), {})

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
        ("example.com/a", float("nan"), "found float, expected a string, int, bool or Version"),
        ("example.com/a", Version("1.2"), "semver"),
        ("example.com/a", "\udcff", "expected text in Unicode"),
    ],
)
def test_refused_attribute_has_a_reason(name: Any, value: Any, reason: str) -> None:
    offer = provided.attributes({name: value, "example.com/fine": 1})

    assert offer.entries == {"example.com/fine": 1}
    (refusal,) = offer.refused
    assert reason in refusal.reason
    assert provided.extended(CARD, offer, {}).refused == offer.refused


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
        ("example.com/slots", replace(consumable(4), value=Quantity(NAN)), "expected quantities"),
        (
            "example.com/slots",
            replace(consumable(4), value=Quantity.whole(2**63)),
            "above the largest quantity",
        ),
    ],
)
def test_refused_capacity_has_a_reason(name: Any, value: Any, reason: str) -> None:
    offer = provided.capacities({name: value})

    assert not offer.entries
    (refusal,) = offer.refused
    assert reason in refusal.reason


def test_values_are_plain_however_the_provider_made_them() -> None:
    """A subclass would bring code of its package into the driver, and YAML does not know it."""

    offer = provided.attributes(
        {f"example.com/{Text.A}": Text.A, "example.com/b": Number.SEVEN, Text.A: Version(Text.V1)}
    )

    assert offer.entries == {"a": Version("1.0.0"), "example.com/a": "a", "example.com/b": 7}
    version, *others = offer.entries.values()
    assert isinstance(version, Version)
    assert {type(each) for each in (version.text, *others, *offer.entries)} == {str, int}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "found NoneType, expected a mapping by name"),
        ([("a", 1)], "found list, expected a mapping by name"),
        (dict.fromkeys(map(str, range(101)), 1), "found 101 names, expected at most 32"),
    ],
)
def test_answer_that_is_no_small_mapping_is_an_error(answer: object, text: str) -> None:
    for check in (provided.attributes, provided.capacities):
        with pytest.raises((TypeError, ValueError), match=text):
            check(answer)


def test_first_provider_of_a_name_wins_also_with_the_drivers_domain_in_front() -> None:
    first = provided.extended(CARD, provided.attributes({"rack": "a"}), {})
    givers = dict.fromkeys(first.given, "alpha")

    offer = provided.attributes({"rack": "b", f"{names.DRIVER}/rack": "c", "row": "d"})
    second = provided.extended(first.device, offer, givers)

    assert second.device.attributes["rack"] == "a"
    assert second.given == ("row",)
    assert {each.reason for each in second.refused} == {"provider alpha gave this name first"}


def test_room_is_given_in_alphabetical_order() -> None:
    room = provided.MOST_ENTRIES - len(CARD.attributes) - len(CARD.capacity)
    offered = {f"example.com/a{number:02}": number for number in range(40)}

    offer = provided.attributes(dict(reversed(offered.items())))
    extended = provided.extended(CARD, offer, {})

    assert extended.given == tuple(offered)[:room]
    assert "32 attributes and capacities, which is the most" in extended.refused[0].reason


def test_own_providers_give_what_a_device_has() -> None:
    bare = devices.bare(gpu())

    extended = provided.extended(bare, provided.own({**CARD.attributes, **CARD.capacity}), {})

    assert extended.device == CARD
