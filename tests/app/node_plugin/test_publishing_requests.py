"""The requests of one node's publishing parts, counted at the simulated API server."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_simulator.api.faults import Refuse
from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import GPUPOOLS, NODES, SLICES, Client, Json
from tensorfusion_dra.app.node_plugin.process import NodePlugin
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import USER_AGENT
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.driver.publish import CatalogBuilder
from tensorfusion_dra.runtime.supervisor import Supervisor
from tests.support.builders.gpupools import pool_of_all_nodes
from tests.support.waiting import eventually

NODE = "node-01"
BOOKMARK_SECONDS = 0.1
WATCHING = {("watch", "resourceslices"): 1, ("watch", "devicetaintrules"): 1}
UID = {("get", "nodes"): 1}
RULES = {("list", "devicetaintrules"): 1}
CREATED, UPDATED = ("create", "resourceslices"), ("update", "resourceslices")


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(tensor_fusion=True, bookmark_seconds=BOOKMARK_SECONDS) as running:
        metadata = {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        Client(running.url).create(NODES, node)
        running.requests.reset()
        yield running


@contextmanager
def publishing_node(
    server: ApiServer, folder: Path, *, gpus: str = "2xT4", pool_source: str = "settings"
) -> Iterator[CatalogBuilder]:
    """Start the parts of a node that publish it; return once it watches and has published."""
    folder.mkdir(exist_ok=True)
    settings = Settings(
        node_name=NODE,
        kubeconfig=str(server.kubeconfig(folder / "kubeconfig")),
        kubelet_root=str(folder),
        cdi_dir=str(folder),
        tensor_fusion_root=str(folder / "tensor-fusion"),
        simulated_gpus=gpus,
        pool_source=pool_source,
    )
    with Supervisor() as supervisor:
        plugin = NodePlugin(settings, supervisor)
        plugin.cards.refresh()
        plugin.publish()
        assert eventually(lambda: server.requests.count("watch", "resourceslices") > 0)
        assert eventually(lambda: is_published(server))
        yield plugin.cards


@contextmanager
def node_at_rest(server: ApiServer, folder: Path, **options: str) -> Iterator[CatalogBuilder]:
    """Start a node's parts; count its requests from when it has published and rests."""
    with publishing_node(server, folder, **options) as cards:
        quiet(server, most_lists=3)
        server.requests.reset()
        yield cards


def stored(server: ApiServer) -> list[Json]:
    """Return the stored slices without a counted request."""
    return [each.document for each in server._store.listed("resourceslices", None)[0]]


def is_published(server: ApiServer) -> bool:
    slices = stored(server)
    return bool(slices) and slices[0]["spec"]["pool"]["resourceSliceCount"] == len(slices)


def taints(server: ApiServer) -> int:
    devices = (device for item in stored(server) for device in item["spec"]["devices"])
    return sum(len(device.get("taints") or []) for device in devices)


def quiet(server: ApiServer, *, most_lists: int = 0) -> dict[tuple[str, str], int]:
    """Return the requests so far, once bookmarks have arrived without a further request.

    Lists of slices are left out; there are at most as many as the argument says.
    """
    time.sleep(0.5)
    sent = server.requests.all()
    assert sent.pop(("list", "resourceslices"), 0) <= most_lists
    return sent


OF_POOLS = [(verb, kind) for verb in ("list", "watch") for kind in ("gpupools", "nodes")]


@pytest.mark.parametrize(
    ("options", "cost"),
    [
        ({"gpus": "16xT4"}, {CREATED: 1}),
        ({"gpus": "128xT4"}, {CREATED: 2}),
        (
            {"pool_source": "node-labels"},
            {CREATED: 1, ("get", "nodes"): 2, **dict.fromkeys(OF_POOLS, 1)},
        ),
    ],
    ids=["a slice", "two slices", "following GPUPools"],
)
def test_start_costs_four_lists_two_watches_and_a_write_for_each_slice(
    server: ApiServer, tmp_path: Path, options: dict[str, str], cost: dict[tuple[str, str], int]
) -> None:
    Client(server.url).create(GPUPOOLS, pool_of_all_nodes("of-all", qos="medium"))
    server.requests.reset()

    with publishing_node(server, tmp_path, **options):
        assert quiet(server, most_lists=3) == {**WATCHING, **UID, **RULES, **cost}


def test_node_at_rest_sends_nothing_but_the_renewal_of_its_watches(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bookmarks ten times a second and a renewal each second; an hour has 8 renewals.

    Other objects change meanwhile, as in every cluster. So each bookmark has a new version.
    """
    monkeypatch.setattr(watch, "_WATCH_SECONDS", 1)
    client = Client(server.url)
    client.create(GPUPOOLS, pool_of_all_nodes("of-all", qos="medium"))
    numbers = itertools.count()
    with node_at_rest(server, tmp_path, pool_source="node-labels"):
        renewed = [
            ("watch", kind) for kind in ("resourceslices", "devicetaintrules", "gpupools", "nodes")
        ]

        def are_renewed() -> bool:
            client.create(NODES, {"metadata": {"name": f"other-{next(numbers)}"}})
            time.sleep(BOOKMARK_SECONDS)
            return all(server.requests.count(*each) >= 2 for each in renewed)

        assert eventually(are_renewed)

        sent = {(asked.verb, asked.resource) for asked in server.requests.asked(USER_AGENT)}
        assert sent == {*renewed}


@pytest.mark.parametrize(
    ("gpus", "unhealthy", "conflicts", "cost"),
    [
        ("128xT4", [127], 0, {UPDATED: 1}),
        ("128xT4", [0, 127], 0, {UPDATED: 2}),
        ("2xT4", [0], 1, {UPDATED: 2, **UID}),
    ],
    ids=["one slice", "both slices", "overtaken by another writer"],
)
def test_health_changes_cost_a_write_of_each_changed_slice_and_no_read_without_a_conflict(  # noqa: PLR0917
    server: ApiServer,
    tmp_path: Path,
    gpus: str,
    unhealthy: list[int],
    conflicts: int,
    cost: dict[tuple[str, str], int],
) -> None:
    with node_at_rest(server, tmp_path, gpus=gpus) as node:
        server.faults.add("update", "resourceslices", Refuse(409, "conflict"), times=conflicts)
        catalog = node.catalog.current()
        assert catalog is not None
        for index in unhealthy:
            uuid = catalog.devices[index].gpu.uuid
            node.on_event(CardEvent(gpu_uuid=uuid, kind=EventKind.XID, code=79))
        assert eventually(lambda: taints(server) == len(unhealthy))

        assert quiet(server, most_lists=conflicts) == cost


def test_restart_without_changes_costs_four_lists_and_two_watches_and_the_nodes_uid(
    server: ApiServer, tmp_path: Path
) -> None:
    with node_at_rest(server, tmp_path):
        pass
    server.requests.reset()

    with publishing_node(server, tmp_path):
        assert quiet(server, most_lists=3) == {**WATCHING, **UID, **RULES}


def test_slice_deleted_by_the_kubelet_costs_one_list_one_write_and_the_nodes_uid(
    server: ApiServer, tmp_path: Path
) -> None:
    with node_at_rest(server, tmp_path):
        (before,) = stored(server)
        Client(server.url).delete(SLICES, before["metadata"]["name"])

        assert eventually(lambda: bool(stored(server)))
        assert quiet(server, most_lists=1) == {("delete", "resourceslices"): 1, CREATED: 1, **UID}


def test_server_that_restarts_is_asked_for_the_watches_and_nothing_else(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It remembers the changes since the last bookmark, as another API server does."""
    monkeypatch.setattr(watch, "_RETURN_SECONDS", 0.5)
    with publishing_node(server, tmp_path):
        Client(server.url).create(NODES, {"metadata": {"name": "other"}})  # a version to reach
        quiet(server, most_lists=3)
        server.stop()
        server.requests.reset()
        server.start()

        assert eventually(lambda: server.requests.count("watch", "resourceslices") == 1)
        assert quiet(server) == WATCHING
