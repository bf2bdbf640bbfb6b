"""The REST client against the simulated API server."""

import pytest

from dra_simulator.rest import PODS, ApiError, Client
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
