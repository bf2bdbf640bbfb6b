"""Registration with the kubelet, and the published slices."""

from collections.abc import Callable

from dra_simulator.api import slice_rules
from tensorfusion_dra.core import names
from tests.e2e.cluster import Cluster, Json
from tests.e2e.drivers import Driver

Slices = Callable[[], list[Json]]


def test_kubelet_registers_the_driver(driver: Driver, cluster: Cluster) -> None:
    driver.start()

    cluster.until(
        "the kubelet's registration", lambda: '"event": "registered"' in driver.log(), seconds=60
    )


def test_slices_are_complete_and_owned_by_their_node(
    slices: Slices, cluster: Cluster, node_name: str
) -> None:
    node = cluster.find("Node", node_name)
    assert node is not None

    found = slices()

    pool = found[0]["spec"]["pool"]
    assert pool["name"].endswith(f"/{node_name}")
    assert len(found) == pool["resourceSliceCount"]
    for item in found:
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == (
            "Node",
            node_name,
            node["metadata"]["uid"],
        )
        assert item["spec"]["nodeName"] == node_name
        assert slice_rules.violations(item["spec"]) == ()


def test_api_server_drops_no_field_of_a_device(slices: Slices) -> None:
    devices = [device for item in slices() for device in item["spec"]["devices"]]

    assert devices
    for device in devices:
        assert device["allowMultipleAllocations"] is True
        assert {names.CAPACITY_TFLOPS, names.CAPACITY_VRAM} <= device["capacity"].keys()
        for capacity in device["capacity"].values():
            assert capacity["requestPolicy"]["validRange"]["min"]
        documented = {names.ATTR_MODEL, names.ATTR_UUID, names.ATTR_POOL_NAME, names.ATTR_QOS}
        assert documented <= device["attributes"].keys()


def test_deleted_slice_is_published_again(slices: Slices, cluster: Cluster) -> None:
    before = slices()

    cluster.delete("ResourceSlice", before[0]["metadata"]["name"])
    after = cluster.until(
        "the slice to be back",
        lambda: (
            found
            if (found := slices()) and found[0]["metadata"]["uid"] != before[0]["metadata"]["uid"]
            else None
        ),
        seconds=30,
    )

    assert [item["spec"]["devices"] for item in after] == [
        item["spec"]["devices"] for item in before
    ]
