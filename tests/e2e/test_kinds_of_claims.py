"""Claims of other kinds: for administrators, with alternatives, with parameters, made by hand."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tensorfusion_dra.cluster.api import StatusError
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.share_parameters import API_VERSION, KIND
from tensorfusion_dra.core.doctor import webhook
from tests.e2e.cluster import RESOURCE, Cluster, Json
from tests.e2e.tenants import Tenants, request

SMALL = {"tflops": "10", "vram": "1Gi"}
LEAST = {"tflops": "0", "vram": "1Mi"}


def test_an_administrator_sees_a_card_beside_its_users_without_a_limit(
    tenants: Tenants, cluster: Cluster
) -> None:
    labels = {"resource.kubernetes.io/admin-access": "true"}
    cluster.merge("Namespace", tenants.namespace, {"metadata": {"labels": labels}})
    tenants.run("user", SMALL)
    # The scheduler counts capacity for administrators, too: by default a card's all, so that
    # cards in use would be left out. With the least there is, every card has room.
    everything = request("gpu", LEAST, adminAccess=True, allocationMode="All")
    tenants.template("watch", everything)
    tenants.pod("watch", template="watch")
    tenants.runs("watch")

    env = tenants.env("watch")

    results = tenants.results("watch")
    assert all(result["adminAccess"] for result in results)
    assert tenants.results("user")[0]["device"] in {result["device"] for result in results}
    assert names.ENV_MEMORY_LIMIT not in env


def test_the_first_alternative_that_can_be_had_is_taken(tenants: Tenants) -> None:
    def alternative(name: str, asks: dict[str, str]) -> dict[str, Any]:
        exactly = request(name, asks)["exactly"]
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
    tenants.runs("either")

    (result,) = tenants.results("either")
    assert result["request"] == "gpu/small"
    assert tenants.env("either")[names.ENV_MEMORY_LIMIT] == "1024"


def test_parameters_of_a_claim_set_its_limits(tenants: Tenants) -> None:
    parameters = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "limits": {"vram": "3Gi"},
    }
    config = {"opaque": {"driver": names.DRIVER, "parameters": parameters}}
    tenants.template("limited", request("gpu", SMALL), config=[config])
    tenants.pod("limited", template="limited")
    tenants.runs("limited")

    env = tenants.env("limited")

    assert env[names.ENV_MEMORY_LIMIT] == "3072"


@pytest.fixture
def hard_class(cluster: Cluster) -> Iterator[str]:
    """A DeviceClass that says hard: with Tensor Fusion's limiter no claim may say it itself."""
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


def test_isolation_that_cannot_take_memory_back_lends_none(
    tenants: Tenants, hard_class: str
) -> None:
    parameters = {"apiVersion": API_VERSION, "kind": KIND, "limits": {"vram": "3Gi"}}
    config = {"opaque": {"driver": names.DRIVER, "parameters": parameters}}
    tenants.template("hard", request("gpu", SMALL, deviceClassName=hard_class), config=[config])
    tenants.pod("hard", template="hard")
    tenants.runs("hard")

    env = tenants.env("hard")

    assert env[names.ENV_ISOLATION_MODE] == "hard"
    assert env[names.ENV_MEMORY_LIMIT] == "1024"


def test_parameters_that_are_wrong_are_told_at_creation_or_in_the_pods_events(
    tenants: Tenants, cluster: Cluster
) -> None:
    parameters = {"apiVersion": API_VERSION, "kind": KIND, "isolation": "hardest"}
    config = {"opaque": {"driver": names.DRIVER, "parameters": parameters}}
    wrong = request("gpu", SMALL)

    if webhook.ours(cluster.objects("ValidatingWebhookConfiguration")):
        with pytest.raises(StatusError) as refused:
            tenants.template("wrong", wrong, config=[config])
        said = str(refused.value)
    else:
        tenants.template("wrong", wrong, config=[config])
        tenants.pod("wrong", template="wrong")
        said = tenants.event("wrong", "FailedPrepareDynamicResources")

    assert "isolation: found 'hardest'" in said


def test_pods_can_share_a_claim_that_was_made_by_hand(tenants: Tenants, cluster: Cluster) -> None:
    cluster.create(
        {
            "apiVersion": RESOURCE,
            "kind": "ResourceClaim",
            "metadata": {"name": "common", "namespace": tenants.namespace},
            "spec": {"devices": {"requests": [request("gpu", SMALL)]}},
        }
    )
    for name in ("a", "b"):
        tenants.pod(name, claim="common")
    for name in ("a", "b"):
        tenants.runs(name)

    shares = [
        {key for key in tenants.env(name) if key.startswith(names.ENV_SHARE_PREFIX)}
        for name in ("a", "b")
    ]

    assert shares[0] == shares[1] != set()
    tenants.end("a")
    claim = cluster.find("ResourceClaim", "common", namespace=tenants.namespace)
    assert claim is not None
    assert claim["status"]["allocation"], "the other pod still uses it"


@pytest.mark.parametrize("amount", ["-1", "-100"])
def test_a_negative_request_takes_nothing_from_others(tenants: Tenants, amount: str) -> None:
    tenants.template("negative", request("gpu", {"tflops": amount, "vram": "1Gi"}))
    tenants.pod("negative", template="negative")
    tenants.runs("negative")

    (result,) = tenants.results("negative")

    assert not result["consumedCapacity"]["tflops"].startswith("-")


@pytest.fixture
def resource_name(cluster: Cluster, device_class: None) -> Iterator[str]:
    """A resource name that the DeviceClass stands for while the test runs."""
    found = cluster.find("DeviceClass", names.DEVICE_CLASS)
    assert found is not None
    before = found["spec"].get("extendedResourceName")
    wanted = before or f"{names.DEVICE_CLASS}/e2e-gpu"

    def called(name: str | None) -> Any:
        patch = {"spec": {"extendedResourceName": name}}
        stored = cluster.merge("DeviceClass", names.DEVICE_CLASS, patch)
        return stored["spec"].get("extendedResourceName")

    assert called(wanted) == wanted, (
        "the API server dropped extendedResourceName: turn the feature gate DRAExtendedResource "
        "on, or leave this test out with -m 'not extended_resource'"
    )
    yield wanted
    called(before)


@pytest.mark.extended_resource
@pytest.mark.usefixtures("quiet")
def test_a_pod_that_asks_for_a_plain_resource_name_gets_a_whole_card(
    tenants: Tenants, slices: Callable[[], list[Json]], resource_name: str, cluster: Cluster
) -> None:
    pod = tenants.document("plain")
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource_name: "1"}}
    cluster.create(pod)
    tenants.runs("plain")

    env = tenants.env("plain")

    (claim,) = cluster.objects("ResourceClaim", namespace=tenants.namespace)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    has = {
        device["name"]: device["capacity"]["vram"]["value"]
        for item in slices()
        for device in item["spec"]["devices"]
    }
    assert result["consumedCapacity"]["vram"] == has[result["device"]]
    assert env[names.ENV_SM_PERCENT_LIMIT] == "100"
