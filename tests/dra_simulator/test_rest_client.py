"""The REST client against the simulated API server."""

import threading

import pytest

from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import PODS, SLICES, ApiError, Client, Conditions, UnreachableError
from tests.support import objects


def test_object_is_created_read_listed_patched_and_deleted(client: Client) -> None:
    made = client.create(PODS, objects.pod("a"))

    assert client.get(PODS, "a", "default") == made
    assert [pod["metadata"]["name"] for pod in client.list(PODS).items] == ["a"]
    status = {"status": {"phase": "Running"}}
    assert client.patch(PODS, made, status, subresource="status")["status"]["phase"] == "Running"
    client.delete(PODS, "a", "default", conditions=Conditions(grace_seconds=0))
    assert client.find(PODS, "a", "default") is None


def test_api_error_has_the_servers_status_reason_and_message(client: Client) -> None:
    with pytest.raises(ApiError, match='pods "none" not found') as caught:
        client.get(PODS, "none", "default")

    assert (caught.value.status, caught.value.reason) == (404, "NotFound")


def test_patch_with_another_uid_changes_nothing(client: Client) -> None:
    made = client.create(PODS, objects.pod("a"))
    made["metadata"]["uid"] = "other"

    with pytest.raises(ApiError):
        client.patch(PODS, made, {"status": {"phase": "Failed"}}, subresource="status")

    assert client.get(PODS, "a", "default")["status"]["phase"] == "Pending"


def test_slices_are_deleted_by_field_selector(client: Client) -> None:
    client.create(SLICES, objects.resource_slice(name="a"))
    other = objects.resource_slice(name="b", pool="b")
    other["spec"]["nodeName"] = "node-b"
    client.create(SLICES, other)

    client.delete_all(SLICES, field_selector=f"spec.nodeName={objects.NODE}")

    assert [item["metadata"]["name"] for item in client.list(SLICES).items] == ["b"]


def test_watch_yields_changes_until_it_is_closed(client: Client) -> None:
    since = client.list(PODS).resource_version
    watch = client.watch(PODS, since)
    client.create(PODS, objects.pod("a"))
    events = iter(watch)

    event = next(events)
    threading.Timer(0.05, watch.close).start()

    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")
    assert list(events) == []
    watch.release()


def test_stopped_server_is_unreachable() -> None:
    with ApiServer() as server:
        client = Client(server.url)

    with pytest.raises(UnreachableError):
        client.list(PODS)
