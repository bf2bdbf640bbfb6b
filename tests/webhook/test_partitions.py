"""Admission of pods and claims that ask for partitions of cards in MIG mode, and of all others."""

import json
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import quota
from tensorfusion_dra.core.kubernetes.review import Decision
from tensorfusion_dra.webhook import admission
from tensorfusion_dra.webhook.admission import AdmissionRules
from tests.support.admission import ObjectsInMemory, PodsInMemory, SlicesInMemory, review_of
from tests.support.builders.classes import share_class
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu, partition
from tests.support.builders.pods import pod_annotations, pod_document
from tests.support.builders.stored_claims import allocation_result, template_claim

Json = dict[str, Any]

CLASS = share_class(names.PARTITION_CLASS, isolation="partitioned", overridable=False)
OWN = share_class("tenth", isolation="partitioned")
"""An administrator's own class for partitions."""
SHARES = share_class("shares", requests={"vram": "8Gi"})
TOLERATION = {"key": names.TAINT_PARTITION, "operator": "Exists", "effect": "NoSchedule"}
ASKS = {"dra_enabled": "true", "isolation": "partitioned", "vram_request": "8Gi"}
FOR_ONE = {**ASKS, "tflops_request": "10"}


def slice_of(*cards: Any, virtual: bool = False) -> Json:
    devices = [each.as_api() for each in published_devices(*cards)]
    for each in devices if virtual else ():
        capacity: Any = each["capacity"]
        if not each.get("taints"):
            capacity |= {"virtual_vram": {"value": "160Gi"}, "virtual_tflops": {"value": "624"}}
    pool = {"name": "default/node-01", "resourceSliceCount": 1}
    spec = {"driver": names.DRIVER, "nodeName": "node-01", "pool": pool, "devices": devices}
    return {"metadata": {"name": "node-01"}, "spec": spec}


class Cluster:
    """A cluster with a shared card and one that is divided in seven; the webhook's rules."""

    def __init__(self, own: Json = OWN) -> None:
        parts = [partition(number, card=1) for number in range(7)]
        self.pods, self.slices = PodsInMemory(), SlicesInMemory(slice_of(gpu(0), *parts))
        self.admission = AdmissionRules(
            pools=ObjectsInMemory(),
            templates=ObjectsInMemory(),
            pods=self.pods,
            slices=self.slices,
            classes=ObjectsInMemory(CLASS, own, SHARES),
            scheduler="default-scheduler",
            virtual=False,
            keeps_cards_apart=lambda _: True,
            warns_at_present=True,
        )

    def pod(self, **annotations: str) -> Decision:
        return self.admission.pod(review_of(pod_document(pod_annotations(**annotations))))

    def claim(self, document: Json | None = None, /, **annotations: str) -> Decision:
        """Return the decision on a claim for a pod with these annotations."""
        self.pods.stored["uid-train"] = pod_document(pod_annotations(**annotations))
        return self.admission.claim(review_of(document or template_claim()))

    def claim_of(self, admitted: Decision) -> Decision:
        """Store an admitted pod; return the decision on the claim that is made for it."""
        self.pods.stored["uid-train"] = changed(admitted)
        return self.admission.claim(review_of(template_claim()))


def errors(decision: Decision) -> list[str]:
    return [str(error) for error in decision.errors]


def changed(decision: Decision) -> Json:
    assert decision.changed is not None
    return dict(decision.changed)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def claim(*classes: str, **fields: Any) -> Json:
    """Return a claim that somebody wrote, with a request of each of these classes."""
    requests = [
        {"name": f"r{number}", "exactly": {"deviceClassName": name, **fields}}
        for number, name in enumerate(classes)
    ]
    metadata = {"name": "by-hand", "namespace": "team-a"}
    spec = {"devices": {"requests": requests}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": spec,
    }


def asked(decision: Any) -> list[tuple[str, bool]]:
    """Return class and toleration of each request."""
    every = [
        each.get("exactly") or each["firstAvailable"][0]
        for each in changed(decision)["spec"]["devices"]["requests"]
    ]
    return [(each["deviceClassName"], TOLERATION in each.get("tolerations", [])) for each in every]


def test_pod_with_isolation_partitioned_gets_a_claim_for_one(cluster: Cluster) -> None:
    admitted = cluster.pod(**FOR_ONE)
    filled = cluster.claim_of(admitted)

    assert (errors(admitted), list(admitted.warnings)) == ([], [])
    assert asked(filled) == [(names.PARTITION_CLASS, True)]
    (request,) = changed(filled)["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"tflops": "10", "vram": "8Gi"}
    assert changed(filled)["metadata"]["annotations"][names.ANNOTATION_ISOLATION] == "partitioned"
    assert cluster.admission.claim(review_of(changed(filled))).changed in (None, changed(filled))


@pytest.mark.parametrize("virtual", [False, True])
def test_partitions_amounts_are_physical_whatever_the_pool(cluster: Cluster, virtual: bool) -> None:
    cluster.slices.slices = [slice_of(gpu(0), virtual=True)]  # none is published at present
    cluster.admission.virtual = virtual

    filled = cluster.claim(**FOR_ONE)

    (request,) = changed(filled)["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"].keys() == {"tflops", "vram"}


def test_containers_of_a_pod_get_a_partition_each(cluster: Cluster) -> None:
    shares = '{"a": {"vram-request": "8Gi"}, "b": {"vram-request": "4Gi"}}'

    filled = cluster.claim(
        dra_enabled="true", isolation="partitioned", container_shares=shares, tflops_request="1"
    )

    assert asked(filled) == [(names.PARTITION_CLASS, True)] * 2


@pytest.mark.parametrize(
    ("asks", "annotation"),
    [
        ({"gpu_count": "2"}, names.ANNOTATION_GPU_COUNT),
        ({"dedicated_gpu": "true"}, names.ANNOTATION_DEDICATED_GPU),
        ({"compute_percent_request": "25"}, names.ANNOTATION_COMPUTE_PERCENT_REQUEST),
        ({"vram_percent_request": "25", "vram_request": "0"}, "tensor-fusion.ai/vram-percent"),
    ],
)
def test_what_no_single_partition_is_is_refused(
    cluster: Cluster, asks: dict[str, str], annotation: str
) -> None:
    (found,) = errors(cluster.pod(**{**ASKS, **asks}))

    assert annotation in found
    assert "beside isolation partitioned, expected amounts of a single partition" in found


@pytest.mark.parametrize("other", ["dedicated-gpu", "vram-percent-request"])
def test_shares_of_all_containers_are_of_a_partition(cluster: Cluster, other: str) -> None:
    value = "true" if other == "dedicated-gpu" else "9"
    shares = json.dumps({"c0": {"vram-request": "8Gi"}, "c1": {other: value}})
    pod = of_resources({}, {})
    pod["metadata"]["annotations"] |= pod_annotations(dra_enabled="true", container_shares=shares)

    (found,) = errors(cluster.admission.pod(review_of(pod)))

    where = f"metadata.annotations[{names.ANNOTATION_CONTAINER_SHARES}]: found 'tensor-fusion.ai/"
    assert found.startswith(f"{where}{other}' beside isolation partitioned")


def of_resources(*containers: dict[str, str]) -> Json:
    """Return a pod with isolation partitioned whose containers name these amounts."""
    pod = pod_document(pod_annotations(isolation="partitioned"))
    pod["spec"]["containers"] = [
        {
            "name": f"c{place}",
            "resources": {
                "limits": {f"tensor-fusion.ai/{name}": text for name, text in each.items()}
            },
        }
        for place, each in enumerate(containers)
    ]
    return pod


def test_resources_of_containers_ask_for_a_partition_each(cluster: Cluster) -> None:
    pod = of_resources({"vram": "8Gi", "tflops": "10", "gpu": "1"}, {"vram": "4Gi"})

    admitted = cluster.admission.pod(review_of(pod))
    alone = cluster.admission.pod(review_of(of_resources({"vram": "8Gi"})))

    assert (errors(admitted), errors(alone)) == ([], [])
    assert asked(cluster.claim_of(admitted)) == [(names.PARTITION_CLASS, True)] * 2
    filled = cluster.claim_of(alone)
    assert asked(filled) == [(names.PARTITION_CLASS, True)]
    (request,) = changed(filled)["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"vram": "8Gi"}


@pytest.mark.parametrize(
    "more", [{"gpu": "2"}, {"vram-percent": "25"}, {"compute-percent": "25"}, {"tflops": "1.5"}]
)
def test_resources_that_no_single_partition_is_are_refused_by_name(
    cluster: Cluster, more: dict[str, str]
) -> None:
    ((name, text),) = more.items()
    beside = {"tflops": "10"} if name == "vram-percent" else {"vram": "8Gi"}

    (found,) = errors(cluster.admission.pod(review_of(of_resources({**beside, **more}))))

    where = f"spec.containers[0].resources.limits[tensor-fusion.ai/{name}]: found {text}"
    reason = ", expected a whole number" if name == "tflops" else " beside isolation partitioned"
    assert found.startswith(f"{where}{reason}")


def test_isolation_partitioned_alone_is_refused_unless_the_pod_has_a_claim(
    cluster: Cluster,
) -> None:
    pod = pod_document(pod_annotations(isolation="partitioned"))
    (found,) = errors(cluster.admission.pod(review_of(pod)))
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "own"}]

    where = f"metadata.annotations[{names.ANNOTATION_ISOLATION}]: "
    assert found.startswith(f"{where}found partitioned alone, expected amounts of a single")
    assert not cluster.admission.pod(review_of(pod)).errors


@pytest.mark.parametrize("other", [{}, {"vram": "8Gi"}])
def test_whole_gpus_by_the_extended_resource_are_no_partition(
    cluster: Cluster, other: dict[str, str]
) -> None:
    pod = of_resources({"gpu": "1"}, other)
    by_annotations = of_resources({"gpu": "1"})
    by_annotations["metadata"]["annotations"] |= pod_annotations(**FOR_ONE)

    for each in (pod, by_annotations):
        (found,) = errors(cluster.admission.pod(review_of(each)))

        where = "spec.containers[0].resources.limits[tensor-fusion.ai/gpu]: "
        assert found.startswith(f"{where}found whole GPUs beside isolation partitioned, expected")


def test_template_gets_only_what_its_class_for_partitions_names() -> None:
    whole, amounts = (
        Cluster(),
        share_class("tenth", isolation="partitioned", requests={"vram": "8Gi"}),
    )
    with_amounts = Cluster(amounts)

    found = [
        each.admission.template(review_of(template_of(name)))
        for each, name in (
            (whole, names.PARTITION_CLASS),
            (whole, "tenth"),
            (with_amounts, "tenth"),
        )
    ]

    assert [each.changed for each in found[:2]] == [None, None]
    (request,) = changed(found[2])["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"vram": "8Gi"}


def template_of(name: str) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "part", "namespace": "team-a"},
        "spec": {"spec": claim(name)["spec"]},
    }


def test_pod_is_warned_of_partitions_that_no_node_has(cluster: Cluster) -> None:
    too_large = cluster.pod(**{**FOR_ONE, "vram_request": "20Gi"})
    cluster.slices.slices = [slice_of(gpu(0))]
    without = cluster.pod(**FOR_ONE)

    assert "vram-request: found 20Gi, but the largest card has 9728Mi" in str(too_large.warnings)
    assert "no node has a GPU of this driver at present" in str(without.warnings)


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([names.PARTITION_CLASS], [True]),
        (["tenth", names.PARTITION_CLASS], [True, True]),
        (["shares"], [False]),
    ],
)
def test_claims_of_classes_for_partitions_tolerate_their_taint(
    cluster: Cluster, classes: list[str], expected: list[bool]
) -> None:
    found = cluster.admission.claim(review_of(claim(*classes)))

    assert asked(found) == list(zip(classes, expected, strict=True))


def test_claim_of_this_drivers_class_alone_stays_as_it_is(cluster: Cluster) -> None:
    assert cluster.admission.claim(review_of(claim(names.DEVICE_CLASS))).changed is None


def test_alternatives_may_be_of_both_kinds_and_only_partitions_tolerate(cluster: Cluster) -> None:
    document = claim("x")
    classes = (names.PARTITION_CLASS, names.DEVICE_CLASS)
    every = [{"name": f"c{n}", "deviceClassName": name} for n, name in enumerate(classes)]
    document["spec"]["devices"]["requests"] = [{"name": "r", "firstAvailable": every}]

    found = cluster.admission.claim(review_of(document))

    (request,) = changed(found)["spec"]["devices"]["requests"]
    assert ["tolerations" in each for each in request["firstAvailable"]] == [True, False]


@pytest.mark.parametrize("other", [names.DEVICE_CLASS, "shares"])
def test_claim_with_both_kinds_is_refused_at_the_door(cluster: Cluster, other: str) -> None:
    (found,) = errors(cluster.admission.claim(review_of(claim(names.PARTITION_CLASS, other))))

    assert "request r0: found a partition beside a GPU in request r1, expected one kind" in found
    watching = claim(names.PARTITION_CLASS, other)
    watching["spec"]["devices"]["requests"][1]["exactly"]["adminAccess"] = True
    assert errors(cluster.admission.claim(review_of(watching))) == []


@pytest.mark.parametrize("fields", [{"count": 2}, {"allocationMode": "All"}])
def test_request_for_several_partitions_is_refused(cluster: Cluster, fields: Json) -> None:
    document = claim(names.PARTITION_CLASS, **fields)
    watching = claim(names.PARTITION_CLASS, adminAccess=True, **fields)

    (found,) = errors(cluster.admission.claim(review_of(document)))

    assert "request r0: found several partitions, expected one: CUDA shows a process" in found
    assert errors(cluster.admission.claim(review_of(watching))) == []
    assert errors(cluster.admission.claim(review_of(claim(names.PARTITION_CLASS, count=1)))) == []


def test_class_for_partitions_cannot_name_virtual_amounts(cluster: Cluster) -> None:
    virtual = share_class("tenth", isolation="partitioned", requests={"virtual_vram": "8Gi"})

    (found,) = errors(cluster.admission.parameters(review_of(virtual)))

    assert "requests.virtual_vram: found a virtual amount, expected a physical one: a part" in found


def test_parameters_of_a_claim_cannot_ask_for_partitions(cluster: Cluster) -> None:
    document = claim(names.DEVICE_CLASS)
    document["spec"]["devices"]["config"] = OWN["spec"]["config"]

    (found,) = errors(cluster.admission.parameters(review_of(document)))

    assert "isolation: found 'partitioned', expected one of soft, hard, shared" in found
    assert errors(cluster.admission.parameters(review_of(CLASS))) == []


@pytest.mark.parametrize(
    "asks",
    [
        {"vram_request": "8Gi", "tflops_request": "10", "gpu_model": "A100"},
        {"vram_percent_request": "25", "compute_percent_request": "25"},  # KAI's and HAMi's words
        {"compute_percent_request": "memory", "vram_request": "8Gi"},
        {"dedicated_gpu": "true"},
        {"isolation": "shared"},
        {"isolation": "hard", "vram_request": "8Gi", "tflops_request": "10"},
    ],
)
def test_pods_that_ask_for_no_partition_get_a_claim_that_tolerates_none(
    cluster: Cluster, asks: dict[str, str]
) -> None:
    cluster.admission.enforces_hard = True

    filled = cluster.claim_of(cluster.pod(dra_enabled="true", **asks))

    assert asked(filled) == [(names.DEVICE_CLASS, False)]


def test_percentages_are_of_cards_and_not_of_their_partitions(cluster: Cluster) -> None:
    filled = cluster.claim(
        dra_enabled="true", vram_percent_request="25", compute_percent_request="25"
    )

    (request,) = changed(filled)["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"tflops": "78", "vram": "20Gi"}


def test_quota_counts_the_amounts_asked_for_and_then_the_whole_partition() -> None:
    capacity = {"requests": {"tflops": "10", "vram": "8Gi"}}
    document = claim(names.PARTITION_CLASS, capacity=capacity)
    classes = admission.parsed_classes(ObjectsInMemory(CLASS))
    result = allocation_result("mig-0", tflops="1", vram="1Gi", request="r0")
    del result["consumedCapacity"], result["shareID"]

    charged = [quota.counted(document, classes)]
    assert quota.counted(document) == charged[0]  # before its class is known
    document["status"] = {"allocation": {"devices": {"results": [result]}}}
    charged.append(quota.counted(document, classes))
    data = {"consumed": {"tflops": "40444m", "vram": "9728Mi"}}
    other = {**result, "device": "mig-1", "data": {"consumed": {"tflops": "1", "vram": "1Gi"}}}
    document["status"]["devices"] = [other, {**result, "data": data}]
    charged.append(quota.counted(document, classes))

    found = [[str(each[f"requests.{name}"]) for name in ("tflops", "vram")] for each in charged]
    assert found == [["10", "8Gi"], ["10", "8Gi"], ["40444m", "9728Mi"]]
    assert [str(each["workers"]) for each in charged] == ["1"] * 3


def test_template_with_a_class_of_its_own_keeps_it(cluster: Cluster) -> None:
    document = template_claim()
    document["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "tenth"

    assert asked(cluster.claim(document, **FOR_ONE)) == [("tenth", True)]


def test_template_with_requests_for_several_drivers_gets_its_partition_filled() -> None:
    cluster, document = Cluster(), template_claim()
    nic = {"name": "nic", "exactly": {"deviceClassName": "nic"}}
    (request,) = document["spec"]["devices"]["requests"]
    request["exactly"]["deviceClassName"] = names.PARTITION_CLASS
    document["spec"]["devices"]["requests"] = [nic, request]
    of_nic = share_class("nic", driver="nic.example.com")
    cluster.admission.classes = ObjectsInMemory(CLASS, of_nic)

    filled = cluster.claim(document, **FOR_ONE)

    assert changed(filled)["spec"]["devices"]["requests"][0] == nic
    assert asked(filled) == [("nic", False), (names.PARTITION_CLASS, True)]


def test_claim_waits_until_the_class_of_partitions_is_known(cluster: Cluster) -> None:
    cluster.admission.classes = ObjectsInMemory()

    (found,) = errors(cluster.admission.claim(review_of(claim(names.PARTITION_CLASS))))

    assert f"found no DeviceClass {names.PARTITION_CLASS} with valid parameters" in found
