"""Providers that do what they must not: each costs its own answers, and is named in the log."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory
from tensorfusion_dra.core.devices.health import Kind as Trouble_Kind
from tensorfusion_dra.core.devices.health import Trouble
from tensorfusion_dra.core.devices.reading import Reading
from tensorfusion_dra.driver.providers.called import State
from tensorfusion_dra.driver.providers.providers import OWN, Providers, Report
from tensorfusion_dra.driver.providers.registered import Kind, Registered
from tensorfusion_dra.extend import Capacity, Quantity, consumable
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpus
from tests.support.waiting import FOREVER

CARDS = gpus(2)
READING = Reading(inventory=Inventory(gpus=CARDS), node=NODE)
ROW = "example.com/row"
NAN: Any = float("nan")


def foreign(provider: object, name: str, kind: Kind = Kind.ATTRIBUTES) -> Registered:
    return Registered(kind=kind, name=name, package=f"{name} 1.0", load=lambda: provider)


def beside_a_good_one(bad: Registered) -> Providers:
    good = foreign(lambda gpu, node: {ROW: gpu.index}, "row")
    return Providers([*OWN, bad, good], budget_seconds=FOREVER)


def report(of: Providers, name: str) -> Report:
    return next(each for each in of.reports() if each.registered.package == f"{name} 1.0")


def rows(devices: tuple[Device, ...]) -> list[object]:
    return [device.attributes.get(ROW) for device in devices]


class NoTextError(BaseException):
    """An exception whose text cannot be had."""

    def __repr__(self) -> str:
        raise KeyboardInterrupt


def raising(error: BaseException) -> Callable[..., Mapping[str, Any]]:
    def provider(gpu: Gpu, node: object) -> Mapping[str, Any]:
        raise error

    return provider


@pytest.mark.parametrize(
    "error", [SystemExit(0), KeyboardInterrupt(), MemoryError(), RecursionError(), NoTextError()]
)
def test_exception_of_any_kind_costs_only_its_provider(error: BaseException) -> None:
    asked = beside_a_good_one(foreign(raising(error), "bad"))

    with capture_logs() as logs:
        built = asked.devices(READING)

    assert rows(built) == [0, 1]
    assert report(asked, "bad").outcome.state is State.FAILED
    (line,) = (each for each in logs if each["event"] == "provider_failed")
    assert (line["kind"], line["provider"], line["package"]) == ("attributes", "bad", "bad 1.0")
    assert type(error).__name__ in line["error"]


class Wrong(IntEnum):
    SEVEN = 7


@pytest.mark.parametrize(
    "value",
    [
        Capacity(value=Quantity(NAN), default=Quantity(0), minimum=Quantity(0)),
        replace(consumable(4), value=Quantity(NAN)),
        replace(consumable(4), step=7),  # type: ignore[arg-type]
        Quantity.whole(4),
        NAN,
        None,
    ],
)
def test_value_that_is_no_capacity_is_refused_and_named_in_the_log(value: Any) -> None:
    offered = {"example.com/bad": value, "example.com/fine": consumable(1)}
    asked = beside_a_good_one(foreign(lambda gpu, node: offered, "bad", Kind.CAPACITIES))

    with capture_logs() as logs:
        built = asked.devices(READING)

    assert [set(device.capacity) - {"tflops", "vram"} for device in built] == [
        {"example.com/fine"}
    ] * 2
    left_out = [each for each in logs if each["event"] == "attribute_left_out"]
    assert {(each["kind"], each["package"], each["attribute"]) for each in left_out} == {
        ("capacities", "bad 1.0", "example.com/bad")
    }


def test_number_of_an_enumeration_is_a_number() -> None:
    """Looked for in the range of 64-bit integers it would be compared with each of them."""
    asked = beside_a_good_one(foreign(lambda gpu, node: {"example.com/a": Wrong.SEVEN}, "enum"))

    (device, _) = asked.devices(READING)

    assert type(device.attributes["example.com/a"]) is int


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("ends", ["returns", "raises SystemExit"])
def test_child_that_a_provider_forks_does_not_stay(ends: str) -> None:
    codes: list[int] = []

    def provider(gpu: Gpu, node: object) -> Mapping[str, Any]:
        child = os.fork()
        if child == 0:
            if ends == "returns":
                return {}
            raise SystemExit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return {}

    asked = beside_a_good_one(foreign(provider, "forks"))

    assert rows(asked.devices(READING)) == [0, 1]
    assert codes == [1, 1]


def test_provider_whose_name_is_taken_hides_nothing_of_the_one_that_has_it() -> None:
    taken = replace(foreign(lambda gpu, node: {}, "driver"), unused="name: found driver")
    asked = Providers([*OWN, taken])

    built = asked.devices(READING)

    assert built == published_devices(*CARDS)
    own = next(each for each in asked.reports() if not each.registered.package)
    assert set(own.given[built[0].name]) == set(built[0].attributes)
    assert not report(asked, "driver").given


def test_health_source_cannot_report_what_only_the_driver_reports() -> None:
    lost = Trouble(kind=Trouble_Kind.LOST, reason="lost", text="x")
    asked = beside_a_good_one(foreign(lambda gpu: [lost], "fans", Kind.HEALTH))

    found = asked.troubles(READING.inventory)

    assert not any(found.values())
    assert "expected a Problem" in report(asked, "fans").outcome.errors[CARDS[0].uuid]
