"""Claims with admin access, alternatives, parameters, or without a template."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tensorfusion_dra.cluster.api import StatusError
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.share_parameters import API_VERSION, KIND
from tensorfusion_dra.core.doctor import webhook
from tests.e2e.cluster import RESOURCE, Cluster, Json
from tests.e2e.tenants import Tenants, capacity_request

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

    if webhook.ours(cluster.objects("ValidatingWebhookConfiguration")):
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
