"""The REST client against the simulated API server."""

import threading

import pytest

from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import PODS, ApiError, Client, UnreachableError
from tests.support import objects


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
