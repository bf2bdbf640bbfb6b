"""Watches: their events, their start and their end."""

import pytest

from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import CLAIMS, SLICES, Client, served
from tests.support.builders.documents import claim_document, slice_document


def version(api: Client) -> str:
    return str(api.get(SLICES).json["metadata"]["resourceVersion"])


def test_a_watch_sends_changes_since_a_version(api: Client) -> None:
    since = version(api)
    made = api.post(SLICES, slice_document()).json
    changed = api.patch(f"{SLICES}/slice-a", {"metadata": {"labels": {"a": "b"}}}).json
    api.delete(f"{SLICES}/slice-a")

    with api.watch(f"{SLICES}?resourceVersion={since}") as watch:
        events = [watch.next() for _ in range(3)]

    assert [event[0] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert events[0][2] == made
    assert events[1][2] == changed
    last = int(events[2][2]["metadata"]["resourceVersion"])
    assert last > int(changed["metadata"]["resourceVersion"])


@pytest.mark.parametrize("query", ["", "resourceVersion=0", "sendInitialEvents=true"])
def test_a_watch_without_a_version_begins_with_the_existing_objects(
    api: Client, query: str
) -> None:
    api.post(SLICES, slice_document("slice-b"))
    api.post(SLICES, slice_document("slice-a"))

    with api.watch(f"{SLICES}?{query}") as watch:
        there = [watch.next()[:2], watch.next()[:2]]
        api.delete(f"{SLICES}/slice-a")
        then = watch.next()[:2]

    assert there == [("ADDED", "slice-a"), ("ADDED", "slice-b")]
    assert then == ("DELETED", "slice-a")


def test_a_bookmark_ends_the_initial_events(api: Client) -> None:
    api.post(SLICES, slice_document())

    with api.watch(f"{SLICES}?allowWatchBookmarks=true") as watch:
        watch.next()
        kind, _, document = watch.next()

    assert kind == "BOOKMARK"
    assert document["metadata"] == {
        "resourceVersion": version(api),
        "annotations": {"k8s.io/initial-events-end": "true"},
    }
    assert (document["kind"], document["apiVersion"]) == ("ResourceSlice", "resource.k8s.io/v1")


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
        assert watch.rest() == events


def test_a_watch_reports_an_object_that_leaves_the_selection_as_deleted(api: Client) -> None:
    since = version(api)
    api.post(SLICES, slice_document())
    api.patch(f"{SLICES}/slice-a", {"metadata": {"labels": {"a": "b"}}})
    left = api.patch(f"{SLICES}/slice-a", {"metadata": {"labels": {"a": "c"}}}).json
    api.patch(f"{SLICES}/slice-a", {"metadata": {"labels": {"a": "b"}}})

    with api.watch(f"{SLICES}?resourceVersion={since}&labelSelector=a%3Db") as watch:
        events = [watch.next() for _ in range(3)]

    assert [event[0] for event in events] == ["ADDED", "DELETED", "ADDED"]
    assert events[1][2]["metadata"]["labels"] == {"a": "b"}
    assert events[1][2]["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]


def test_a_watch_from_a_version_before_the_history_expires() -> None:
    with served(history=2) as api:
        since = version(api)
        for name in ("a", "b", "c"):
            api.post(SLICES, slice_document(name))
        with api.watch(f"{SLICES}?resourceVersion={since}") as watch:
            kind, _, status = watch.next()
            rest = watch.rest()

    assert (watch.code, kind, rest) == (200, "ERROR", [])
    assert (status["code"], status["reason"]) == (410, "Expired")
    assert status["message"].startswith(f"too old resource version: {since} (")


def test_a_compaction_forgets_all_history(api: Client, server: ApiServer) -> None:
    since = version(api)
    api.post(SLICES, slice_document())

    server.forget_history("resourceslices")

    with api.watch(f"{SLICES}?resourceVersion={since}") as watch:
        assert watch.next()[0] == "ERROR"
    with api.watch(f"{SLICES}?resourceVersion={version(api)}&timeoutSeconds=0") as watch:
        assert watch.rest() == []


def test_stopping_the_server_ends_watches_and_idle_connections_at_once() -> None:
    server = ApiServer()
    server.start()
    idle = Client(server.url)
    idle.get(SLICES)
    watch = idle.watch(SLICES)

    server.stop()

    assert watch.rest() == []
    watch.__exit__()
    idle.close()


def test_a_watch_of_one_namespace_or_name_sees_no_other(api: Client) -> None:
    since = version(api)
    api.post(CLAIMS.replace("default", "kube-system"), claim_document())
    api.post(CLAIMS, claim_document("claim-b"))
    api.post(CLAIMS, claim_document("claim-a"))

    query = f"resourceVersion={since}&fieldSelector=metadata.name%3Dclaim-a"
    with api.watch(f"{CLAIMS}?{query}") as watch:
        _, name, document = watch.next()

    assert (name, document["metadata"]["namespace"]) == ("claim-a", "default")


def test_a_running_watch_continues_beyond_the_length_of_the_history() -> None:
    names = []
    with served(history=2) as api, api.watch(f"{SLICES}?resourceVersion={version(api)}") as watch:
        for name in ("a", "b", "c", "d"):
            api.post(SLICES, slice_document(name))
            names.append(watch.next()[1])

    assert names == ["a", "b", "c", "d"]
