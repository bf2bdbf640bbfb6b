"""Shares of pods: what they get by each kind of claim, and never more than a card has."""

import copy
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tensorfusion_dra.app.doctor import objects
from tensorfusion_dra.app.simulate.webhook import add_classes
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.share_policy import API_VERSION, KIND
from tensorfusion_dra.core.errors import StatusError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tests.e2e.cluster import RESOURCE, Cluster, Json, Slices, path_of, results_of
from tests.e2e.drivers import Driver
from tests.e2e.tenants import SMALL, Tenants, capacity_request
from tests.support.builders.documents import class_document
from tests.support.markdown import ROOT

QUARTER = {"tflops": "78", "vram": "16Gi"}


def total(slices: Slices, capacity: str) -> list[int]:
    """Return a capacity of each of the node's devices, in billionths; empty unless all have it."""
    devices = [device["capacity"] for item in slices() for device in item["spec"]["devices"]]
    if any(capacity not in each for each in devices):
        return []
    return [quantity.parse(each[capacity]["value"]).nano for each in devices]


def taken(tenants: Tenants, capacity: str, *pods: str) -> dict[str, int]:
    """Return what pods with one share consume of each card, in billionths of the unit."""
    found: dict[str, int] = {}
    for name in pods:
        (result,) = tenants.results(name)
        amount = quantity.parse(result["consumedCapacity"][capacity]).nano
        found[result["device"]] = found.get(result["device"], 0) + amount
    return found


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
    pods = [f"third-{number}" for number in range(3 * len(cards))]
    tenants.template("third", capacity_request("gpu", thirds))
    tenants.run_all(*pods, template="third")
    tenants.lacks_room("more", {"tflops": "1", "vram": "1Mi"})

    consumed = taken(tenants, "tflops", *pods)

    assert all(amount <= cards[0] for amount in consumed.values())
    assert len(consumed) == len(cards)
    tenants.delete(pods[0])
    tenants.wait_until_running("more")


@pytest.mark.usefixtures("idle_node")
def test_oversell_ratio_150_allocates_half_as_much_again_and_no_more(
    tenants: Tenants, driver: Driver, slices: Slices, cluster: Cluster
) -> None:
    physical = total(slices, "tflops")
    with driver.configured({"tflops-oversell-ratio": "150"}):
        virtual = cluster.until(
            "virtual capacity", lambda: total(slices, "virtual_tflops"), seconds=60
        )
        third = {"virtual_tflops": f"{virtual[0] // 3}n", "virtual_vram": "1Gi"}
        pods = [f"third-{number}" for number in range(3 * len(virtual))]
        tenants.template("third", capacity_request("gpu", third))
        tenants.run_all(*pods, template="third")
        tenants.lacks_room("more", {"virtual_tflops": "1", "virtual_vram": "1Mi"})
        # A card that tenants share cannot be allocated exclusively.
        tenants.lacks_room("exclusive", {"tflops": "1", "vram": "1Gi"})
        consumed = taken(tenants, "virtual_tflops", *pods)
        tenants.delete("more", "exclusive", *pods)

    assert virtual == [amount * 3 // 2 for amount in physical]
    assert all(virtual[0] - 3 < amount <= virtual[0] for amount in consumed.values()), (
        "only the remainder of the division by three may be left"
    )
    assert len(consumed) == len(virtual)


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

    env = tenants.run_with("watch", everything)

    results = tenants.results("watch")
    assert all(result["adminAccess"] for result in results)
    assert tenants.results("user")[0]["device"] in {result["device"] for result in results}
    assert names.ENV_MEMORY_LIMIT not in env


EITHER = {
    "name": "either",
    "firstAvailable": [
        {"name": "huge", **capacity_request("", {"tflops": "1", "vram": "100Ti"})["exactly"]},
        {"name": "small", **capacity_request("", SMALL)["exactly"]},
    ],
}
"""A request whose first alternative fits no card."""


def test_first_alternative_that_fits_is_allocated(tenants: Tenants) -> None:
    env = tenants.run_with("a", EITHER, containers=("either",))

    (result,) = tenants.results("a")
    assert result["request"] == "either/small"
    assert env[names.ENV_MEMORY_LIMIT] == "1024"


def configuration(**parameters: Any) -> Json:
    """Return the configuration of a claim or class with these parameters of a share."""
    document = {"apiVersion": API_VERSION, "kind": KIND, **parameters}
    return {"opaque": {"driver": names.DRIVER, "parameters": document}}


@pytest.fixture
def hard_class(cluster: Cluster) -> Iterator[str]:
    """DeviceClass with hard isolation, which a claim may not set with Tensor Fusion's limiter."""
    name = f"{names.DEVICE_CLASS}-e2e-hard"
    cluster.create(class_document(name, config=[configuration(isolation="hard")]))
    yield name
    cluster.delete("DeviceClass", name)


def test_hard_isolation_ignores_a_memory_limit_above_the_request(
    tenants: Tenants, hard_class: str
) -> None:
    request = capacity_request("gpu", SMALL, deviceClassName=hard_class)

    env = tenants.run_with("hard", request, config=[configuration(limits={"vram": "3Gi"})])

    assert env[names.ENV_ISOLATION_MODE] == "hard"
    assert env[names.ENV_MEMORY_LIMIT] == "1024"


AMOUNTS = {"tflops": "78", "vram": "20Gi"}


def asking(name: str, **exactly: Any) -> Json:
    """Return a request of a class that names no amounts, or these."""
    return {"name": "gpu", "exactly": {"deviceClassName": name, **exactly}}


@pytest.fixture
def share_class(cluster: Cluster, tenants: Tenants) -> Iterator[str]:
    """DeviceClass whose claims the webhook fills, as of the chart's webhook.classes."""
    name = f"{names.DEVICE_CLASS}-e2e-quarter"
    found = webhooks_of_claims(cluster)
    share = configuration(requests=AMOUNTS, limits={"vram": "30Gi"}, overridable=False)
    before = {(kind, each["metadata"]["name"]): each["webhooks"] for kind, each in found}
    cluster.create(class_document(name, config=[share]))
    try:
        for (kind, configured), webhooks in before.items():
            changed = copy.deepcopy(webhooks)
            for webhook in changed:
                add_classes(webhook, [name])
            cluster.merge(kind, configured, {"webhooks": changed})
        # The API server sends such claims some time after the change.
        claim = claim_document("dry", tenants.namespace, asking(name))
        cluster.until(
            "the class's claims to be filled",
            lambda: "capacity" in exactly_of(cluster.post(*posted(claim), dryRun="All")),
            seconds=60,
        )
        yield name
    finally:
        for (kind, configured), webhooks in before.items():
            cluster.merge(kind, configured, {"webhooks": webhooks})
        cluster.delete("DeviceClass", name)


def webhooks_of_claims(cluster: Cluster) -> list[tuple[str, Json]]:
    """Return this driver's webhook configurations with their kinds."""
    found = [
        (kind, each)
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for each in cluster.objects(kind)
        if objects.webhooks([each])
    ]
    assert found, (
        "no webhook of this driver: apply daemonset/install/webhook.yaml, or deselect these tests "
        "with -m 'not webhook'"
    )
    return found


def claim_document(name: str, namespace: str, *requests: Json) -> Json:
    return {
        "apiVersion": RESOURCE,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": list(requests)}},
    }


def posted(claim: Json) -> tuple[str, Json]:
    """Return the path and body with which a claim is created."""
    return path_of("ResourceClaim", claim["metadata"]["namespace"]), claim


def exactly_of(claim: Json) -> Json:
    """Return the content of a claim's only request."""
    (request,) = claim["spec"]["devices"]["requests"]
    found: Json = request["exactly"]
    return found


@pytest.mark.webhook
def test_claim_that_names_a_class_gets_its_amounts_and_no_others(
    tenants: Tenants, share_class: str, cluster: Cluster
) -> None:
    env = tenants.run_with("a", asking(share_class))

    (result,) = tenants.results("a")
    assert result["consumedCapacity"] == AMOUNTS
    assert env[names.ENV_MEMORY_LIMIT] == str(30 * 1024)
    own = asking(share_class, capacity={"requests": {"vram": "40Gi"}})
    with pytest.raises(StatusError, match="found vram: 40Gi, expected 20Gi: DeviceClass"):
        cluster.create(claim_document("own", tenants.namespace, own))


def test_invalid_parameters_are_rejected_at_creation_or_reported_as_event(
    tenants: Tenants, cluster: Cluster
) -> None:
    config = configuration(isolation="hardest")
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
    tenants: Tenants, slices: Slices, resource_name: str, cluster: Cluster
) -> None:
    pod = tenants.document("plain")
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource_name: "1"}}
    cluster.create(pod)
    tenants.wait_until_running("plain")

    env = tenants.env("plain")

    (claim,) = cluster.objects("ResourceClaim", namespace=tenants.namespace)
    (result,) = results_of(claim)
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
    with driver.configured({"device-metadata": "true"}):
        one = capacity_request("one", SMALL)
        tenants.run_with("a", one, EITHER, containers=("one", "either", None))

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
                device = {
                    "driver": names.DRIVER,
                    "pool": result["pool"],
                    "name": result["device"],
                    "attributes": published(cluster, result),
                }
                assert found["requests"] == [{"name": request, "devices": [device]}]
        tenants.delete("a")


def test_pods_that_share_a_claim_read_the_same_file_and_the_setting_is_off_by_default(
    tenants: Tenants, cluster: Cluster, driver: Driver
) -> None:
    for name in ("shared.gpu", "plain"):
        cluster.create(claim_document(name, tenants.namespace, capacity_request("gpu", SMALL)))
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


@pytest.fixture
def annotated(tenants: Tenants, cluster: Cluster) -> Tenants:
    """Namespace with the claim template, on a cluster with the webhook."""
    assert webhooks_of_claims(cluster)
    template = yaml.safe_load((ROOT / "daemonset" / "claim-template.yaml").read_text())
    template["metadata"]["namespace"] = tenants.namespace
    cluster.create(template)
    return tenants


@pytest.mark.webhook
def test_quick_start_example_runs_with_its_share(annotated: Tenants) -> None:
    example = yaml.safe_load((ROOT / "hack" / "examples" / "guide-quick-start.yaml").read_text())

    annotated.pod("quick", annotations=example["metadata"]["annotations"])
    annotated.wait_until_running("quick")

    (result,) = annotated.results("quick")
    assert result["consumedCapacity"] == {"tflops": "100", "vram": "16Gi"}
    assert annotated.env("quick")[names.ENV_MEMORY_LIMIT] == str(16 * 1024)


@pytest.mark.webhook
@pytest.mark.usefixtures("idle_node")
def test_annotated_pods_get_their_shares_while_cards_begin_to_be_oversubscribed(
    annotated: Tenants, driver: Driver, slices: Slices, cluster: Cluster
) -> None:
    asks = {"dra-enabled": "true", "tflops-request": "50", "vram-request": "16Gi"}
    annotations = {f"{names.ANNOTATION_PREFIX}{name}": text for name, text in asks.items()}
    annotated.run("stays", QUARTER)
    (kept,) = annotated.results("stays")

    def virtual() -> set[str]:
        return {
            device["name"]
            for item in slices()
            for device in item["spec"]["devices"]
            if names.CAPACITY_VIRTUAL_VRAM in device["capacity"]
        }

    cards = [device["name"] for item in slices() for device in item["spec"]["devices"]]
    others = {*cards} - {kept["device"]}
    with driver.configured({"tflops-oversell-ratio": "150"}):
        cluster.until("the idle cards to change", lambda: virtual() == others, seconds=60)
        time.sleep(10)  # for so long the webhook keeps what it read
        pods = [f"annotated-{number}" for number in range(2 * len(cards))]
        for name in pods:
            annotated.pod(name, annotations=annotations)
        for name in pods:
            annotated.wait_until_running(name)
            (result,) = annotated.results(name)
            prefix = "" if result["device"] == kept["device"] else "virtual_"
            amounts = {f"{prefix}tflops": "50", f"{prefix}vram": "16Gi"}
            assert result["consumedCapacity"].items() >= amounts.items()
        annotated.delete("stays", *pods)
        cluster.until("all cards to change", lambda: virtual() == {*cards}, seconds=90)


@pytest.mark.webhook
def test_invalid_annotations_are_all_reported_at_once(annotated: Tenants) -> None:
    wrong = {"tensor-fusion.ai/tflops-request": "many", "tensor-fusion.ai/gpu-count": "0"}

    with pytest.raises(StatusError) as rejected:
        annotated.pod("wrong", annotations={**wrong, "tensor-fusion.ai/dra-enabled": "true"})

    for annotation in wrong:
        assert annotation in str(rejected.value)


@pytest.mark.webhook
def test_each_container_has_the_share_that_the_annotation_gives_it(annotated: Tenants) -> None:
    shares = {
        "c0": {"tflops-request": "78", "vram-request": "16Gi"},
        "c1": {"tflops-request": "10", "vram-request": "1Gi"},
        "c2": "c1",
    }
    annotations = {
        names.ANNOTATION_DRA_ENABLED: "true",
        names.ANNOTATION_CONTAINER_SHARES: json.dumps(shares),
    }

    annotated.pod("three", annotations=annotations, containers=(None, None, None))
    annotated.wait_until_running("three")

    consumed = {each["request"]: each["consumedCapacity"] for each in annotated.results("three")}
    assert consumed == {
        "c0": {"tflops": "78", "vram": "16Gi"},
        "c1": {"tflops": "10", "vram": "1Gi"},
    }
    limits = [annotated.env("three", each)[names.ENV_MEMORY_LIMIT] for each in range(3)]
    assert limits == [str(16 * 1024), "1024", "1024"]


@pytest.mark.webhook
def test_pod_without_annotations_is_unchanged(annotated: Tenants) -> None:
    annotated.pod("plain")
    annotated.wait_until_running("plain")

    assert "resourceClaims" not in annotated.stored("plain")["spec"]
    assert names.ENV_MEMORY_LIMIT not in annotated.env("plain")
