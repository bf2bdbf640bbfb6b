"""Calls of providers: their time, their threads, their failures, and their last good answers."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory
from tensorfusion_dra.core.devices.reading import Reading
from tensorfusion_dra.driver.providers.called import State
from tensorfusion_dra.driver.providers.providers import OWN, Providers, Report
from tensorfusion_dra.driver.providers.registered import Kind, Registered
from tensorfusion_dra.extend import consumable
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpus
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually

CARDS = gpus(2)
READING = Reading(inventory=Inventory(gpus=CARDS), node=NODE)
SHORT_SECONDS = 0.01
RACK = "example.com/rack"


def foreign(provider: object, name: str = "rack", kind: Kind = Kind.ATTRIBUTES) -> Registered:
    return Registered(kind=kind, name=name, package="example 1.0", load=lambda: provider)


def providers(*registered: Registered, budget_seconds: float = FOREVER) -> Providers:
    return Providers([*OWN, *registered], budget_seconds=budget_seconds)


def racks(devices: Sequence[Device]) -> list[object]:
    return [device.attributes.get(RACK) for device in devices]


def report(of: Providers, name: str) -> Report:
    return next(each for each in of.reports() if each.registered.name == name)


class Gate:
    """Provider that answers only while it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.calls = 0
        self.value = "r1"

    def __call__(self, gpu: Gpu, node: object) -> Mapping[str, Any]:
        self.calls += 1
        assert self.open.wait(PATIENCE_SECONDS)
        return {RACK: self.value}


def test_own_providers_alone_build_the_devices_of_the_driver() -> None:
    assert providers().devices(READING) == published_devices(*CARDS)


def test_hanging_provider_costs_its_budget_once_and_its_last_answers_stand() -> None:
    gate = Gate()
    asked = providers(foreign(gate), budget_seconds=SHORT_SECONDS)
    # On a busy machine the first answers may be late themselves.
    assert eventually(lambda: racks(asked.devices(READING)) == ["r1", "r1"])
    gate.open.clear()
    before = gate.calls

    with capture_logs() as logs:
        found = [racks(asked.devices(READING)) for _ in range(3)]

    assert found == [["r1", "r1"]] * 3
    assert gate.calls == before + 1
    assert report(asked, "rack").outcome.state is State.LATE
    assert [line["error"] for line in logs if line["event"] == "provider_failed"] == [
        "no answer within 0.01 s; the last good answers stand"
    ]
    gate.open.set()


def test_provider_that_hangs_from_the_start_gives_nothing_and_others_answer() -> None:
    gate = Gate()
    gate.open.clear()
    asked = providers(
        foreign(gate, "hangs"),
        foreign(lambda gpu, node: {"example.com/row": 7}, "row"),
        budget_seconds=SHORT_SECONDS,
    )

    assert eventually(lambda: asked.devices(READING)[0].attributes.get("example.com/row") == 7)

    assert racks(asked.devices(READING)) == [None, None]
    gate.open.set()


def test_late_answer_with_news_wakes_the_reader_and_counts_from_then_on() -> None:
    gate = Gate()
    gate.open.clear()
    asked = providers(foreign(gate), budget_seconds=SHORT_SECONDS)
    woken = threading.Event()
    asked.on_wake(woken.set)
    asked.devices(READING)

    gate.open.set()

    assert woken.wait(PATIENCE_SECONDS)
    assert racks(asked.devices(READING, anew=False)) == ["r1", "r1"]


def test_providers_are_called_at_the_same_time() -> None:
    """So several that hang delay a reading by no more than one."""
    together = threading.Barrier(3, timeout=PATIENCE_SECONDS)

    def provider(gpu: Gpu, node: object) -> Mapping[str, Any]:
        together.wait()
        return {}

    asked = providers(
        foreign(provider, "a"), foreign(provider, "b"), foreign(provider, "c", Kind.CAPACITIES)
    )

    asked.devices(READING)

    assert [report(asked, name).outcome.state for name in "abc"] == [State.OK] * 3


def test_threads_are_one_for_each_provider_however_often_it_hangs() -> None:
    gate = Gate()
    gate.open.clear()
    asked = providers(foreign(gate, "counted"), budget_seconds=SHORT_SECONDS)

    for _ in range(5):
        asked.devices(READING)

    assert [each.name for each in threading.enumerate()].count("provider-counted") == 1
    gate.open.set()


def test_failed_call_leaves_the_last_good_answer_of_its_card() -> None:
    fails = False

    def rack(gpu: Gpu, _node: object) -> Mapping[str, str]:
        if fails and gpu.index == 0:
            raise ValueError("no rack")
        return {RACK: "r2" if fails else "r1"}

    asked = providers(foreign(rack))
    asked.devices(READING)
    fails = True

    with capture_logs() as logs:
        found = [racks(asked.devices(READING)) for _ in range(3)]
    fails = False
    with capture_logs() as later:
        asked.devices(READING)

    assert found == [["r1", "r2"]] * 3
    assert [line["event"] for line in logs] == ["provider_failed"]
    assert [line["event"] for line in later] == ["provider_recovered"]


@pytest.mark.parametrize("answer", [None, 7, "text", [("a", 1)]])
def test_answer_of_another_type_is_an_error(answer: object) -> None:
    asked = providers(foreign(lambda gpu, node: answer))

    built = asked.devices(READING)

    assert built == published_devices(*CARDS)
    outcome = report(asked, "rack").outcome
    assert outcome.state is State.FAILED
    assert "expected a mapping by name" in outcome.errors[CARDS[0].uuid]


def raising(error: BaseException) -> Callable[[], object]:
    def load() -> object:
        raise error

    return load


@pytest.mark.parametrize("error", [ImportError("no module"), SystemExit(3), RuntimeError("x")])
def test_provider_that_cannot_be_loaded_costs_only_itself(error: BaseException) -> None:
    broken = Registered(
        kind=Kind.ATTRIBUTES, name="broken", package="example 1.0", load=raising(error)
    )
    asked = providers(broken, foreign(lambda gpu, node: {RACK: "r1"}))

    assert racks(asked.devices(READING)) == ["r1", "r1"]
    assert report(asked, "broken").outcome.errors == {"": repr(error)}


def test_class_is_instantiated_and_begun_once_a_reading() -> None:
    begun: list[int] = []

    class Neighbours:
        def begin(self, reading: Reading) -> None:
            begun.append(len(reading.gpus))

        def __call__(self, gpu: Gpu, node: object) -> Mapping[str, int]:
            return {"example.com/neighbours": begun[-1] - 1}

    asked = providers(foreign(Neighbours))

    found = [asked.devices(READING)[0].attributes["example.com/neighbours"] for _ in range(2)]

    assert found == [1, 1]
    assert begun == [2, 2]


def test_unused_provider_is_not_loaded() -> None:
    unused = Registered(
        kind=Kind.ATTRIBUTES,
        name="off",
        package="example 1.0",
        load=raising(AssertionError("loaded")),
        unused="disabled",
    )

    asked = providers(unused)

    assert asked.devices(READING) == published_devices(*CARDS)
    assert report(asked, "off").outcome.state is State.UNUSED


def test_order_of_registration_decides_on_a_name_that_two_give() -> None:
    asked = providers(
        foreign(lambda gpu, node: {RACK: "first"}, "alpha"),
        foreign(lambda gpu, node: {RACK: "second"}, "beta"),
    )

    assert racks(asked.devices(READING)) == ["first", "first"]
    refused = report(asked, "beta").refused[CARDS[0].uuid.lower()]
    assert [each.reason for each in refused] == ["provider alpha gave this name first"]
    assert report(asked, "alpha").given[CARDS[0].uuid.lower()] == (RACK,)


def test_refused_name_is_logged_once() -> None:
    asked = providers(foreign(lambda gpu, node: {"model": "x"} if gpu.index == 0 else {}))

    with capture_logs() as logs:
        for _ in range(3):
            asked.devices(READING)

    assert [line["attribute"] for line in logs if line["log_level"] == "warning"] == ["model"]


def test_capacity_provider_adds_a_capacity_beside_the_drivers() -> None:
    asked = providers(
        foreign(lambda gpu, node: {"example.com/slots": consumable(8)}, "slots", Kind.CAPACITIES)
    )

    (device, _) = asked.devices(READING)

    assert device.as_api()["capacity"]["example.com/slots"] == {  # type: ignore[index]
        "value": "8",
        "requestPolicy": {"default": "0", "validRange": {"min": "0"}},
    }
    assert set(device.capacity) == {"tflops", "vram", "example.com/slots"}


def test_provider_that_is_always_late_is_logged_once_and_counts() -> None:
    gate = Gate()
    asked = providers(foreign(gate), budget_seconds=SHORT_SECONDS)
    woken = threading.Event()
    asked.on_wake(woken.set)

    def is_called_again(before: int) -> bool:
        asked.devices(READING)
        return gate.calls > before

    with capture_logs() as logs:
        for value in ("r1", "r2", "r3"):
            gate.value = value
            gate.open.clear()
            assert eventually(functools.partial(is_called_again, gate.calls))
            woken.clear()
            gate.open.set()
            assert woken.wait(PATIENCE_SECONDS)

    assert racks(asked.devices(READING, anew=False)) == ["r3", "r3"]
    assert report(asked, "rack").outcome.state is State.LATE
    about = [line["event"] for line in logs if line.get("provider") == "rack"]
    assert about == ["provider_loaded", "provider_failed"]
