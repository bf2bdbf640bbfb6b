"""Which names and values of providers a device gets, who wins, and which problems count."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.capacity import Capacity, consumable
from tensorfusion_dra.core.devices.device import Enforcement, Version
from tensorfusion_dra.core.devices.health import HealthProblem, Problem, ProblemKind
from tensorfusion_dra.core.kubernetes.device_rules import MAX_ENTRIES
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.driver import providers
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu

ODD: dict[str, Any] = {"value": "4"}
NAN: Any = float("nan")
(CARD,) = published_devices(
    gpu(), enforcement=Enforcement(given_up_since=datetime(2026, 3, 1, tzinfo=UTC))
)
attributes = partial(providers.offered, checked=providers.attribute)
capacities = partial(providers.offered, checked=providers.capacity)
FAN = Problem(reason="fan-stopped", text="fan 2 stands still")


class Text(StrEnum):
    A = "a"


class Number(IntEnum):
    SEVEN = 7


@pytest.mark.parametrize("value", ["r1", True, -(2**63), Version("1.2.3")])
def test_attribute_of_each_type_is_given(value: Any) -> None:
    offer = attributes({"example.com/a": value})

    extended = providers.extended_device(CARD, offer, {})

    assert extended.device.attributes["example.com/a"] == value
    assert extended.device.taints == CARD.taints != ()
    assert extended.given == ("example.com/a",)
    assert not extended.refused


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("model", "x", "the driver itself uses this name"),
        ("used_by", "x", "the driver itself uses this name"),
        ("phase", "Running", "the driver itself uses this name"),
        (f"{names.DRIVER}/model", "x", "the driver itself uses this name"),
        ("virtual_vram", "x", "the driver itself uses this name"),
        (7, "x", "found a name of type int, expected a string"),
        ("example.com/a b", "x", "must be a C identifier"),
        ("x" * 33, "x", "more than 32 bytes"),
        ("example.com/a", 2**63, "must be a 64-bit integer"),
        ("example.com/a", "x" * 65, "may not be more than 64 bytes"),
        ("example.com/a", NAN, "found float, expected a string, int, bool or Version"),
        ("example.com/a", Version("1.2"), "semver"),
        ("example.com/a", "\udcff", "expected text in Unicode"),
    ],
)
def test_refused_attribute_has_a_reason(name: Any, value: Any, reason: str) -> None:
    offer = attributes({name: value, "example.com/fine": 1})

    assert offer.entries == {"example.com/fine": 1}
    (refusal,) = offer.refused
    assert reason in refusal.reason
    assert providers.extended_device(CARD, offer, {}).refused == offer.refused


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
    offer = capacities({name: value, "example.com/fine": consumable(1)})

    assert offer.entries == {"example.com/fine": consumable(1)}
    (refusal,) = offer.refused
    assert reason in refusal.reason


def test_members_of_enumerations_are_plain_values() -> None:
    """YAML knows no others, and Python compares an IntEnum with each number of a range."""
    offer = attributes({"example.com/a": Text.A, "example.com/b": Number.SEVEN})

    assert [(type(each), each) for each in offer.entries.values()] == [(str, "a"), (int, 7)]


@pytest.mark.parametrize("check", [attributes, capacities])
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "found NoneType, expected a mapping by name"),
        ([("a", 1)], "found list, expected a mapping by name"),
        (dict.fromkeys(map(str, range(101)), 1), "found 101 names, expected at most 32"),
    ],
)
def test_answer_that_is_no_small_mapping_is_an_error(check: Any, answer: object, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        check(answer)


def test_first_provider_of_a_name_wins_also_with_the_drivers_domain_in_front() -> None:
    first = providers.extended_device(CARD, attributes({"rack": "a"}), {})
    givers = dict.fromkeys(first.given, "alpha")

    offer = attributes({"rack": "b", f"{names.DRIVER}/rack": "c", "row": "d"})
    second = providers.extended_device(first.device, offer, givers)

    assert second.device.attributes["rack"] == "a"
    assert second.given == ("row",)
    assert {each.reason for each in second.refused} == {"provider alpha gave this name first"}


def test_capacity_is_added_beside_the_drivers() -> None:
    offer = capacities({"example.com/slots": consumable(8)})

    device = providers.extended_device(CARD, offer, {}).device

    assert device.capacity == {**CARD.capacity, "example.com/slots": consumable(8)}
    assert isinstance(device.capacity["example.com/slots"], Capacity)


def test_room_is_given_in_alphabetical_order() -> None:
    room = MAX_ENTRIES - len(CARD.attributes) - len(CARD.capacity)
    offered = {f"example.com/a{number:02}": number for number in range(40)}

    offer = attributes(dict(reversed(offered.items())))
    extended = providers.extended_device(CARD, offer, {})

    assert extended.given == tuple(offered)[:room]
    assert "32 attributes and capacities, which is the most" in extended.refused[0].reason


def test_text_of_256_characters_is_kept_behind_the_name_of_its_source() -> None:
    problems = [Problem(reason="fan-stopped", text="x" * length) for length in (256, 257)]

    kept, cut = providers.problems(problems, source="fans")

    assert kept.text == cut.text == "fans: " + "x" * 256


def test_text_of_a_problem_can_be_printed() -> None:
    (reason,) = providers.problems([replace(FAN, text="fan \udcff")], source="fans")

    assert reason.text == "fans: fan ?"


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "fan",
        [FAN.reason],
        [HealthProblem(kind=ProblemKind.LOST, reason="lost", text="x")],
        [Problem(reason="not a label", text="x")],
        [Problem(reason="", text="x")],
        [Problem(reason="x" * 64, text="x")],
        [Problem(reason="x", text=b"x")],  # type: ignore[arg-type]
        itertools.repeat(FAN),
    ],
)
def test_answer_that_is_no_list_of_problems_is_an_error(answer: object) -> None:
    with pytest.raises((TypeError, ValueError), match="found"):
        providers.problems(answer, source="fans")
