"""Providers of other packages: their time, their failures, and their last good answers."""

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.devices.device import Device, Reading
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.driver.providers import (
    ProviderKind,
    Providers,
    ProviderState,
    Registered,
    Report,
)
from tensorfusion_dra.driver.publish import DeviceCatalog
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpus
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


def report(of: Providers, name: str = "rack") -> Report:
    return next(each for each in of.reports() if each.registered.name == name)


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
def gate() -> Any:
    """Yield a gate, and open it at the end."""
    gate = Gate()
    yield gate
    gate.open.set()


def test_hanging_provider_costs_its_budget_once_and_its_last_answers_are_used(gate: Gate) -> None:
    providers = asked(registered(gate), budget_seconds=SHORT_SECONDS)
    # On a busy machine the first answers may be late themselves.
    assert eventually(lambda: racks(providers) == ["r1", "r1"])
    gate.open.clear()
    before = gate.calls

    with capture_logs() as logs:
        found = [racks(providers) for _ in range(3)]

    assert found == [["r1", "r1"]] * 3
    assert gate.calls == before + 1
    assert report(providers).outcome.state is ProviderState.LATE
    assert [line["error"] for line in logs if line["event"] == "provider_failed"] == [
        "no answer within 0.01 s; the last good answers remain in use"
    ]


def test_provider_that_hangs_from_the_start_gives_nothing_and_others_answer(gate: Gate) -> None:
    gate.open.clear()
    row = registered(lambda gpu, node: {"example.com/row": 7}, "row")
    providers = asked(registered(gate), row, budget_seconds=SHORT_SECONDS)

    assert eventually(lambda: devices(providers)[0].attributes.get("example.com/row") == 7)

    assert racks(providers) == [None, None]


def test_provider_that_is_always_late_is_logged_once_and_counts(gate: Gate) -> None:
    # A name of its own: a thread of an earlier test may load its provider, and log it, only now.
    providers = asked(registered(gate, "late-rack"), budget_seconds=SHORT_SECONDS)

    def is_called_again(before: int) -> bool:
        devices(providers)
        return gate.calls > before

    with capture_logs() as logs:
        for value in ("r1", "r2", "r3"):
            gate.value = value
            gate.open.clear()
            assert eventually(functools.partial(is_called_again, gate.calls))
            gate.open.set()
            assert eventually(lambda: racks(providers, call_again=False) == [value] * 2)  # noqa: B023

    assert report(providers, "late-rack").outcome.state is ProviderState.LATE
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

    providers = asked(
        registered(provider, "a"),
        registered(provider, "b"),
        registered(provider, "c", ProviderKind.CAPACITIES),
    )

    devices(providers)

    assert [report(providers, name).outcome.state for name in "abc"] == [ProviderState.OK] * 3
    assert set(threads) == {"provider-a", "provider-b", "provider-c"}


@pytest.mark.parametrize(
    "kind", [ProviderKind.ATTRIBUTES, ProviderKind.CAPACITIES, ProviderKind.HEALTH]
)
def test_cards_and_their_health_are_published_while_providers_hang(
    kind: ProviderKind, gate: Gate
) -> None:
    gate.open.clear()
    providers = asked(registered(gate, kind=kind), budget_seconds=SHORT_SECONDS)
    catalog = DeviceCatalog(FixedDiscovery(READING.inventory), NODE, providers=providers)

    catalog.refresh()
    catalog.on_event(CardEvent(gpu_uuid=CARDS[0].uuid, kind=EventKind.XID, code=79))

    current = catalog.current()
    assert current is not None
    assert [device.gpu for device in current.devices] == list(CARDS)
    assert current.unhealthy.keys() == {OWN[0].name}


def test_failed_call_leaves_the_last_good_answer_of_its_card() -> None:
    fails = False

    def rack(gpu: Gpu, _node: object) -> Mapping[str, str]:
        if fails and gpu.index == 0:
            raise ValueError("no rack")
        return {RACK: "r2" if fails else "r1"}

    providers = asked(registered(rack))
    devices(providers)
    fails = True

    with capture_logs() as logs:
        found = [racks(providers) for _ in range(3)]
    fails = False
    with capture_logs() as later:
        devices(providers)

    assert found == [["r1", "r2"]] * 3
    assert [line["event"] for line in logs] == ["provider_failed"]
    assert [line["event"] for line in later] == ["provider_recovered"]


def test_answer_of_another_type_is_an_error() -> None:
    providers = asked(registered(lambda gpu, node: None))

    assert devices(providers) == OWN

    outcome = report(providers).outcome
    assert outcome.state is ProviderState.FAILED
    assert "expected a mapping by name" in outcome.errors[CARDS[0].uuid]


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> object:
        raise error

    return fail


@pytest.mark.parametrize("error", [ImportError("no module"), SystemExit(3), KeyboardInterrupt()])
def test_exception_of_any_kind_costs_only_its_provider(error: BaseException) -> None:
    broken = Registered(
        kind=ProviderKind.ATTRIBUTES, name="broken", package="broken 1.0", load=raising(error)
    )
    providers = asked(broken, registered(raising(error), "bad"), registered(lambda *_: {RACK: "r"}))

    with capture_logs() as logs:
        assert racks(providers) == ["r", "r"]

    assert report(providers, "broken").outcome.errors == {"": repr(error)}
    assert report(providers, "bad").outcome.errors == {gpu.uuid: repr(error) for gpu in CARDS}
    failed = [line for line in logs if line["event"] == "provider_failed"]
    assert {(line["kind"], line["provider"], line["package"]) for line in failed} == {
        ("attributes", "broken", "broken 1.0"),
        ("attributes", "bad", "example 1.0"),
    }


def test_exception_that_cannot_show_itself_is_named_by_its_class() -> None:
    class MuteError(Exception):
        def __repr__(self) -> str:
            raise AttributeError("text")

    providers = asked(registered(raising(MuteError())))

    assert devices(providers) == OWN
    assert "MuteError" in report(providers).outcome.errors[CARDS[0].uuid]


def test_class_is_instantiated_and_begun_once_a_reading() -> None:
    begun: list[int] = []

    class Neighbours:
        def begin(self, reading: Reading) -> None:
            begun.append(len(reading.gpus))

        def __call__(self, gpu: Gpu, node: object) -> Mapping[str, int]:
            return {RACK: begun[-1] - 1}

    providers = asked(registered(Neighbours))

    assert [racks(providers) for _ in range(2)] == [[1, 1], [1, 1]]
    assert begun == [2, 2]


def test_unused_provider_is_not_loaded() -> None:
    unused = Registered(
        kind=ProviderKind.ATTRIBUTES,
        name="off",
        package="example 1.0",
        load=raising(AssertionError("loaded")),
        unused="disabled",
    )

    providers = asked(unused)

    assert devices(providers) == OWN
    assert report(providers, "off").outcome.state is ProviderState.UNUSED


def test_refused_name_is_logged_once_and_the_others_are_given() -> None:
    answer = {"model": "x", RACK: "r1"}
    providers = asked(registered(lambda gpu, node: answer if gpu.index == 0 else {}))

    with capture_logs() as logs:
        found = [racks(providers) for _ in range(3)]

    assert found == [["r1", None]] * 3
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [(line["package"], line["attribute"]) for line in warnings] == [("example 1.0", "model")]
