"""Shares of pods: what they get by each kind of claim, and never more than a card has."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tensorfusion_dra.app.doctor import objects
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.share_policy import API_VERSION, KIND
from tensorfusion_dra.core.errors import StatusError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tests.e2e.cluster import RESOURCE, Cluster, Json
from tests.e2e.drivers import Driver
from tests.e2e.tenants import Tenants, capacity_request

Slices = Callable[[], list[Json]]

QUARTER = {"tflops": "78", "vram": "16Gi"}


def total(slices: Slices, capacity: str) -> list[int]:
    """Return a capacity of each of the node's devices, in billionths of its unit."""
    return [
        quantity.parse(device["capacity"][capacity]["value"]).nano
        for item in slices()
        for device in item["spec"]["devices"]
    ]


def virtual_tflops(slices: Slices) -> list[int]:
    """Return total() of oversubscribed compute; empty unless every device has it."""
    try:
        return total(slices, "virtual_tflops")
    except KeyError:
        return []


def test_container_has_its_limits_in_its_environment(tenants: Tenants, slices: Slices) -> None:
    env = tenants.run("a", QUARTER)

    (result,) = tenants.results("a")
    (tflops,) = set(total(slices, "tflops"))
    percent = -(-100 * quantity.parse("78").nano // tflops)
    assert env[names.ENV_SM_PERCENT_LIMIT] == str(percent)
    assert env[names.ENV_MEMORY_LIMIT] == str(16 * GIB // MIB)
    assert env[names.ENV_NVIDIA_VISIBLE_DEVICES] == "void"
    limits = json.loads(env[names.ENV_MEM_LIMIT_BY_UUID])
    assert {uuid.lower(): amount for uuid, amount in limits.items()} == {result["device"]: 16 * GIB}
    assert quantity.parse(result["consumedCapacity"]["vram"]).nano == 16 * GIB * 10**9


@pytest.mark.usefixtures("idle_node")
def test_cards_can_be_filled_to_the_last_unit_and_not_beyond(
    tenants: Tenants, slices: Slices
) -> None:
    cards = total(slices, "tflops")
    thirds = {"tflops": f"{cards[0] // 3}n", "vram": "1Gi"}
    for number in range(3 * len(cards)):
        tenants.template(f"third-{number}", capacity_request("gpu", thirds))
        tenants.pod(f"third-{number}", template=f"third-{number}")
    for number in range(3 * len(cards)):
        tenants.wait_until_running(f"third-{number}")

    tenants.template("more", capacity_request("gpu", {"tflops": "1", "vram": "1Mi"}))
    tenants.pod("more", template="more")
    tenants.wait_until_unschedulable("more")
    taken: dict[str, int] = {}
    for number in range(3 * len(cards)):
        (result,) = tenants.results(f"third-{number}")
        amount = quantity.parse(result["consumedCapacity"]["tflops"]).nano
        taken[result["device"]] = taken.get(result["device"], 0) + amount

    assert all(amount <= cards[0] for amount in taken.values())
    assert len(taken) == len(cards)
    tenants.delete("third-0")
    tenants.wait_until_running("more")


@pytest.mark.usefixtures("idle_node")
def test_oversell_ratio_150_allocates_half_as_much_again_and_no_more(
    tenants: Tenants, driver: Driver, slices: Slices, cluster: Cluster
) -> None:
    physical = total(slices, "tflops")
    with driver.configured({"tflops-oversell-ratio": "150"}):
        cluster.until("virtual capacity", lambda: virtual_tflops(slices), seconds=60)
        virtual = virtual_tflops(slices)
        third = {"virtual_tflops": f"{virtual[0] // 3}n", "virtual_vram": "1Gi"}
        tenants.template("third", capacity_request("gpu", third))
        pods = [f"third-{number}" for number in range(3 * len(virtual))]
        for name in pods:
            tenants.pod(name, template="third")
        for name in pods:
            tenants.wait_until_running(name)

        tenants.template(
            "more", capacity_request("gpu", {"virtual_tflops": "1", "virtual_vram": "1Mi"})
        )
        tenants.pod("more", template="more")
        tenants.wait_until_unschedulable("more")
        # A card that tenants share cannot be allocated exclusively.
        tenants.template("exclusive", capacity_request("gpu", {"tflops": "1", "vram": "1Gi"}))
        tenants.pod("exclusive", template="exclusive")
        tenants.wait_until_unschedulable("exclusive")
        taken: dict[str, int] = {}
        for name in pods:
            (result,) = tenants.results(name)
            amount = quantity.parse(result["consumedCapacity"]["virtual_tflops"]).nano
            taken[result["device"]] = taken.get(result["device"], 0) + amount
        tenants.delete("more", "exclusive", *pods)

    assert virtual == [amount * 3 // 2 for amount in physical]
    assert all(virtual[0] - 3 < amount <= virtual[0] for amount in taken.values()), (
        "only the remainder of the division by three may be left"
    )
    assert len(taken) == len(virtual)


def test_claim_status_has_the_device_and_its_ready_condition(
    tenants: Tenants, cluster: Cluster
) -> None:
    tenants.run("a", QUARTER)

    (device,) = cluster.until(
        "the claim's status",
        lambda: ((tenants.claim("a") or {}).get("status") or {}).get("devices"),
        seconds=30,
    )

    (result,) = tenants.results("a")
    assert device["driver"] == names.DRIVER
    assert (device["device"], device["shareID"]) == (result["device"], result["shareID"])
    assert any(c["type"] == "Ready" and c["status"] == "True" for c in device["conditions"])


SMALL = {"tflops": "10", "vram": "1Gi"}
SMALLEST = {"tflops": "0", "vram": "1Mi"}


def test_admin_access_includes_cards_in_use_and_has_no_limit(
    tenants: Tenants, cluster: Cluster
) -> None:
    labels = {"resource.kubernetes.io/admin-access": "true"}
    cluster.merge("Namespace", tenants.namespace, {"metadata": {"labels": labels}})
    tenants.run("user", SMALL)
    # The scheduler counts capacity for admin access, too. By default that is all of a card, so
    # cards in use would not match. With the smallest share, every card has enough left.
    everything = capacity_request("gpu", SMALLEST, adminAccess=True, allocationMode="All")
    tenants.template("watch", everything)
    tenants.pod("watch", template="watch")
    tenants.wait_until_running("watch")

    env = tenants.env("watch")

    results = tenants.results("watch")
    assert all(result["adminAccess"] for result in results)
    assert tenants.results("user")[0]["device"] in {result["device"] for result in results}
    assert names.ENV_MEMORY_LIMIT not in env


def test_first_alternative_that_fits_is_allocated(tenants: Tenants) -> None:
    def alternative(name: str, capacity: dict[str, str]) -> dict[str, Any]:
        exactly = capacity_request(name, capacity)["exactly"]
        return {"name": name, **exactly}

    tenants.template(
        "either",
        {
            "name": "gpu",
            "firstAvailable": [
                alternative("huge", {"tflops": "1", "vram": "100Ti"}),
                alternative("small", SMALL),
            ],
        },
    )
    tenants.pod("either", template="either", containers=("gpu",))
    tenants.wait_until_running("either")

    (result,) = tenants.results("either")
    assert result["request"] == "gpu/small"
    assert tenants.env("either")[names.ENV_MEMORY_LIMIT] == "1024"


@pytest.fixture
def hard_class(cluster: Cluster) -> Iterator[str]:
    """DeviceClass with hard isolation, which a claim may not set with Tensor Fusion's limiter."""
    name = f"{names.DEVICE_CLASS}-e2e-hard"
    parameters = {"apiVersion": API_VERSION, "kind": KIND, "isolation": "hard"}
    cluster.create(
        {
            "apiVersion": RESOURCE,
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {
                "selectors": [{"cel": {"expression": f'device.driver == "{names.DRIVER}"'}}],
                "config": [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}],
            },
        }
    )
    yield name
    cluster.delete("DeviceClass", name)


def test_hard_isolation_ignores_a_memory_limit_above_the_request(
    tenants: Tenants, hard_class: str
) -> None:
    parameters = {"apiVersion": API_VERSION, "kind": KIND, "limits": {"vram": "3Gi"}}
    config = {"opaque": {"driver": names.DRIVER, "parameters": parameters}}
    tenants.template(
        "hard", capacity_request("gpu", SMALL, deviceClassName=hard_class), config=[config]
    )
    tenants.pod("hard", template="hard")
    tenants.wait_until_running("hard")

    env = tenants.env("hard")

    assert env[names.ENV_ISOLATION_MODE] == "hard"
    assert env[names.ENV_MEMORY_LIMIT] == "1024"


def test_invalid_parameters_are_rejected_at_creation_or_reported_as_event(
    tenants: Tenants, cluster: Cluster
) -> None:
    parameters = {"apiVersion": API_VERSION, "kind": KIND, "isolation": "hardest"}
    config = {"opaque": {"driver": names.DRIVER, "parameters": parameters}}
    wrong = capacity_request("gpu", SMALL)

    if objects.webhooks(cluster.objects("ValidatingWebhookConfiguration")):
        with pytest.raises(StatusError) as rejected:
            tenants.template("wrong", wrong, config=[config])
        message = str(rejected.value)
    else:
        tenants.template("wrong", wrong, config=[config])
        tenants.pod("wrong", template="wrong")
        message = tenants.event("wrong", "FailedPrepareDynamicResources")

    assert "isolation: found 'hardest'" in message


@pytest.fixture
def resource_name(cluster: Cluster, device_class: None) -> Iterator[str]:
    """Extended resource name of the DeviceClass while the test runs."""
    found = cluster.find("DeviceClass", names.DEVICE_CLASS)
    assert found is not None
    before = found["spec"].get("extendedResourceName")
    wanted = before or f"{names.DEVICE_CLASS}/e2e-gpu"

    def set_name(name: str | None) -> Any:
        patch = {"spec": {"extendedResourceName": name}}
        stored = cluster.merge("DeviceClass", names.DEVICE_CLASS, patch)
        return stored["spec"].get("extendedResourceName")

    assert set_name(wanted) == wanted, (
        "the API server dropped extendedResourceName: enable the feature gate DRAExtendedResource "
        "or deselect this test with -m 'not extended_resource'"
    )
    yield wanted
    set_name(before)


@pytest.mark.extended_resource
@pytest.mark.usefixtures("idle_node")
def test_pod_with_an_extended_resource_gets_a_whole_card(
    tenants: Tenants, slices: Callable[[], list[Json]], resource_name: str, cluster: Cluster
) -> None:
    pod = tenants.document("plain")
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource_name: "1"}}
    cluster.create(pod)
    tenants.wait_until_running("plain")

    env = tenants.env("plain")

    (claim,) = cluster.objects("ResourceClaim", namespace=tenants.namespace)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    vram = {
        device["name"]: device["capacity"]["vram"]["value"]
        for item in slices()
        for device in item["spec"]["devices"]
    }
    assert result["consumedCapacity"]["vram"] == vram[result["device"]]
    assert env[names.ENV_SM_PERCENT_LIMIT] == "100"


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
