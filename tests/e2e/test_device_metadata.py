"""What containers read of their devices in files (KEP-5304)."""

from typing import Any

from tensorfusion_dra.core import names
from tests.e2e.cluster import RESOURCE, Cluster, Json
from tests.e2e.drivers import Driver
from tests.e2e.tenants import Tenants, capacity_request

SMALL = {"tflops": "10", "vram": "1Gi"}
FILE = f"{names.DRIVER}-metadata.json"


def published(cluster: Cluster, result: Json) -> Any:
    """Return the published attributes of an allocated device."""
    for item in cluster.objects("ResourceSlice", fieldSelector=f"spec.driver={names.DRIVER}"):
        if item["spec"]["pool"]["name"] == result["pool"]:
            for device in item["spec"]["devices"]:
                if device["name"] == result["device"]:
                    return device["attributes"]
    raise AssertionError(f"no slice has {result['device']}")


def test_containers_read_of_the_devices_of_their_own_requests(
    tenants: Tenants, cluster: Cluster, driver: Driver
) -> None:
    alternatives = [
        {"name": "huge", **capacity_request("", {"vram": "100Ti"})["exactly"]},
        {"name": "small", **capacity_request("", SMALL)["exactly"]},
    ]
    with driver.configured({"device-metadata": "true"}):
        tenants.template(
            "two",
            capacity_request("one", SMALL),
            {"name": "either", "firstAvailable": alternatives},
        )
        tenants.pod("a", template="two", containers=("one", "either", None))
        tenants.wait_until_running("a")

        claim = tenants.claim("a")
        assert claim is not None
        by_request = {result["request"]: result for result in tenants.results("a")}
        folder = f"{names.METADATA_ROOT}/resourceclaimtemplates/gpu"
        seen = [tenants.metadata("a", container) for container in range(3)]
        assert [sorted(found) for found in seen] == [
            [f"{folder}/one/{FILE}"],
            [f"{folder}/either/{FILE}"],
            [f"{folder}/either/{FILE}", f"{folder}/one/{FILE}"],
        ]
        for path, request in (("one", "one"), ("either", "either/small")):
            for version, found in zip(
                ("v1beta1", "v1alpha1"), seen[2][f"{folder}/{path}/{FILE}"], strict=True
            ):
                assert found["apiVersion"] == f"metadata.resource.k8s.io/{version}"
                assert found["metadata"]["uid"] == claim["metadata"]["uid"]
                assert found["podClaimName"] == "gpu"
                result = by_request[request]
                (entry,) = found["requests"]
                assert entry == {
                    "name": request,
                    "devices": [
                        {
                            "driver": names.DRIVER,
                            "pool": result["pool"],
                            "name": result["device"],
                            "attributes": published(cluster, result),
                        }
                    ],
                }
        tenants.delete("a")


def test_pods_that_share_a_claim_read_the_same_file_and_the_setting_is_off_by_default(
    tenants: Tenants, cluster: Cluster, driver: Driver
) -> None:
    for name in ("shared.gpu", "plain"):
        cluster.create(
            {
                "apiVersion": RESOURCE,
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": tenants.namespace},
                "spec": {"devices": {"requests": [capacity_request("gpu", SMALL)]}},
            }
        )
    with driver.configured({"device-metadata": "true"}):
        for pod in ("a", "b"):
            tenants.pod(pod, claim="shared.gpu")
            tenants.wait_until_running(pod)
        path = f"{names.METADATA_ROOT}/resourceclaims/shared.gpu/gpu/{FILE}"
        assert list(tenants.metadata("a")) == [path]
        assert tenants.metadata("a") == tenants.metadata("b")

    # Without the setting, the prepared claim keeps its file, and another one gets none.
    tenants.pod("c", claim="shared.gpu")
    tenants.pod("d", claim="plain")
    for pod in ("c", "d"):
        tenants.wait_until_running(pod)
    assert tenants.metadata("c") == tenants.metadata("a")
    assert tenants.metadata("d") == {}
    tenants.delete("a", "b", "c", "d")
