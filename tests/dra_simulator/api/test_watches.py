"""Watches: their events, their start and their end."""

from contextlib import ExitStack, closing
from typing import Final

import pytest

from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import CLAIMS, SLICES, Client, Json, served, with_metadata
from tests.support.builders.documents import claim_document, slice_document

SLICE: Final = f"{SLICES}/slice-a"


def version(api: Client) -> str:
    return str(api.get(SLICES).json["metadata"]["resourceVersion"])


def labelled(api: Client, value: str) -> Json:
    """Label slice-a; return it."""
    return api.patch(SLICE, {"metadata": {"labels": {"a": value}}}).json


def test_a_watch_sends_changes_since_a_version(api: Client) -> None:
    since = version(api)
    made = api.post(SLICES, slice_document()).json
    changed = labelled(api, "b")
    api.delete(SLICE)

    with api.watch(f"{SLICES}?resourceVersion={since}") as watch:
        added, modified, (last, _, deleted) = (watch.next() for _ in range(3))

    assert (added, modified) == (("ADDED", "slice-a", made), ("MODIFIED", "slice-a", changed))
    versions = [int(each["metadata"]["resourceVersion"]) for each in (changed, deleted)]
    assert last == "DELETED"
    assert versions == sorted({*versions})


@pytest.mark.parametrize("query", ["", "resourceVersion=0", "sendInitialEvents=true"])
def test_a_watch_without_a_version_begins_with_the_existing_objects(
    api: Client, query: str
) -> None:
    for name in ("slice-b", "slice-a"):
        api.post(SLICES, slice_document(name))

    with api.watch(f"{SLICES}?{query}") as watch:
        there = [watch.next()[:2] for _ in range(2)]
        api.delete(SLICE)
        then = watch.next()[:2]

    assert there == [("ADDED", "slice-a"), ("ADDED", "slice-b")]
    assert then == ("DELETED", "slice-a")


def test_a_bookmark_ends_the_initial_events(api: Client) -> None:
    api.post(SLICES, slice_document())

    with api.watch(f"{SLICES}?allowWatchBookmarks=true") as watch:
        _, (kind, _, document) = watch.next(), watch.next()

    mark = {"k8s.io/initial-events-end": "true"}
    assert (kind, document["kind"]) == ("BOOKMARK", "ResourceSlice")
    assert document["apiVersion"] == "resource.k8s.io/v1"
    assert document["metadata"] == {"resourceVersion": version(api), "annotations": mark}


def test_bookmarks_report_versions_of_other_resources_as_well() -> None:
    with served(bookmark_seconds=0.02) as api:
        since = version(api)
        with api.watch(f"{SLICES}?resourceVersion={since}&allowWatchBookmarks=true") as watch:
            api.post(CLAIMS, claim_document())
            latest = version(api)
            while (event := watch.next())[2]["metadata"]["resourceVersion"] != latest:
                assert event[0] == "BOOKMARK"

    assert int(latest) > int(since)


@pytest.mark.parametrize(("wanted", "events"), [("true", ["BOOKMARK"]), ("false", [])])
def test_a_watch_ends_after_its_timeout_with_a_bookmark_if_it_asked_for_some(
    api: Client, wanted: str, events: list[str]
) -> None:
    query = f"resourceVersion={version(api)}&timeoutSeconds=0&allowWatchBookmarks={wanted}"

    with api.watch(f"{SLICES}?{query}") as watch:
        assert [event["type"] for event in watch] == events


def test_a_watch_reports_an_object_that_leaves_the_selection_as_deleted(api: Client) -> None:
    since = version(api)
    api.post(SLICES, slice_document())
    _, left, _ = (labelled(api, value) for value in "bcb")

    with api.watch(f"{SLICES}?resourceVersion={since}&labelSelector=a%3Db") as watch:
        events = [watch.next() for _ in range(3)]

    assert [event[0] for event in events] == ["ADDED", "DELETED", "ADDED"]
    assert events[1][2] == with_metadata(left, labels={"a": "b"})


def test_a_watch_from_a_version_before_the_history_expires() -> None:
    with served(history=2) as api:
        since = version(api)
        for name in ("a", "b", "c"):
            api.post(SLICES, slice_document(name))
        with api.watch(f"{SLICES}?resourceVersion={since}") as watch:
            (event,) = watch

    expected = {"code": 410, "reason": "Expired"}
    assert (watch.code, event["type"]) == (200, "ERROR")
    assert event["object"] == event["object"] | expected
    assert event["object"]["message"].startswith(f"too old resource version: {since} (")


def test_a_compaction_forgets_all_history(api: Client, server: ApiServer) -> None:
    since = version(api)
    api.post(SLICES, slice_document())

    server.forget_history("resourceslices")

    for first, events in ((since, ["ERROR"]), (version(api), [])):
        with api.watch(f"{SLICES}?resourceVersion={first}&timeoutSeconds=0") as watch:
            assert [event["type"] for event in watch] == events


def test_stopping_the_server_ends_watches_and_idle_connections_at_once() -> None:
    with ExitStack() as clients:
        with ApiServer() as server:
            idle = clients.enter_context(closing(Client(server.url)))
            idle.get(SLICES)
            watch = clients.enter_context(idle.watch(SLICES))

        assert list(watch) == []


def test_a_watch_of_one_namespace_or_name_sees_no_other(api: Client) -> None:
    since = version(api)
    for namespace, name in (("kube-system", "a"), ("default", "b"), ("default", "a")):
        api.post(CLAIMS.replace("default", namespace), claim_document(name))

    query = f"resourceVersion={since}&fieldSelector=metadata.name%3Da"
    with api.watch(f"{CLAIMS}?{query}") as watch:
        _, name, document = watch.next()

    assert (name, document["metadata"]["namespace"]) == ("a", "default")


def test_a_running_watch_continues_beyond_the_length_of_the_history() -> None:
    with served(history=2) as api, api.watch(f"{SLICES}?resourceVersion={version(api)}") as watch:
        for name in ("a", "b", "c", "d"):
            api.post(SLICES, slice_document(name))
            assert watch.next()[1] == name
