"""Lists of whole collections: pages, kinds that are missing, and rights that are missing."""

from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.cluster.api import Api, StatusError
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tests.support import canned_api

NODES = "/api/v1/nodes"


def page(*names: str, more: str = "") -> dict[str, Any]:
    return {"metadata": {"continue": more}, "items": [{"metadata": {"name": n}} for n in names]}


def test_pages_are_followed_to_the_end(tmp_path: Path) -> None:
    pages = iter([page("a", "b", more="token"), page("c")])
    with canned_api.served({f"GET {NODES}": lambda _: next(pages)}) as server:
        lists = ClusterLists(Api(server.kubeconfig(tmp_path / "kubeconfig")))

        found = [item["metadata"]["name"] for item in lists.items(NODES)]

    asked = [request for request, _ in server.requests]
    assert found == ["a", "b", "c"]
    assert asked == [f"GET {NODES}?limit=500", f"GET {NODES}?limit=500&continue=token"]


def test_list_that_expires_between_pages_is_read_at_once(tmp_path: Path) -> None:
    answers = iter([page("a", more="token"), (410, "too old"), page("a", "b")])
    with canned_api.served({f"GET {NODES}": lambda _: next(answers)}) as server:
        lists = ClusterLists(Api(server.kubeconfig(tmp_path / "kubeconfig")))

        found = [item["metadata"]["name"] for item in lists.items(NODES)]

    assert found == ["a", "b"]


def test_kind_that_the_server_lacks_has_no_objects(tmp_path: Path) -> None:
    with canned_api.served({}) as server:
        lists = ClusterLists(Api(server.kubeconfig(tmp_path / "kubeconfig")))

        assert lists.items(NODES) == []
        assert lists.find(f"{NODES}/a") is None
        assert lists.readable_items(NODES, "Nodes") == []
        assert lists.unreadable == []


def test_missing_right_is_noted_once_for_what_can_do_without(tmp_path: Path) -> None:
    with canned_api.served({f"GET {NODES}": (403, "no")}) as server:
        lists = ClusterLists(Api(server.kubeconfig(tmp_path / "kubeconfig")))

        assert lists.readable_items(NODES, "Nodes") is None
        assert lists.unreadable == ["Nodes (no right to list them)"]
        with pytest.raises(StatusError, match="403"):
            lists.items(NODES)
