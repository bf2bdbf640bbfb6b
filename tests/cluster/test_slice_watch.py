"""A watch survives faults of servers and networks, at a bounded rate of requests."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from dra_simulator.api.faults import Action, Cut, Expire, Garble, HalfOpen, Refuse
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import ResourceApi
from tensorfusion_dra.cluster.slices import Slices
from tensorfusion_dra.cluster.watch import Watch
from tests.cluster.test_objects_at_the_server import t4_slice
from tests.support.answers import nothing
from tests.support.builders.devices import NODE
from tests.support.virtual_time import VirtualTime
from tests.support.waiting import PATIENCE_SECONDS, eventually


class Callbacks:
    def __init__(self) -> None:
        self.changes = 0
        self.returns = 0

    def changed(self) -> None:
        self.changes += 1

    def returned(self) -> None:
        self.returns += 1


@pytest.fixture(autouse=True)
def quick_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_RETURN_SECONDS", 0.2)


@contextmanager
def watching(resource_api: ResourceApi) -> Iterator[Callbacks]:
    callbacks = Callbacks()
    watch = Slices(resource_api, node_name=NODE.name).watch(
        on_change=callbacks.changed, on_return=callbacks.returned
    )
    thread = Thread(target=watch.run)
    thread.start()
    try:
        assert eventually(lambda: callbacks.returns == 1)
        yield callbacks
    finally:
        watch.stop()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def watch_without_callbacks(resource_api: ResourceApi) -> Watch:
    slices = Slices(resource_api, node_name=NODE.name)
    return slices.watch(on_change=nothing, on_return=nothing)


def test_every_change_and_deletion_is_reported(resource_api: ResourceApi) -> None:
    slices = Slices(resource_api, node_name=NODE.name)
    with watching(resource_api) as callbacks:
        created = slices.create(t4_slice())
        assert eventually(lambda: callbacks.changes == 1)
        slices.delete(created)

        assert eventually(lambda: callbacks.changes == 2)
        assert callbacks.returns == 1


def test_bookmarks_are_not_changes(resource_api: ResourceApi) -> None:
    with watching(resource_api) as callbacks:
        assert not eventually(lambda: callbacks.changes > 0, seconds=0.6)


@pytest.mark.parametrize("fault", [Cut(carried_out=True), Expire(), Garble(), Refuse(500)])
def test_watch_resumes_after_a_fault_and_reports_its_return(
    server: ApiServer, resource_api: ResourceApi, fault: Action
) -> None:
    slices = Slices(resource_api, node_name=NODE.name)
    server.faults.add("watch", "resourceslices", fault, times=1)
    with watching(resource_api) as callbacks:
        created = slices.create(t4_slice())

        assert eventually(lambda: callbacks.returns == 2)
        changes = callbacks.changes
        slices.delete(created)
        assert eventually(lambda: callbacks.changes > changes)


def test_silent_connection_is_given_up(
    server: ApiServer, resource_api: ResourceApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_SILENT_SECONDS", 0.3)
    server.faults.add("watch", "resourceslices", HalfOpen(), times=1)
    with watching(resource_api) as callbacks:
        assert eventually(lambda: callbacks.returns == 2)


@pytest.mark.parametrize("fault", [Refuse(500), Expire(), Cut(carried_out=True)])
def test_watch_requests_become_rare_while_the_server_fails(
    server: ApiServer, resource_api: ResourceApi, monkeypatch: pytest.MonkeyPatch, fault: Action
) -> None:
    virtual = VirtualTime(hours=0.25)
    monkeypatch.setattr(watch, "Event", virtual.event)
    server.faults.add("watch", "resourceslices", fault)

    watch_without_callbacks(resource_api).run()

    assert 900 / 30 <= server.requests.count("watch", "resourceslices") <= 900 / 15 + 10
