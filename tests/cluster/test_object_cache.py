"""Caches of GPUPools and Nodes, filled by a watch over HTTP."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from structlog.testing import capture_logs

from dra_simulator.api.faults import Cut, Refuse
from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import GPUPOOLS, NODES, Client
from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.watch import ObjectCache
from tensorfusion_dra.core.errors import InputError, RetryableError
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


class Changes:
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


def cached_names(found: ObjectCache) -> list[str] | None:
    try:
        return sorted(item["metadata"]["name"] for item in found.items())
    except (RetryableError, InputError):
        return None


def test_cache_follows_additions_changes_and_deletions(api: Api, client: Client) -> None:
    stored = client.create(GPUPOOLS, POOL)
    changes = Changes()
    with following(ObjectCache(api, watch.GPUPOOLS, on_change=changes.wake)) as pools:
        assert eventually(lambda: cached_names(pools) == ["prod"])
        assert pools.items()[0]["spec"] == POOL["spec"]
        client.create(GPUPOOLS, OTHER)
        assert eventually(lambda: cached_names(pools) == ["other", "prod"])
        client.replace(GPUPOOLS, {**stored, "spec": {"qosConfig": {"defaultQoS": "low"}}})
        assert eventually(lambda: "low" in str(pools.items()))
        client.delete(GPUPOOLS, "other")

        assert eventually(lambda: cached_names(pools) == ["prod"])
        assert changes.count == 4


def test_cache_for_one_name_ignores_other_objects(api: Api, client: Client) -> None:
    client.create(GPUPOOLS, OTHER)
    with following(ObjectCache(api, watch.GPUPOOLS, name="prod", on_change=lambda: None)) as pools:
        assert eventually(lambda: cached_names(pools) == [])
        client.create(GPUPOOLS, POOL)

        assert eventually(lambda: cached_names(pools) == ["prod"])


def test_items_are_unavailable_before_the_first_list(api: Api) -> None:
    pools = ObjectCache(api, watch.GPUPOOLS, on_change=lambda: None)

    with pytest.raises(RetryableError, match="/gpupools: not listed by the API server yet"):
        pools.items()


def test_object_deleted_while_the_watch_was_broken_is_removed(
    server: ApiServer, api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_RETURN_SECONDS", 0.2)
    client.create(GPUPOOLS, POOL)
    server.faults.add("watch", "gpupools", Cut(carried_out=True), times=1)
    with following(ObjectCache(api, watch.GPUPOOLS, on_change=lambda: None)) as pools:
        client.delete(GPUPOOLS, "prod")

        assert eventually(lambda: cached_names(pools) == [])


def test_cache_keeps_objects_while_the_server_fails(
    server: ApiServer, api: Api, client: Client
) -> None:
    client.create(GPUPOOLS, POOL)
    with following(ObjectCache(api, watch.GPUPOOLS, on_change=lambda: None)) as pools:
        assert eventually(lambda: cached_names(pools) == ["prod"])
        server.faults.add("list", "gpupools", Refuse(500))
        server.faults.add("watch", "gpupools", Refuse(500))
        server.forget_history("gpupools")
        time.sleep(0.5)

        assert cached_names(pools) == ["prod"]


def test_missing_resource_is_polled_with_growing_delays_and_no_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    virtual = VirtualTime(hours=6)
    monkeypatch.setattr(watch, "Event", virtual.event)
    with ApiServer() as bare, capture_logs() as logs:
        api = Api(bare.kubeconfig(tmp_path / "kubeconfig"))
        changes = Changes()
        pools = ObjectCache(api, watch.GPUPOOLS, on_change=changes.wake)

        pools.run()

        with pytest.raises(InputError, match="gpupools: the API server has no such resource"):
            pools.items()
    assert 6 * 3600 / 30 <= changes.count <= 6 * 3600 / 15 + 10
    assert logs == []


def test_resource_that_appears_later_is_found(server: ApiServer, api: Api, client: Client) -> None:
    client.create(GPUPOOLS, POOL)
    absent = server.faults.add("list", "gpupools", Refuse(404))
    changes = Changes()
    with following(ObjectCache(api, watch.GPUPOOLS, on_change=changes.wake)) as pools:
        assert eventually(lambda: changes.count == 1)
        assert cached_names(pools) is None

        server.faults.remove(absent)

        assert eventually(lambda: cached_names(pools) == ["prod"])


def test_node_label_changes_are_cached(api: Api, client: Client) -> None:
    node = client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    with following(ObjectCache(api, watch.NODES, name="n", on_change=lambda: None)) as nodes:
        assert eventually(lambda: cached_names(nodes) == ["n"])

        client.patch(NODES, node, {"metadata": {"labels": {"pool": "prod"}}})

        assert eventually(lambda: nodes.items()[0]["metadata"].get("labels") == {"pool": "prod"})
