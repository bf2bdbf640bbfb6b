"""A watch of slices survives faults at a bounded rate of requests; what is known follows it."""

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
from tensorfusion_dra.core.errors import RetryableError
from tests.cluster.test_objects_at_the_server import t4_slice
from tests.support.answers import nothing
from tests.support.builders.devices import NODE
from tests.support.virtual_time import VirtualTime
from tests.support.waiting import PATIENCE_SECONDS, eventually


class Callbacks:
    def __init__(self, slices: Slices) -> None:
        self.slices = slices
        self.changes = 0
        self.returns = 0

    def changed(self) -> None:
        self.slices.fetch()  # as the publisher does
        self.changes += 1

    def returned(self) -> None:
        self.slices.fetch()
        self.returns += 1


@pytest.fixture(autouse=True)
def quick_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_RETURN_SECONDS", 0.2)


@contextmanager
def watching(slices: Slices) -> Iterator[Callbacks]:
    callbacks = Callbacks(slices)
    watch = slices.watch(on_change=callbacks.changed, on_return=callbacks.returned)
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


def test_bookmarks_are_not_changes(resource_api: ResourceApi) -> None:
    with watching(Slices(resource_api, node_name=NODE.name)) as callbacks:
        assert not eventually(lambda: callbacks.changes > 0, seconds=0.6)


@pytest.mark.parametrize("fault", [Cut(carried_out=True), Expire(), Garble(), Refuse(500)])
def test_watch_resumes_after_a_fault_and_reports_its_return(
    server: ApiServer, resource_api: ResourceApi, fault: Action
) -> None:
    slices = Slices(resource_api, node_name=NODE.name)
    server.faults.add("watch", "resourceslices", fault, times=1)
    with watching(Slices(resource_api, node_name=NODE.name)) as callbacks:
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
    with watching(Slices(resource_api, node_name=NODE.name)) as callbacks:
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


def test_what_a_watched_publisher_knows_is_listed_again_only_after_changes_of_others(
    server: ApiServer, resource_api: ResourceApi
) -> None:
    own, other = (Slices(resource_api, node_name=NODE.name) for _ in range(2))
    with watching(own) as callbacks:
        created = own.create(t4_slice())
        assert own.fetch() == [created]
        lists = server.requests.count("list", "resourceslices")

        changed = other.replace({**created, "spec": t4_slice(generation=2)["spec"]})
        assert eventually(lambda: callbacks.changes == 1)
        assert [item["spec"] for item in own.fetch()] == [changed["spec"]]
        own.delete(changed)
        assert own.fetch() == []
        other.create(t4_slice())
        assert eventually(lambda: callbacks.changes == 2)

        assert len(own.fetch()) == 1
        assert server.requests.count("list", "resourceslices") == lists + 2


def test_late_deletion_of_an_object_that_was_created_again_is_no_news(
    resource_api: ResourceApi,
) -> None:
    own = Slices(resource_api, node_name=NODE.name)
    changes: list[str] = []
    watch = own.watch(on_change=lambda: changes.append("changed"), on_return=nothing)
    first = own.create(t4_slice())
    own.delete(first)
    second = own.create(t4_slice())

    watch._on_event("DELETED", first)
    assert changes == []
    watch._on_event("DELETED", second)
    assert changes == ["changed"]


@pytest.mark.parametrize("fault", [Refuse(409, "conflict"), Cut(carried_out=True), Refuse(500)])
def test_after_a_write_with_unknown_result_the_slices_are_listed_again(
    server: ApiServer, resource_api: ResourceApi, fault: Action
) -> None:
    own = Slices(resource_api, node_name=NODE.name)
    with watching(own):
        created = own.create(t4_slice())
        own.fetch()
        server.faults.add("update", "resourceslices", fault, times=1)
        lists = server.requests.count("list", "resourceslices")

        with pytest.raises(RetryableError):
            own.replace({**created, "spec": t4_slice(generation=2)["spec"]})

        own.fetch()
        assert server.requests.count("list", "resourceslices") == lists + 1
