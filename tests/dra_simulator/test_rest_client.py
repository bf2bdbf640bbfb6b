"""The REST client against the simulated API server, and the writer of Events on it."""

import pytest

from dra_simulator.apiserver import ApiServer
from dra_simulator.loop import Recorder
from dra_simulator.rest import EVENTS, PODS, ApiError, Client
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


def test_repeated_event_is_written_once_and_different_message_is_new_event(client: Client) -> None:
    pod = client.create(PODS, objects.pod())
    recorder = Recorder(client, "kubelet")

    for message in ("busy", "gone", "busy", "busy"):
        recorder.record(pod, "Failed", message)

    assert sorted(event["message"] for event in client.list(EVENTS).items) == ["busy", "gone"]


def test_event_that_cannot_be_written_is_dropped(api: ApiServer, client: Client) -> None:
    pod = client.create(PODS, objects.pod())
    nowhere = {**pod, "metadata": {**pod["metadata"], "namespace": "gone"}}
    recorder = Recorder(client, "kubelet")

    recorder.record(nowhere, "Failed", "busy")
    api.stop()
    recorder.record(pod, "Failed", "busy")

    api.start()
    assert client.list(EVENTS).items == []
