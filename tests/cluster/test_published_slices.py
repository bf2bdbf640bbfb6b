"""Reads of the driver's slices of all nodes, over HTTP."""

import pytest

from dra_simulator.api.faults import Refuse
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster.api import ResourceApi
from tensorfusion_dra.cluster.slices import PublishedSlices
from tensorfusion_dra.core.errors import RetryableError
from tests.core.devices.slice_documents import plain_device, slice_spec


def create(resource_api: ResourceApi, name: str, **fields: object) -> None:
    resource_api.api.call(
        "POST",
        resource_api.slices(),
        body={
            "apiVersion": resource_api.api_version(),
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": slice_spec(**fields),
        },
    )


def slice_pool(node: str) -> dict[str, object]:
    return {"name": f"default/{node}", "generation": 1, "resourceSliceCount": 1}


def test_slices_of_all_nodes_but_only_of_this_driver_are_read(
    resource_api: ResourceApi,
) -> None:
    create(resource_api, "a", nodeName="node-a", pool=slice_pool("node-a"))
    create(resource_api, "b", nodeName="node-b", pool=slice_pool("node-b"))
    create(resource_api, "nic", driver="nic.example.com", devices=[plain_device("nic-0")])

    found = PublishedSlices(resource_api).published(wait_seconds=5)

    assert sorted(item["metadata"]["name"] for item in found) == ["a", "b"]


def test_cluster_without_slices_gives_an_empty_list(resource_api: ResourceApi) -> None:
    assert PublishedSlices(resource_api).published(wait_seconds=5) == []


def test_lasting_fault_is_retryable(server: ApiServer, resource_api: ResourceApi) -> None:
    server.faults.add("list", "resourceslices", Refuse(500))

    with pytest.raises(RetryableError, match=r"^ResourceSlices: GET /apis/resource"):
        PublishedSlices(resource_api).published(wait_seconds=0.7)
