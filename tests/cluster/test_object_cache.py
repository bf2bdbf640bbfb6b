"""GPUPools and the Node as a watch tells them, over HTTP."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.cluster import object_cache, watch
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.object_cache import ObjectCache
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.simulator.api.faults import Cut, Refuse
from tensorfusion_dra.simulator.apiserver import ApiServer
from tensorfusion_dra.simulator.rest import GPUPOOLS, NODES, Client
from tests.support.virtual_time import VirtualTime
from tests.support.waiting import PATIENCE_SECONDS, eventually

POOL: dict[str, Any] = {
    "apiVersion": "tensor-fusion.ai/v1",
    "kind": "GPUPool",
    "metadata": {"name": "prod"},
    "spec": {"qosConfig": {"defaultQoS": "high"}, "more": {"kept": [1]}},
}
OTHER = {**POOL, "metadata": {"name": "other"}}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(tensor_fusion=True, bookmark_seconds=0.2) as running:
        yield running


@pytest.fixture
def client(server: ApiServer) -> Client:
    return Client(server.url)


class Woken:
    count = 0

    def wake(self) -> None:
        self.count += 1


@contextmanager
def following(found: ObjectCache) -> Iterator[ObjectCache]:
    thread = Thread(target=found.run)
    thread.start()
    try:
        yield found
    finally:
        found.stop()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def known(found: ObjectCache) -> list[str] | None:
    try:
        return sorted(item["metadata"]["name"] for item in found.items())
    except (RetryableError, InputError):
        return None


def test_objects_are_added_changed_and_deleted_as_the_server_tells(
    api: Api, client: Client
) -> None:
    stored = client.create(GPUPOOLS, POOL)
    woken = Woken()
    with following(object_cache.gpupools(api, on_change=woken.wake)) as pools:
        assert eventually(lambda: known(pools) == ["prod"])
        assert pools.items()[0]["spec"] == POOL["spec"]
        client.create(GPUPOOLS, OTHER)
        assert eventually(lambda: known(pools) == ["other", "prod"])
        client.replace(GPUPOOLS, {**stored, "spec": {"qosConfig": {"defaultQoS": "low"}}})
        assert eventually(lambda: "low" in str(pools.items()))
        client.delete(GPUPOOLS, "other")

        assert eventually(lambda: known(pools) == ["prod"])
        assert woken.count == 4


def test_of_a_name_only_that_object_is_known(api: Api, client: Client) -> None:
    client.create(GPUPOOLS, OTHER)
    with following(object_cache.gpupools(api, name="prod", on_change=lambda: None)) as pools:
        assert eventually(lambda: known(pools) == [])
        client.create(GPUPOOLS, POOL)

        assert eventually(lambda: known(pools) == ["prod"])


def test_the_labels_of_a_node_are_followed(api: Api, client: Client) -> None:
    node = client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    with following(object_cache.nodes(api, name="n", on_change=lambda: None)) as nodes:
        assert eventually(lambda: known(nodes) == ["n"])

        client.patch(NODES, node, {"metadata": {"labels": {"pool": "prod"}}})

        assert eventually(lambda: nodes.items()[0]["metadata"].get("labels") == {"pool": "prod"})


def test_nothing_is_known_before_the_server_has_answered(api: Api) -> None:
    pools = object_cache.gpupools(api, on_change=lambda: None)

    with pytest.raises(RetryableError, match="/gpupools: not listed by the API server yet"):
        pools.items()


def test_what_was_deleted_while_the_watch_was_broken_is_gone(
    server: ApiServer, api: Api, client: Client
) -> None:
    client.create(GPUPOOLS, POOL)
    server.faults.add("watch", "gpupools", Cut(carried_out=True), times=1)
    with following(object_cache.gpupools(api, on_change=lambda: None)) as pools:
        client.delete(GPUPOOLS, "prod")

        assert eventually(lambda: known(pools) == [])


def test_objects_stay_while_the_server_is_away(server: ApiServer, api: Api, client: Client) -> None:
    client.create(GPUPOOLS, POOL)
    with following(object_cache.gpupools(api, on_change=lambda: None)) as pools:
        assert eventually(lambda: known(pools) == ["prod"])
        server.faults.add("list", "gpupools", Refuse(500))
        server.faults.add("watch", "gpupools", Refuse(500))
        server.forget_history("gpupools")
        time.sleep(0.5)

        assert known(pools) == ["prod"]


def test_a_server_without_the_resource_is_asked_ever_more_rarely_and_without_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    virtual = VirtualTime(hours=6)
    monkeypatch.setattr(watch, "Event", virtual.event)
    with ApiServer() as bare, capture_logs() as logs:
        api = Api(bare.kubeconfig(tmp_path / "kubeconfig"))
        woken = Woken()
        pools = object_cache.gpupools(api, on_change=woken.wake)

        pools.run()

        with pytest.raises(InputError, match="gpupools: the API server has no such resource"):
            pools.items()
    assert 6 * 3600 / 60 <= woken.count <= 6 * 3600 / 30 + 10
    assert logs == []


def test_a_resource_that_appears_later_is_found(
    server: ApiServer, api: Api, client: Client
) -> None:
    client.create(GPUPOOLS, POOL)
    absent = server.faults.add("list", "gpupools", Refuse(404))
    woken = Woken()
    with following(object_cache.gpupools(api, on_change=woken.wake)) as pools:
        assert eventually(lambda: woken.count == 1)
        assert known(pools) is None

        server.faults.remove(absent)

        assert eventually(lambda: known(pools) == ["prod"])
