"""A watch of slices survives faults at a bounded rate of requests; what is known follows it."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from dra_simulator.api.faults import Action, Cut, Expire, Garble, HalfOpen, Refuse
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import ResourceApi
from tensorfusion_dra.cluster.slices import KnownSlices, Slices
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


def stored(version: int, *, name: str = "a", uid: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    }


def versions(known: KnownSlices) -> dict[str, int]:
    return {
        item["metadata"]["name"]: int(item["metadata"]["resourceVersion"])
        for item in known.all() or []
    }


def listed(*items: dict[str, Any], version: int = 5) -> KnownSlices:
    known = KnownSlices()
    known.note_list(items, str(version))
    return known


def test_nothing_is_known_before_the_first_list() -> None:
    known = KnownSlices()
    known.note_stored(stored(3))

    assert known.all() is None
    assert listed().all() == []


def test_event_of_an_own_write_is_no_news() -> None:
    known = listed(stored(4))
    known.note_stored(stored(6))

    assert not known.note_event("MODIFIED", stored(6))
    assert versions(known) == {"a": 6}


def test_event_that_is_older_than_an_own_write_is_no_news() -> None:
    known = listed(stored(4))
    known.note_stored(stored(10))

    assert not known.note_event("MODIFIED", stored(9))
    assert versions(known) == {"a": 10}


def test_change_and_deletion_by_another_writer_are_news() -> None:
    known = listed(stored(4))

    assert known.note_event("MODIFIED", stored(6))
    assert known.note_event("ADDED", stored(7, name="b"))
    assert known.note_event("DELETED", stored(8))
    assert versions(known) == {"b": 7}


def test_answer_to_a_write_does_not_replace_a_later_change() -> None:
    known = listed(stored(4))
    known.note_event("MODIFIED", stored(7))

    known.note_stored(stored(6))

    assert versions(known) == {"a": 7}


def test_own_deletion_is_no_news_and_earlier_events_do_not_bring_the_object_back() -> None:
    known = listed(stored(4))
    known.note_deleted(stored(4))

    assert not known.note_event("MODIFIED", stored(5))
    assert not known.note_event("DELETED", stored(6))
    assert versions(known) == {}


def test_late_deletion_of_an_object_that_was_created_again_is_no_news() -> None:
    known = listed(stored(4, uid="first"))
    known.note_deleted(stored(4, uid="first"))
    known.note_stored(stored(8, uid="second"))

    assert not known.note_event("DELETED", stored(7, uid="first"))
    assert versions(known) == {"a": 8}


def test_list_that_is_older_than_own_writes_does_not_undo_them() -> None:
    known = listed(stored(4), stored(4, name="b"))
    known.note_stored(stored(10))
    known.note_stored(stored(11, name="c"))
    known.note_deleted(stored(4, name="b"))

    news = known.note_list([stored(4), stored(4, name="b")], "9")

    assert not news
    assert versions(known) == {"a": 10, "c": 11}


def test_list_brings_news_if_another_writer_has_changed_or_deleted_a_slice() -> None:
    assert listed(stored(4)).note_list([stored(8)], "9")
    assert listed(stored(4)).note_list([], "9")
    assert listed().note_list([stored(8)], "9")
    assert not listed(stored(4)).note_list([stored(4)], "9")


def test_versions_that_are_no_numbers_count_as_later() -> None:
    known = listed(stored(4))
    changed = stored(4)
    changed["metadata"]["resourceVersion"] = "opaque"

    assert known.note_event("MODIFIED", changed)
    assert not known.note_event("MODIFIED", changed)
