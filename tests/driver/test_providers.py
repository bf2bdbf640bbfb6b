"""Providers of other packages: time, failures, last good answers, and what a device gets."""

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.capacity import consumable
from tensorfusion_dra.core.devices.device import Device, Enforcement, Reading, Version
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory
from tensorfusion_dra.core.devices.health import (
    CardEvent,
    EventKind,
    HealthProblem,
    Problem,
    ProblemKind,
)
from tensorfusion_dra.core.kubernetes.device_rules import MAX_ENTRIES
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.driver import providers
from tensorfusion_dra.driver.providers import (
    ProviderKind,
    ProviderOutcome,
    Providers,
    ProviderState,
    Registered,
)
from tensorfusion_dra.driver.publish import CatalogBuilder
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpu, gpus
from tests.support.logs import capture_logs
from tests.support.ports import FixedDiscovery
from tests.support.third_party import registered
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually

CARDS = gpus(2)
OWN = published_devices(*CARDS)
READING = Reading(inventory=Inventory(gpus=CARDS), node=NODE)
SHORT_SECONDS = 0.01
RACK = "example.com/rack"


def asked(*several: Registered, budget_seconds: float = FOREVER) -> Providers:
    return Providers(several, budget_seconds=budget_seconds)


def devices(of: Providers, *, call_again: bool = True) -> tuple[Device, ...]:
    return of.extended(OWN, READING, call_again=call_again)


def racks(of: Providers, *, call_again: bool = True) -> list[object]:
    return [device.attributes.get(RACK) for device in devices(of, call_again=call_again)]


def outcome(of: Providers, name: str = "rack") -> ProviderOutcome:
    return next(each.outcome for each in of.reports() if each.registered.name == name)


class Gate:
    """Provider that answers only while it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.calls = 0
        self.value = "r1"

    def __call__(self, *_: object) -> Mapping[str, Any]:
        self.calls += 1
        assert self.open.wait(PATIENCE_SECONDS)
        return {RACK: self.value}


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Yield a gate, and open it at the end."""
    gate = Gate()
    yield gate
    gate.open.set()


def test_hanging_provider_costs_its_budget_once_and_its_last_answers_are_used(gate: Gate) -> None:
    asking = asked(registered(gate), budget_seconds=SHORT_SECONDS)
    # On a busy machine the first answers may be late themselves, which is logged until one is not.
    assert eventually(
        lambda: racks(asking) == ["r1", "r1"] and outcome(asking).state is ProviderState.OK
    )
    gate.open.clear()
    before = gate.calls

    with capture_logs() as logs:
        found = [racks(asking) for _ in range(3)]

    assert found == [["r1", "r1"]] * 3
    assert gate.calls == before + 1
    assert outcome(asking).state is ProviderState.LATE
    assert [line["error"] for line in logs if line["event"] == "provider_failed"] == [
        "no answer within 0.01 s; the last good answers remain in use"
    ]


def test_provider_that_hangs_from_the_start_gives_nothing_and_others_answer(gate: Gate) -> None:
    gate.open.clear()
    row = registered(lambda gpu, node: {"example.com/row": 7}, "row")
    asking = asked(registered(gate), row, budget_seconds=SHORT_SECONDS)

    assert eventually(lambda: devices(asking)[0].attributes.get("example.com/row") == 7)

    assert racks(asking) == [None, None]


def test_provider_that_is_always_late_is_logged_once_and_counts(gate: Gate) -> None:
    # A name of its own: a thread of an earlier test may load its provider, and log it, only now.
    asking = asked(registered(gate, "late-rack"), budget_seconds=SHORT_SECONDS)

    def is_called_again(before: int) -> bool:
        devices(asking)
        return gate.calls > before

    with capture_logs() as logs:
        for value in ("r1", "r2", "r3"):
            gate.value = value
            gate.open.clear()
            assert eventually(functools.partial(is_called_again, gate.calls))
            gate.open.set()
            assert eventually(lambda: racks(asking, call_again=False) == [value] * 2)  # noqa: B023

    assert outcome(asking, "late-rack").state is ProviderState.LATE
    # Loading may itself take longer than the budget, so the two are logged in either order.
    about = [line["event"] for line in logs if line.get("provider") == "late-rack"]
    assert sorted(about) == ["provider_failed", "provider_loaded"]


def test_providers_are_called_at_the_same_time_in_one_thread_each() -> None:
    """So several that hang delay a reading by no more than one."""
    together = threading.Barrier(3, timeout=PATIENCE_SECONDS)
    threads: list[str] = []

    def provider(gpu: Gpu, node: object) -> Mapping[str, Any]:
        together.wait()
        threads.append(threading.current_thread().name)
        return {}

    asking = asked(
        registered(provider, "a"),
        registered(provider, "b"),
        registered(provider, "c", ProviderKind.CAPACITIES),
    )

    devices(asking)

    assert [outcome(asking, name).state for name in "abc"] == [ProviderState.OK] * 3
    assert set(threads) == {"provider-a", "provider-b", "provider-c"}


@pytest.mark.parametrize(
    "kind", [ProviderKind.ATTRIBUTES, ProviderKind.CAPACITIES, ProviderKind.HEALTH]
)
def test_cards_and_their_health_are_published_while_providers_hang(
    kind: ProviderKind, gate: Gate
) -> None:
    gate.open.clear()
    asking = asked(registered(gate, kind=kind), budget_seconds=SHORT_SECONDS)
    cards = CatalogBuilder(FixedDiscovery(READING.inventory), NODE, providers=asking)

    cards.refresh()
    cards.on_event(CardEvent(gpu_uuid=CARDS[0].uuid, kind=EventKind.XID, code=79))

    current = cards.catalog.current()
    assert current is not None
    assert [device.gpu for device in current.devices] == list(CARDS)
    assert current.unhealthy.keys() == {OWN[0].name}


def test_failed_call_leaves_the_last_good_answer_of_its_card() -> None:
    fails = False

    def rack(gpu: Gpu, _node: object) -> Mapping[str, str]:
        if fails and gpu.index == 0:
            raise ValueError("no rack")
        return {RACK: "r2" if fails else "r1"}

    asking = asked(registered(rack))
    devices(asking)
    with capture_logs() as logs:
        fails = True
        found = [racks(asking) for _ in range(3)]
        fails = False
        devices(asking)

    assert found == [["r1", "r2"]] * 3
    assert [line["event"] for line in logs] == ["provider_failed", "provider_recovered"]


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> object:
        raise error

    return fail


class MuteError(Exception):
    def __repr__(self) -> str:
        raise AttributeError("text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ImportError("no module"), "ImportError('no module')"),
        (SystemExit(3), "SystemExit(3)"),
        (KeyboardInterrupt(), "KeyboardInterrupt()"),
        (MuteError(), "MuteError"),
    ],
)
def test_exception_of_any_kind_costs_only_its_provider(error: BaseException, text: str) -> None:
    broken = replace(registered(None, "broken"), package="broken 1.0", load=raising(error))
    odd = registered(lambda *_: None, "odd")
    asking = asked(
        broken, registered(raising(error), "bad"), odd, registered(lambda *_: {RACK: "r"})
    )

    with capture_logs() as logs:
        assert racks(asking) == ["r", "r"]

    for name, keys in (("broken", [""]), ("bad", [card.uuid for card in CARDS])):
        assert list(outcome(asking, name).errors) == keys
        assert all(text in each for each in outcome(asking, name).errors.values())
    assert outcome(asking, "odd").state is ProviderState.FAILED
    assert "expected a mapping by name" in outcome(asking, "odd").errors[CARDS[0].uuid]
    failed = [line for line in logs if line["event"] == "provider_failed"]
    assert {(line["kind"], line["provider"], line["package"]) for line in failed} == {
        ("attributes", "broken", "broken 1.0"),
        ("attributes", "bad", "example 1.0"),
        ("attributes", "odd", "example 1.0"),
    }


def test_class_is_instantiated_and_begun_once_a_reading() -> None:
    begun: list[int] = []

    class Neighbours:
        def begin(self, reading: Reading) -> None:
            begun.append(len(reading.gpus))

        def __call__(self, gpu: Gpu, node: object) -> Mapping[str, int]:
            return {RACK: begun[-1] - 1}

    asking = asked(registered(Neighbours))

    assert [racks(asking) for _ in range(2)] == [[1, 1], [1, 1]]
    assert begun == [2, 2]


def test_unused_provider_is_not_loaded() -> None:
    load = raising(AssertionError("loaded"))
    asking = asked(replace(registered(None, "off"), load=load, unused="disabled"))

    assert devices(asking) == OWN
    assert outcome(asking, "off").state is ProviderState.UNUSED


def test_refused_name_is_logged_once_and_the_others_are_given() -> None:
    answer = {"model": "x", RACK: "r1"}
    asking = asked(registered(lambda gpu, node: answer if gpu.index == 0 else {}))

    with capture_logs() as logs:
        found = [racks(asking) for _ in range(3)]

    assert found == [["r1", None]] * 3
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [(line["package"], line["attribute"]) for line in warnings] == [("example 1.0", "model")]


# Which names and values a device gets, who wins, and which problems count

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


@pytest.mark.parametrize(
    ("value", "given"),
    [
        *((each, each) for each in ("r1", True, -(2**63), Version("1.2.3"))),
        # YAML knows no enumerations, and Python compares an IntEnum with each number of a range.
        (Text.A, "a"),
        (Number.SEVEN, 7),
    ],
)
def test_attribute_of_each_type_is_given(value: Any, given: Any) -> None:
    extended = providers.extended_device(CARD, attributes({"example.com/a": value}), {})

    found = extended.device.attributes["example.com/a"]
    assert (found, type(found)) == (given, type(given))
    assert extended.device.taints == CARD.taints != ()
    assert (extended.given, extended.refused) == (("example.com/a",), {})


USED = "found a name of the driver's domain, expected <your domain>/<identifier>"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        *(
            (name, "x", USED)
            for name in (
                *("model", "virtual_vram", "rack", "x" * 33, ""),
                *(f"{names.DRIVER}/model", names.ATTR_PCIE_ROOT),
            )
        ),
        (7, "x", "found a name of type int, expected a string"),
        ("example.com/a b", "x", "must be a C identifier"),
        ("example.com/" + "x" * 33, "x", "more than 32 bytes"),
        ("example.com/a", 2**63, "must be a 64-bit integer"),
        ("example.com/a", "x" * 65, "may not be more than 64 bytes"),
        ("example.com/a", NAN, "found float, expected a string, int, bool or Version"),
        ("example.com/a", Version("1.2"), "semver"),
        ("example.com/a", Version(f"1.{10**18}.0"), "at most 18 digits in numbers"),
        ("example.com/a", Version(f"1.0.0-rc.{10**18}"), "at most 18 digits in numbers"),
        ("example.com/a", "\udcff", "expected text in Unicode"),
    ],
)
def test_refused_attribute_has_a_reason(name: Any, value: Any, reason: str) -> None:
    offer = attributes({name: value, "example.com/fine": 1})

    (refusal,) = offer.refused.values()
    assert (offer.entries, reason in refusal) == ({"example.com/fine": 1}, True)
    assert providers.extended_device(CARD, offer, {}).refused == offer.refused


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("virtual_tflops", consumable(1), USED),
        ("slots", consumable(1), USED),
        *(
            ("example.com/slots", value, reason)
            for value, reason in (
                ("4", "found str, expected a Capacity, see consumable()"),
                (consumable("-1"), "expected 0 or more"),
                (consumable(4, minimum=-1, default=0), "expected 0 or more"),
                (consumable(4, minimum=1), "default is less than min"),
                (consumable(4, maximum=5), "max is larger than capacity value"),
                (replace(consumable(4), **ODD), "expected quantities"),
                (replace(consumable(4), value=Quantity(NAN)), "expected quantities"),
                (replace(consumable(4), value=Quantity.whole(2**63)), "above the largest quantity"),
            )
        ),
    ],
)
def test_refused_capacity_has_a_reason(name: str, value: Any, reason: str) -> None:
    offer = capacities({name: value, "example.com/fine": consumable(1)})

    (refusal,) = offer.refused.values()
    assert (list(offer.entries), reason in refusal) == (["example.com/fine"], True)


@pytest.mark.parametrize("check", [attributes, capacities])
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "found NoneType, expected a mapping by name"),
        ([("a", 1)], "found list, expected a mapping by name"),
        (dict.fromkeys(map(str, range(101)), 1), "found 101 names, expected at most 100"),
    ],
)
def test_answer_that_is_no_small_mapping_is_an_error(check: Any, answer: object, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        check(answer)


def test_first_provider_of_a_name_wins() -> None:
    first = providers.extended_device(CARD, attributes({RACK: "a"}), {})
    givers = dict.fromkeys(first.given, "alpha")

    offer = attributes({RACK: "b", "example.com/row": "d"})
    second = providers.extended_device(first.device, offer, givers)

    assert second.device.attributes[RACK] == "a"
    assert second.given == ("example.com/row",)
    assert {*second.refused.values()} == {"provider alpha gave this name first"}


def test_capacity_is_added_beside_the_drivers() -> None:
    slots = {"example.com/slots": consumable(8)}

    device = providers.extended_device(CARD, capacities(slots), {}).device

    assert device.capacity == {**CARD.capacity, **slots}


def test_room_is_given_in_alphabetical_order() -> None:
    room = MAX_ENTRIES - len(CARD.attributes) - len(CARD.capacity)
    offered = {f"example.com/a{number:02}": number for number in range(40)}

    extended = providers.extended_device(CARD, attributes(dict(reversed(offered.items()))), {})

    assert extended.given == tuple(offered)[:room]
    assert "32 attributes and capacities, which is the most" in next(
        iter(extended.refused.values())
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [("x" * 256, "x" * 256), ("x" * 257, "x" * 256), ("fan \udcff", "fan ?")],
)
def test_text_of_a_problem_is_short_printable_and_behind_the_name_of_its_source(
    text: str, shown: str
) -> None:
    (found,) = providers.problems([replace(FAN, text=text)], source="fans")

    assert found.text == f"fans: {shown}"


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
