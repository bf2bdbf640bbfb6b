"""A provider that hangs stops neither the reading of the cards nor their taints."""

import threading
from collections.abc import Iterator, Mapping

import pytest

from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.driver.providers.providers import OWN, Providers
from tensorfusion_dra.driver.providers.registered import Kind, Registered
from tensorfusion_dra.extend import Gpu, Node
from tests.support.builders.devices import NODE
from tests.support.builders.gpus import gpus
from tests.support.ports import FixedDiscovery
from tests.support.waiting import PATIENCE_SECONDS

A, B = gpus(2)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    opened = threading.Event()
    yield opened
    opened.set()


@pytest.fixture
def reader(gate: threading.Event) -> DeviceCatalog:
    """Return a reader whose providers of every kind hang."""

    def hang(*_: Gpu | Node | None) -> Mapping[str, str]:
        assert gate.wait(PATIENCE_SECONDS)
        return {}

    hanging = [
        Registered(kind=kind, name="hangs-always", package="h 1.0", load=lambda: hang)
        for kind in (Kind.ATTRIBUTES, Kind.CAPACITIES, Kind.HEALTH)
    ]
    return DeviceCatalog(
        FixedDiscovery(Inventory(gpus=(A, B))),
        NODE,
        providers=Providers([*OWN, *hanging], budget_seconds=0.01),
    )


def test_cards_are_published(reader: DeviceCatalog) -> None:
    assert reader.refresh()

    catalog = reader.current()
    assert catalog is not None
    assert [device.gpu for device in catalog.devices] == [A, B]


def test_change_of_the_cards_is_published(reader: DeviceCatalog) -> None:
    reader.refresh()

    changed = reader.note_event(CardEvent(gpu_uuid=A.uuid, kind=EventKind.XID, code=79))

    assert changed
    assert reader.sick().keys() == {A.uuid.lower()}


def hanging_threads() -> int:
    return [each.name for each in threading.enumerate()].count("provider-hangs-always")


def test_thread_of_each_provider_is_the_only_one_that_waits(reader: DeviceCatalog) -> None:
    before = hanging_threads()

    for _ in range(4):
        reader.refresh()

    assert hanging_threads() == before + 3
